//! Tensors of Flex in a map, for tests of the kernels that run operations.

use std::collections::HashMap;

use burn_backend::{BackendTypes, Scalar, TensorData};
use burn_flex::{Flex, FlexTensor};
use burn_ir::{BackendIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use burn_std::DType;
use burn_std::future::block_on;

use super::bridge::from_flex;
use crate::ops::execute::{Env, into_data};

type Handle = <Flex as BackendIr>::Handle;

#[derive(Clone, Default)]
pub(super) struct Map {
    handles: HashMap<TensorId, Handle>,
    device: <Flex as BackendTypes>::Device,
}

impl Env<Flex> for Map {
    fn take(&mut self, tensor: &TensorIr) -> Handle {
        self.handles[&tensor.id].clone()
    }
    fn put(&mut self, tensor: &TensorIr, handle: Handle) {
        self.handles.insert(tensor.id, handle);
    }
    fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        (*scalar).into()
    }
    fn device(&self) -> &<Flex as BackendTypes>::Device {
        &self.device
    }
}

impl Map {
    /// Makes a tensor, whose last two dims are turned in memory if it says so.
    pub(super) fn with(&mut self, tensor: &TensorIr, turned: bool) {
        let seed = tensor.id.value() as usize * 7919;
        let value = |at: usize| ((at * 31 + seed) % 1009) as f32 * 0.0137 - 6.9;
        self.with_values(tensor, turned, value);
    }

    /// Makes a tensor of values by their place in memory.
    pub(super) fn with_values(
        &mut self,
        tensor: &TensorIr,
        turned: bool,
        value: impl Fn(usize) -> f32,
    ) {
        let mut shape = tensor.shape.as_slice().to_vec();
        let last = shape.len() - 1;
        if turned {
            shape.swap(last - 1, last);
        }
        let len: usize = shape.iter().product();
        let data = TensorData::new((0..len).map(value).collect(), shape);
        let made = FlexTensor::from_data(data.convert_dtype(tensor.dtype));
        let made = match turned {
            false => made,
            true => made.transpose(last - 1, last),
        };
        let handle = from_flex::<Flex>(made, tensor.dtype).expect("it is Flex's");
        self.handles.insert(tensor.id, handle);
    }

    pub(super) fn read(&self, tensor: &TensorIr) -> TensorData {
        let handle = self.handles[&tensor.id].clone();
        block_on(into_data::<Flex>(
            handle,
            tensor.shape.clone(),
            tensor.dtype,
        ))
        .unwrap()
    }
}

pub(super) fn tensor(id: u64, shape: &[usize], dtype: DType, status: TensorStatus) -> TensorIr {
    TensorIr {
        id: TensorId::new(id),
        shape: shape.to_vec().into(),
        status,
        dtype,
    }
}
