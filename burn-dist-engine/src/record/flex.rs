//! The recorder and the ranks of programs on Flex, compiled in this crate.
//!
//! They are generic over the inner backend, and generic code is compiled in the crate that uses it: without this file,
//! every program and every test would compile planner, recorder and ranks once more. Where a profile has an
//! optimisation level of 0 or 1, rustc takes what a dependency has compiled already.

use burn_backend::ExecutionError;
use burn_dist_door::{Inner, MeshClient, RouterClient};
use burn_flex::Flex;
use burn_ir::{OperationIr, TensorIr};
use burn_router::RouterTensor;
use burn_std::future::DynFut;

use super::program::OnFlex;
use super::{MeshDevice, Recorder};
use crate::burn::data::*;
use crate::ops::Recorded;

type Client = MeshClient<OnFlex>;

/// Names what is compiled; a static is a reason to compile what it points to.
#[used]
static COMPILED: Functions = Functions {
    open: Recorder::new,
    client: <OnFlex as Inner>::open,
    record: Recorder::record,
    register_op: <Client as RouterClient>::register_op,
    read: <Client as RouterClient>::read_tensor_async,
    data: <Client as RouterClient>::register_tensor_data,
    sync: <Client as RouterClient>::sync,
    tensor: RouterTensor::into_ir,
    close: |recorder| drop(recorder.close()),
};

#[expect(dead_code, reason = "nothing calls them here")]
struct Functions {
    open: fn(&MeshDevice) -> Recorder<Flex>,
    client: fn(&MeshDevice) -> <OnFlex as Inner>::Recorder,
    record: fn(&mut Recorder<Flex>, Recorded),
    register_op: fn(&Client, OperationIr),
    read: fn(&Client, TensorIr) -> DynFut<Result<TensorData, ExecutionError>>,
    data: fn(&Client, TensorData) -> RouterTensor<Client>,
    sync: fn(&Client) -> Result<(), ExecutionError>,
    tensor: fn(RouterTensor<Client>) -> TensorIr,
    close: fn(&mut Recorder<Flex>),
}
