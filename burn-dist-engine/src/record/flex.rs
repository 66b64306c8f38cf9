//! The recorder and the ranks of `Dist<Flex>`, compiled in this crate.
//!
//! They are generic over the inner backend, and generic code is compiled in the crate that uses it: without this file,
//! every program and every test would compile planner, recorder and ranks once more. Where a profile has an
//! optimisation level of 0 or 1, rustc takes what a dependency has compiled already.

use burn_backend::{ExecutionError, TensorData};
use burn_flex::Flex;
use burn_ir::{OperationIr, TensorIr};
use burn_router::{RouterTensor, RunnerClient};
use burn_std::future::DynFut;

use super::{MeshClient, MeshDevice, Recorder};
use crate::ops::Recorded;

type Client = MeshClient<Flex>;

/// Names what is compiled; a static is a reason to compile what it points to.
#[used]
static COMPILED: Functions = Functions {
    new: Client::new,
    record: Client::record,
    register_op: <Client as RunnerClient>::register_op,
    read: <Client as RunnerClient>::read_tensor_async,
    data: <Client as RunnerClient>::register_tensor_data,
    sync: <Client as RunnerClient>::sync,
    tensor: RouterTensor::into_ir,
    close: |recorder| drop(recorder.close()),
};

#[expect(dead_code, reason = "nothing calls them here")]
struct Functions {
    new: fn(&MeshDevice) -> Client,
    record: fn(&Client, Recorded),
    register_op: fn(&Client, OperationIr),
    read: fn(&Client, TensorIr) -> DynFut<Result<TensorData, ExecutionError>>,
    data: fn(&Client, TensorData) -> RouterTensor<Client>,
    sync: fn(&Client) -> Result<(), ExecutionError>,
    tensor: fn(RouterTensor<Client>) -> TensorIr,
    close: fn(&mut Recorder<Flex>),
}
