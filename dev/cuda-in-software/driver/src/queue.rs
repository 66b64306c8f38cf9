//! What streams hold: operations that run later, one after the other in each.

use crate::access::Accesses;
use crate::clock::{Clock, Epoch};
use crate::fault::Fault;
use crate::meeting::Meeting;
use crate::memory::Allocation;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// A place in a stream that work may wait for, and what happened before it, when it has come.
#[derive(Default)]
pub(crate) struct Marker(Mutex<Option<Arc<Clock>>>);

impl Marker {
    pub(crate) fn come(&self) -> Option<Arc<Clock>> {
        self.0.lock().expect("no panic in a marker").clone()
    }

    pub(crate) fn comes(&self, clock: Arc<Clock>) {
        *self.0.lock().expect("no panic in a marker") = Some(clock);
    }
}

/// What a host callback is given.
pub(crate) struct UserData(pub(crate) *mut c_void);
// SAFETY: the driver hands it to the callback, as it promises, and does nothing with it.
unsafe impl Send for UserData {}

type Body = dyn FnOnce(&Accesses) -> Result<(), Fault> + Send;

/// What an operation does.
pub(crate) enum Work {
    Mark(Arc<Marker>),
    Wait(Vec<Arc<Marker>>),
    /// `cuStreamWaitValue32`: until the word at the address is as the flags want it.
    WaitValue {
        address: u64,
        value: u32,
        flags: u32,
    },
    /// `cuStreamWriteValue32`.
    WriteValue {
        address: u64,
        value: u32,
    },
    Run(Box<Body>),
    /// What this stream takes part in, and as which member.
    Meet(Vec<(Arc<Meeting>, usize)>),
    Callback(unsafe extern "C" fn(*mut c_void), UserData),
    /// Memory is there from here on.
    Give(Arc<Allocation>),
    TakeBack(Arc<Allocation>),
}

/// An operation of a stream.
pub(crate) struct Op {
    /// The call that asked for it.
    pub(crate) call: Arc<str>,
    /// Which one it is of all that were put.
    pub(crate) number: u64,
    /// What the host knew to be over.
    pub(crate) host: Arc<Clock>,
    pub(crate) work: Work,
}

/// How many operations keep their names.
const NAMES: usize = 1 << 16;

/// A stream.
pub(crate) struct Stream {
    pub(crate) device: usize,
    /// The stream that programs name by zero.
    pub(crate) is_null: bool,
    /// It waits for that stream, and that stream for it.
    pub(crate) is_blocking: bool,
    pub(crate) is_destroyed: bool,
    pub(crate) ops: VecDeque<Op>,
    /// An operation of it runs.
    pub(crate) is_busy: bool,
    pub(crate) clock: Clock,
    names: VecDeque<(Arc<str>, u64)>,
    /// The number of the first name.
    first_name: u64,
}

impl Stream {
    pub(crate) fn new(device: usize, is_null: bool, is_blocking: bool) -> Self {
        Stream {
            device,
            is_null,
            is_blocking,
            is_destroyed: false,
            ops: VecDeque::new(),
            is_busy: false,
            clock: Clock::default(),
            names: VecDeque::new(),
            first_name: 1,
        }
    }

    /// Keeps the name of the operation that ticks next.
    pub(crate) fn named(&mut self, op: &Op) {
        self.names.push_back((Arc::clone(&op.call), op.number));
        if self.names.len() > NAMES {
            self.names.pop_front();
            self.first_name += 1;
        }
    }

    /// Returns the name of an operation, and which one it is of all that were put.
    pub(crate) fn name(&self, of: Epoch) -> (Arc<str>, u64) {
        let at = of.number.checked_sub(self.first_name);
        let name = at.and_then(|at| self.names.get(at as usize));
        name.cloned()
            .unwrap_or_else(|| ("an old operation".into(), 0))
    }
}
