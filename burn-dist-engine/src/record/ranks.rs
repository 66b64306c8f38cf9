//! The door's view of a backend that ranks compute on.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use burn_backend::{DType, DTypeUsageSet, TensorData};
use burn_dist_door::{Inner, MeshDevice, Origin, Queue, Ticket};
use burn_ir::{BackendIr, OperationIr, TensorId, TensorIr};

use super::Recorder;
use crate::plan;

/// Ranks that compute on `B`: what [`Dist<B>`](super::Dist) records for.
pub struct Ranks<B>(PhantomData<fn() -> B>);

impl<B: BackendIr> Inner for Ranks<B> {
    type Recorder = Recorder<B>;

    fn open(device: &MeshDevice) -> Recorder<B> {
        Recorder::new(device)
    }

    fn has_ctc_loss_backward() -> bool {
        B::has_ctc_loss_backward()
    }
}

impl<B: BackendIr> burn_dist_door::Recorder for Recorder<B> {
    #[inline]
    fn record(&mut self, op: OperationIr) {
        Self::record(self, op.into());
    }

    fn drop_tensor(&mut self, id: TensorId) {
        Self::drop_tensor(self, id);
    }

    fn enter(&mut self, id: TensorId, data: TensorData, origin: Origin) {
        let origin = match origin {
            Origin::Data => plan::Origin::Data,
            Origin::Constants => plan::Origin::Constants,
        };
        self.add_data(id, data, origin);
    }

    fn read(&mut self, tensors: Vec<TensorIr>) -> Vec<Ticket<TensorData>> {
        let tickets = Self::read(self, tensors).into_iter();
        tickets
            .map(|ticket| -> Ticket<TensorData> {
                Box::new(|| ticket.wait().map_err(|fault| fault.to_string()))
            })
            .collect()
    }

    fn sync(&mut self) -> Ticket<()> {
        let ticket = Self::sync(self);
        Box::new(|| ticket.wait().map_err(|fault| fault.to_string()))
    }

    fn seed(&mut self, seed: u64) {
        Self::seed(self, seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(&self.inner_device(), dtype)
    }

    fn path_of(&self, tensor: &TensorIr) -> Option<String> {
        Self::path_of(self, tensor)
    }

    fn stopped(&self) -> Option<String> {
        self.fault().map(|fault| fault.to_string())
    }

    fn queue(&self) -> Arc<Queue> {
        Self::queue(self).clone()
    }

    fn close(&mut self) -> Box<dyn Any + Send> {
        Box::new(Self::close(self))
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
