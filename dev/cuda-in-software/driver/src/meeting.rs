//! Meetings of streams: what several devices do together, when the streams of all have come to it. The communication
//! library beside this driver is made of them.

use crate::access::{Accesses, How};
use crate::clock::{Clock, Epoch, Moment};
use crate::fault::Fault;
use crate::memory::{Allocation, Place};
use crate::queue::Marker;
use crate::shadow::Race;
use crate::status::LAUNCH_FAILED;
use std::ffi::c_void;
use std::sync::Mutex;

/// What checks that bytes may be read (0), written (1) or moved on (2), and returns 0 if so.
type Check = extern "C" fn(*const c_void, u64, u64, u32) -> u32;

/// What the members do, given what they have brought; it returns 0 if all went well.
pub(crate) type Body = unsafe extern "C" fn(*const c_void, Check, *const c_void) -> u32;

/// What says whether others, of whom this driver knows nothing, have come as well: 0 if not.
pub(crate) type Ready = unsafe extern "C" fn(*const c_void) -> u32;

/// A meeting.
pub(crate) struct Meeting {
    pub(crate) body: Body,
    ready: Option<Ready>,
    /// What the members have brought: an address that the library keeps.
    pub(crate) brought: usize,
    members: Mutex<Members>,
    pub(crate) done: Marker,
    /// What went wrong, which is every member's fault: nobody goes on as if it had not.
    failed: Mutex<Option<Fault>>,
}

/// A member whose stream has come.
struct Arrived {
    /// What happened before.
    clock: Clock,
    /// The stream's operation that takes part.
    epoch: Epoch,
    device: usize,
}

struct Members {
    arrived: Vec<Option<Arrived>>,
    gone: Vec<bool>,
    is_taken: bool,
}

impl Meeting {
    pub(crate) fn new(members: usize, body: Body, ready: Option<Ready>, brought: usize) -> Self {
        Meeting {
            body,
            ready,
            brought,
            members: Mutex::new(Members {
                arrived: (0..members).map(|_| None).collect(),
                gone: vec![false; members],
                is_taken: false,
            }),
            done: Marker::default(),
            failed: Mutex::default(),
        }
    }

    /// Returns what went wrong.
    pub(crate) fn failed(&self) -> Option<Fault> {
        self.failed.lock().expect("no panic in a meeting").clone()
    }

    fn members<T>(&self, then: impl FnOnce(&mut Members) -> T) -> T {
        then(&mut self.members.lock().expect("no panic in a meeting"))
    }

    /// A member's stream has come to it: its next operation takes part.
    pub(crate) fn arrives(&self, member: usize, clock: &Clock, (stream, device): (usize, usize)) {
        self.members(|members| {
            members.arrived[member].get_or_insert_with(|| {
                let clock = clock.clone();
                let epoch = clock.clone().tick(stream);
                Arrived {
                    clock,
                    epoch,
                    device,
                }
            });
        });
    }

    /// A member's stream goes on without it.
    pub(crate) fn leaves(&self, member: usize) {
        self.members(|members| members.gone[member] = true);
    }

    /// Whether a member's stream may go on.
    pub(crate) fn is_over(&self, member: usize) -> bool {
        let is_done = self.done.come().is_some() || self.failed().is_some();
        is_done || self.members(|members| members.gone[member])
    }

    /// Whether all are there, and nobody has begun.
    pub(crate) fn can_begin(&self) -> bool {
        let all = |members: &mut Members| members.arrived.iter().all(Option::is_some);
        // SAFETY: the library has promised that the function takes what was brought.
        let others = |ready: Ready| unsafe { ready(self.brought as *const c_void) } != 0;
        self.members(|members| !members.is_taken && all(members)) && self.ready.is_none_or(others)
    }

    /// Begins, unless somebody has, and returns what happened before: that the members' operations have begun is a part
    /// of it, for one that takes part in several meetings does all of them, in any order.
    pub(crate) fn begin(&self) -> Option<Clock> {
        if !self.can_begin() {
            return None;
        }
        self.members(|members| {
            if members.is_taken {
                return None;
            }
            let mut clock = Clock::default();
            for arrived in &members.arrived {
                let Arrived {
                    clock: of, epoch, ..
                } = arrived.as_ref()?;
                clock.join(of);
                clock.begins(*epoch);
            }
            members.is_taken = true;
            Some(clock)
        })
    }

    /// Does what the members do, and then checks that it was in order: memory is used by the member on whose device it
    /// is.
    pub(crate) fn run(
        &self,
        accesses: &Accesses,
        now: &Moment,
        name: &dyn Fn(&Race) -> String,
    ) -> Result<(), Fault> {
        let by = |allocation: &Allocation| self.by(allocation).unwrap_or(now.epoch);
        let done = self.body(accesses);
        let done = done.and_then(|()| accesses.in_order_by(now, &by, name));
        if let Err(fault) = &done {
            *self.failed.lock().expect("no panic in a meeting") = Some(fault.clone());
        }
        done
    }

    /// Returns the operation of the member on whose device some memory is.
    fn by(&self, allocation: &Allocation) -> Option<Epoch> {
        let Place::Device(device) = allocation.place else {
            return None;
        };
        self.members(|members| {
            let mut arrived = members.arrived.iter().flatten();
            let of = arrived.find(|arrived| arrived.device == device);
            of.map(|arrived| arrived.epoch)
        })
    }

    fn body(&self, accesses: &Accesses) -> Result<(), Fault> {
        let checked = Checked {
            accesses,
            fault: Mutex::new(None),
        };
        let context = (&raw const checked).cast();
        // SAFETY: the library has promised that the body takes what was brought, and calls the check with its context.
        let code = unsafe { (self.body)(self.brought as *const c_void, check, context) };
        match (
            checked.fault.into_inner().expect("no panic in a check"),
            code,
        ) {
            (Some(fault), _) => Err(fault),
            (None, 0) => Ok(()),
            (None, code) => {
                let text = format!("what the members bring does not fit (code {code})");
                Err(Fault::new(LAUNCH_FAILED, text))
            }
        }
    }
}

struct Checked<'a> {
    accesses: &'a Accesses,
    fault: Mutex<Option<Fault>>,
}

extern "C" fn check(context: *const c_void, address: u64, bytes: u64, how: u32) -> u32 {
    // SAFETY: the body hands on what `run` has given it, and runs within it.
    let checked = unsafe { &*context.cast::<Checked>() };
    let how = match how {
        _ if bytes == 0 => return 0,
        0 => How::Read,
        1 => How::Write,
        _ => How::Move,
    };
    match checked.accesses.at(address, bytes, how) {
        Ok(_) => 0,
        Err(fault) => {
            let mut first = checked.fault.lock().expect("no panic in a check");
            first.get_or_insert(fault);
            1
        }
    }
}
