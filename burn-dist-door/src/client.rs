//! A handle on the recorder of a mesh, and the lock under which calls are recorded.

use std::cell::RefCell;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_router::RouterTensor;
use burn_std::device::Device;

use crate::data::*;
use crate::lock::{Lock, Locked};
use crate::{Inner, Mesh, MeshDevice, Origin, Queue, Recorder, Ticket};

/// Holds the lock of a mesh while a call is recorded. At its end windows are planned, and a program waits that records
/// faster than the ranks run.
pub struct Recording<E: Inner> {
    guard: Option<Locked<'static, RefCell<E::Recorder>>>,
    client: MeshClient<E>,
}

impl<E: Inner> Recording<E> {
    #[inline]
    fn new(client: MeshClient<E>, recorder: &'static Lock<RefCell<E::Recorder>>) -> Self {
        let guard = Some(recorder.lock());
        Self { guard, client }
    }
}

impl<E: Inner> Drop for Recording<E> {
    #[inline]
    fn drop(&mut self) {
        drop(self.guard.take());
        self.client.serve_queue();
    }
}

/// A handle on the recorder of one mesh; every tensor holds one.
pub struct MeshClient<E: Inner> {
    /// burn-router keeps a client per mesh for the life of the process, so nothing is lost by never freeing what it
    /// shares.
    shared: &'static Shared<E>,
}

struct Shared<E: Inner> {
    mesh: u16,
    /// Dead once the mesh has ended.
    alive: Weak<Mesh>,
    next_id: AtomicU64,
    queue: Arc<Queue>,
    /// A call holds the lock around the recording of its operation, and of what is dropped meanwhile.
    recorder: Lock<RefCell<E::Recorder>>,
}

// The recorder never leaves its state half-changed.
impl<E: Inner> RefUnwindSafe for Shared<E> {}

/// Tensor ids carry the id of their mesh in their upper bits: an id of one mesh is never one of another.
const MESH_SHIFT: u32 = 48;

impl<E: Inner> Clone for MeshClient<E> {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            shared: self.shared,
        }
    }
}

impl<E: Inner> MeshClient<E> {
    /// Called by burn-router, once per mesh and inner backend.
    pub(crate) fn new(device: &MeshDevice) -> Self {
        let mesh = device.to_id().index_id;
        let recorder = E::open(device);
        let shared: &'static Shared<E> = Box::leak(Box::new(Shared {
            mesh,
            alive: device.mesh().map(Arc::downgrade).unwrap_or_default(),
            next_id: AtomicU64::new(u64::from(mesh) << MESH_SHIFT),
            queue: recorder.queue(),
            recorder: Lock::new(RefCell::new(recorder)),
        }));
        if let Some(mesh) = device.mesh() {
            mesh.on_close(|| {
                let rest = shared.recorder.lock().borrow_mut().close();
                // Joined without the lock: a worker that is still busy must not keep others from dropping their
                // tensors.
                drop(rest);
            });
        }
        Self { shared }
    }

    /// Returns the client that a mesh keeps, which `find` finds at the first call; `None` if it keeps that of another
    /// inner backend.
    pub(crate) fn kept(mesh: &Mesh, find: impl FnOnce() -> Self) -> Option<Self> {
        let shared = mesh.client(|| find().shared).downcast_ref()?;
        Some(Self { shared })
    }

    /// Calls `f` with the recorder, under its lock.
    pub fn with<T>(&self, f: impl FnOnce(&mut E::Recorder) -> T) -> T {
        let result = self.locked(f);
        self.serve_queue();
        result
    }

    /// Calls `f` with the recorder, under its lock, and neither plans nor waits afterwards.
    fn locked<T>(&self, f: impl FnOnce(&mut E::Recorder) -> T) -> T {
        f(&mut self.shared.recorder.lock().borrow_mut())
    }

    /// Keeps other threads from recording on this mesh until the result is dropped.
    #[inline]
    pub fn recording(&self) -> Recording<E> {
        Recording::new(self.clone(), &self.shared.recorder)
    }

    /// Plans windows that have ended, and waits if the program is too far ahead of the ranks; unless this thread still
    /// holds the lock: then the outer call does both when it ends.
    #[inline]
    fn serve_queue(&self) {
        if self.shared.queue.is_due() {
            self.serve_queue_unlocked();
        }
    }

    #[cold]
    fn serve_queue_unlocked(&self) {
        if self.shared.recorder.is_owned_by_current_thread() {
            return;
        }
        // Also in a panic: who drops something may read.
        self.shared.queue.plan();
        if !std::thread::panicking() {
            self.shared.queue.wait();
        }
    }

    /// Returns whether both are handles on one mesh.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.shared, other.shared)
    }

    /// Consumes `tensor`, closes the window and asks for its content.
    pub(crate) fn read(tensor: RouterTensor<Self>) -> Ticket<TensorData> {
        let client = tensor.client.clone();
        let _recording = client.recording();
        client.read_ir(tensor.into_ir())
    }

    /// Consumes tensors, closes the window and asks for their content: one window for those of one mesh.
    pub(crate) fn read_all(tensors: Vec<RouterTensor<Self>>) -> Vec<Ticket<TensorData>> {
        let mut left: Vec<(usize, RouterTensor<Self>)> = tensors.into_iter().enumerate().collect();
        let mut tickets = Vec::with_capacity(left.len());
        while let Some((_, first)) = left.first() {
            let client = first.client.clone();
            let (here, others): (Vec<_>, _) = left
                .into_iter()
                .partition(|(_, tensor)| tensor.client.is_same(&client));
            left = others;
            let _recording = client.recording();
            let (places, irs): (Vec<_>, _) = here
                .into_iter()
                .map(|(place, tensor)| (place, tensor.into_ir()))
                .unzip();
            let read = client.with(|recorder| recorder.read(irs));
            tickets.extend(places.into_iter().zip(read));
        }
        tickets.sort_by_key(|(place, _)| *place);
        tickets.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// Takes data of the host.
    pub(crate) fn enter(&self, data: TensorData, origin: Origin) -> RouterTensor<Self> {
        let id = self.next_id();
        let (shape, dtype) = (data.shape().clone(), data.dtype());
        self.with(|recorder| recorder.enter(id, data, origin));
        RouterTensor::new(id, shape, dtype, self.clone())
    }

    /// Records an operation; waits where the program is too far ahead of the ranks.
    pub(crate) fn record(&self, op: OperationIr) {
        match op {
            // May come from anywhere, under locks of Burn: it neither closes a window nor waits.
            OperationIr::Drop(tensor) => self.locked(|recorder| recorder.drop_tensor(tensor.id)),
            // Data announces itself by `register_tensor_data`.
            OperationIr::Init(_) => {}
            op => {
                // An operation is large: it is moved as few times as can be.
                self.shared.recorder.lock().borrow_mut().record(op);
                self.serve_queue();
            }
        }
    }

    /// Closes the window and asks for the content of `tensor`.
    pub(crate) fn read_ir(&self, tensor: TensorIr) -> Ticket<TensorData> {
        let tickets = self.with(|recorder| recorder.read(vec![tensor]));
        let ticket = tickets.into_iter().next();
        ticket.unwrap_or_else(|| Box::new(|| Err("a read without an answer".into())))
    }

    /// Returns an id for a new tensor.
    #[inline]
    pub(crate) fn next_id(&self) -> TensorId {
        TensorId::new(self.shared.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the device of the mesh.
    pub(crate) fn mesh_device(&self) -> MeshDevice {
        MeshDevice::new(self.shared.mesh, self.shared.alive.upgrade())
    }
}
