//! The engine's part of recording, as traits: recorders, and the ranks that they record for.

use std::any::Any;
use std::sync::Arc;

use burn_backend::{DType, DTypeUsageSet, TensorData};
use burn_ir::{OperationIr, TensorId, TensorIr};

use crate::{Elements, MeshDevice, Queue};

/// The ranks that [`Dist`](crate::Dist) records for, as far as recording knows them.
pub trait Inner: Elements + 'static {
    /// The recorder of a mesh.
    type Recorder: Recorder;

    /// Makes the recorder of a mesh. Burn's router asks for it once per mesh, when the first tensor is made there, and
    /// keeps it for the life of the process.
    fn open(device: &MeshDevice) -> Self::Recorder;

    /// Returns whether they have a function for the gradient of `ctc_loss`; else Burn computes it from others.
    fn has_ctc_loss_backward() -> bool;
}

/// A result that is pending; calling it waits. An error is the reason in words.
pub type Ticket<T> = Box<dyn FnOnce() -> Result<T, String> + Send>;

/// The source of data of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program: a batch.
    Data,
    /// Constants alone.
    Constants,
}

/// Records the program of one mesh. Every call is made under the lock of the mesh, and none waits for a rank: what has
/// to wait is a [`Ticket`].
pub trait Recorder: Send + 'static {
    /// Records an operation.
    fn record(&mut self, op: OperationIr);
    /// Notes that the program has no handle on a tensor any more. Burn calls it from anywhere, under locks of its own.
    fn drop_tensor(&mut self, id: TensorId);
    /// Takes data of the host as a tensor.
    fn enter(&mut self, id: TensorId, data: TensorData, origin: Origin);
    /// Asks for the content of tensors, all in one window: one ticket for each.
    fn read(&mut self, tensors: Vec<TensorIr>) -> Vec<Ticket<TensorData>>;
    /// Asks for the end of all that was recorded so far.
    fn sync(&mut self) -> Ticket<()>;
    /// Sets the seed of random numbers.
    fn seed(&mut self, seed: u64);
    /// Returns what the ranks can do with elements of a type.
    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet;
    /// Returns the path of the parameter that a tensor is, if it is known to be one.
    fn path_of(&self, tensor: &TensorIr) -> Option<String>;
    /// Returns what has stopped the mesh, if something has.
    fn stopped(&self) -> Option<String>;
    /// Returns what plans the windows that have ended, and bounds how far the program may be ahead of the ranks.
    fn queue(&self) -> Arc<Queue>;
    /// Ends the mesh. What it returns is dropped without the lock, and may wait for what still runs.
    fn close(&mut self) -> Box<dyn Any + Send>;
    /// Returns the engine's own recorder, for what the door does not ask of it.
    fn as_any(&mut self) -> &mut dyn Any;
}

impl Recorder for Box<dyn Recorder> {
    fn record(&mut self, op: OperationIr) {
        (**self).record(op);
    }

    fn drop_tensor(&mut self, id: TensorId) {
        (**self).drop_tensor(id);
    }

    fn enter(&mut self, id: TensorId, data: TensorData, origin: Origin) {
        (**self).enter(id, data, origin);
    }

    fn read(&mut self, tensors: Vec<TensorIr>) -> Vec<Ticket<TensorData>> {
        (**self).read(tensors)
    }

    fn sync(&mut self) -> Ticket<()> {
        (**self).sync()
    }

    fn seed(&mut self, seed: u64) {
        (**self).seed(seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        (**self).dtype_usage(dtype)
    }

    fn path_of(&self, tensor: &TensorIr) -> Option<String> {
        (**self).path_of(tensor)
    }

    fn stopped(&self) -> Option<String> {
        (**self).stopped()
    }

    fn queue(&self) -> Arc<Queue> {
        (**self).queue()
    }

    fn close(&mut self) -> Box<dyn Any + Send> {
        (**self).close()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        (**self).as_any()
    }
}
