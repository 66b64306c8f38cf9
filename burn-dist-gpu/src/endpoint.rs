//! One rank's calls on device memory: tensors of any backend, launched, held, and released.
//!
//! ```text
//! input ─ pieces one after the other ─> sent ─┐
//!                                             ├─ entry ─ NCCL, or copies ─ exit ─> received ─ joined, or folded in order ─> result
//! result's buffers, of the backend's memory ──┘
//! ```
//!
//! Entry and exit are an event and a kernel on the device ([`streams`](crate::streams)), so that the host queues what
//! comes next meanwhile; where the driver cannot do that, the host waits at both.
//!
//! Memory of a call that fails stays with the rank until its worker, which first notifies everyone of the fault, has
//! [aborted](Gpus::abort) its communicators; memory that the device may use even then is never released.
//!
//! Before the host reads anything, it [lands](Gpus::land): it waits until calls are over, and looks whether it was
//! their end or an abort's.

use crate::Reduction;
use crate::device::Address;
use crate::nccl::groups::{Channels, Launched};
use crate::nccl::op::{Element, Op};
use crate::streams::api::{FlagWait, Hold};
use crate::streams::watcher::{Watched, Watcher};
use burn_dist_comm::{Call, CallInfo, CommError, Communicator};
use burn_dist_mesh::DType;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A tensor, and where it is.
pub struct Placed<T> {
    /// The tensor.
    pub tensor: T,
    /// The address of its first element; an empty one is nowhere.
    pub at: Address,
    /// Keeps its memory, and does not keep the backend from writing in place.
    pub hold: Hold,
}

/// A backend's tensors as device memory, and the stream on which it computes.
pub trait Memory<T>: Send + Sync {
    /// Returns a tensor of so many elements in row-major order.
    ///
    /// # Errors
    /// [`CommError::Device`].
    fn pinned(&self, tensor: T, elements: usize, dtype: DType) -> Result<Placed<T>, CommError>;

    /// Returns a flat tensor that nothing has written yet.
    ///
    /// # Errors
    /// [`CommError::Device`].
    fn fresh(&self, elements: usize, dtype: DType) -> Result<Placed<T>, CommError>;

    /// Waits until the backend has handed to the driver all that this thread has queued: the device need not have run
    /// it.
    ///
    /// # Errors
    /// [`CommError::Device`].
    fn submit(&self) -> Result<(), CommError>;

    /// Waits until the device has run all that this thread has queued, so that another stream may use memory that the
    /// backend has handed out.
    ///
    /// # Errors
    /// [`CommError::Device`].
    fn settle(&self) -> Result<(), CommError>;

    /// Makes what this thread queues from now on wait on the device.
    ///
    /// # Errors
    /// [`CommError::Device`].
    fn wait(&self, wait: FlagWait) -> Result<(), CommError>;
}

type Open = dyn Fn() -> Result<Channels, CommError> + Send + Sync;

/// The calls of a rank, and the thread that watches them if the host does not wait for them.
type Opened<T> = (Shared<T>, Option<Watcher>);

/// The side of one rank that other GPUs talk to; the libraries are opened when it first communicates.
pub struct Gpus<T: Send + 'static> {
    memory: Box<dyn Memory<T>>,
    open: Box<Open>,
    /// The libraries, or why they are not open.
    opened: OnceLock<Result<Opened<T>, CommError>>,
    reduction: Reduction,
    host: Arc<dyn Communicator>,
}

impl<T: Send + 'static> Gpus<T> {
    /// Returns the side of the rank of `host`, which counts and records calls and carries faults.
    pub fn new(
        memory: impl Memory<T> + 'static,
        open: impl Fn() -> Result<Channels, CommError> + Send + Sync + 'static,
        reduction: Reduction,
        host: Arc<dyn Communicator>,
    ) -> Self {
        Self {
            memory: Box::new(memory),
            open: Box::new(open),
            opened: OnceLock::new(),
            reduction,
            host,
        }
    }

    /// The tensors of the backend.
    pub fn memory(&self) -> &dyn Memory<T> {
        &*self.memory
    }

    /// The order in which terms are added up.
    pub fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Opens the libraries the first time, and returns the same ever after.
    fn opened(&self) -> Result<Shared<T>, CommError> {
        let rank = self.host.rank();
        let opened = self.opened.get_or_init(|| {
            let channels = (self.open)()?;
            let poison = channels.poison();
            let shared = Shared::new(channels);
            // Where the host waits for calls itself, it sees what becomes of them.
            let watcher = poison.map(|poison| {
                let name = format!("watcher of rank {}", rank.0);
                Watcher::start(name, &self.host, &shared.0, poison)
            });
            let watcher = watcher.transpose().map_err(|error| CommError::Aborted {
                rank,
                what: "starting a thread that watches calls between GPUs".into(),
                label: "".into(),
                reason: error.to_string(),
            })?;
            Ok((shared, watcher))
        });
        opened
            .as_ref()
            .map(|(shared, _)| shared.clone())
            .map_err(Clone::clone)
    }

    /// Returns the calls, if there were any.
    fn calls(&self) -> Option<MutexGuard<'_, Calls<T>>> {
        match self.opened.get() {
            Some(Ok((shared, _))) => Some(shared.get()),
            _ => None,
        }
    }

    /// Counts and records a call: see [`Channels::record`].
    ///
    /// # Errors
    /// The errors of [`Channels::record`], and why the libraries cannot be opened.
    pub fn record(&self, call: Call) -> Result<(Arc<CallInfo>, Element), CommError> {
        let opened = self.opened()?;
        opened.get().channels.record(&*self.host, call)
    }

    /// Puts operations of a recorded call on the device behind what is queued there. They use `sent` and `received`.
    ///
    /// # Safety
    /// The operations stay within these two tensors.
    /// # Errors
    /// The errors of [`Channels::launch`].
    pub unsafe fn launch(
        &self,
        info: &Arc<CallInfo>,
        element: Element,
        ops: &[Op],
        [sent, received]: [Placed<T>; 2],
    ) -> Result<InFlight<T>, CommError> {
        let calls = self.opened()?;
        let is_ordered = calls.get().channels.is_ordered();
        match is_ordered {
            true => self.memory.submit()?,
            false => self.memory.settle()?,
        }
        let mut call = InFlight {
            launched: None,
            info: Arc::clone(info),
            host: Arc::clone(&self.host),
            calls,
            tensors: Some((sent.tensor, received.tensor)),
            hold: Box::new((sent.hold, received.hold)),
        };
        // SAFETY: the addresses are of tensors within the counts, by the caller's promise. `call` has them: it gives
        // them back when it has exited, and else to the calls of the rank, which keep them until an abort says that
        // they are free. All that the backend has queued and that may still use their memory has been waited for, or
        // handed to the driver, where the launch is put behind it.
        let launched = unsafe {
            let mut calls = call.calls.get();
            calls.channels.launch(&*self.host, info, element, ops)
        };
        call.launched = Some(launched?);
        Ok(call)
    }

    /// Notes that a call is over, where the host has waited for it.
    ///
    /// # Errors
    /// Why the libraries cannot be opened.
    pub fn is_over(&self, info: &CallInfo) -> Result<(), CommError> {
        if !self.opened()?.get().channels.is_ordered() {
            info.end();
        }
        Ok(())
    }

    /// Waits until the device is done with all calls that have exited: until the host reads what they have brought.
    ///
    /// # Errors
    /// The errors of [`Channels::land`].
    pub fn land(&self) -> Result<(), CommError> {
        let calls = self.calls();
        calls.map_or(Ok(()), |mut calls| calls.channels.land(&*self.host))
    }

    /// Stops what is on the device. Everyone has to know of the fault: this waits for others.
    pub fn abort(&self) {
        if let Some(mut calls) = self.calls() {
            calls.abort();
        }
    }

    /// Leaves the groups.
    pub fn close(&self) {
        if let Some(mut calls) = self.calls() {
            calls.channels.close(&*self.host);
            // Nothing is left to stop, but perhaps memory to give back.
            calls.abort();
        }
    }
}

/// The channels of a rank, and the memory of calls that have failed.
struct Calls<T> {
    channels: Channels,
    /// Sent and received tensors of calls that have not exited: the device may use them until their communicators have
    /// ended.
    kept: Vec<(T, T, Hold)>,
}

impl<T> Calls<T> {
    fn abort(&mut self) {
        let is_free = self.channels.abort();
        let kept = std::mem::take(&mut self.kept);
        if !is_free && !kept.is_empty() {
            tracing::warn!(
                calls = kept.len(),
                "a GPU may still use memory of calls that were aborted: it is not given back"
            );
            std::mem::forget(kept);
        }
    }
}

impl<T: Send + 'static> Watched for Calls<T> {
    fn check(&mut self, host: &dyn Communicator) -> Result<(), CommError> {
        self.channels.look(host)
    }

    fn abort(&mut self) {
        Self::abort(self);
    }
}

impl<T> Drop for Calls<T> {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The calls of a rank, shared by those in flight.
struct Shared<T>(Arc<Mutex<Calls<T>>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    fn new(channels: Channels) -> Self {
        let kept = Vec::new();
        Self(Arc::new(Mutex::new(Calls { channels, kept })))
    }

    fn get(&self) -> MutexGuard<'_, Calls<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on the device, with its memory, which comes back with it; dropped before that, it leaves the memory with the
/// other calls of the rank.
pub struct InFlight<T> {
    launched: Option<Launched>,
    info: Arc<CallInfo>,
    host: Arc<dyn Communicator>,
    calls: Shared<T>,
    /// Sent, and received.
    tensors: Option<(T, T)>,
    hold: Hold,
}

impl<T> InFlight<T> {
    /// The record of the call.
    pub fn info(&self) -> &Arc<CallInfo> {
        &self.info
    }

    /// Ends the call for this rank: returns what the backend has to [wait](Memory::wait) for, or waits itself.
    ///
    /// # Errors
    /// The errors of [`Channels::exit`].
    pub fn exit(&mut self) -> Result<Option<FlagWait>, CommError> {
        let Some(launched) = self.launched.take() else {
            return Ok(None);
        };
        let hold = std::mem::replace(&mut self.hold, Box::new(()));
        let mut calls = self.calls.get();
        calls.channels.exit(&*self.host, launched, hold)
    }

    /// Returns the tensors that were sent and received by a call that has exited.
    pub fn into_tensors(mut self) -> (T, T) {
        let tensors = self.tensors.take();
        tensors.expect("taken here only, and by a drop")
    }
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        if let Some((sent, received)) = self.tensors.take() {
            let hold = std::mem::replace(&mut self.hold, Box::new(()));
            let mut calls = self.calls.get();
            calls.kept.push((sent, received, hold));
            if let Some(launched) = self.launched.take() {
                calls.channels.give_up(launched);
            }
        }
    }
}
