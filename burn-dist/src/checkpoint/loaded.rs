//! States of optimizers that were loaded onto a mesh, as the record that Burn loads.
//!
//! Burn makes the state of an optimizer on its default device, and moves it to the mesh with the next step. So the
//! record has data of the host with the tensors of the mesh behind it: nothing is read, and the step finds them there.
//! That takes a device which keeps data as it gets it, Flex; any other one gets the values.
//!
//! Records are Burn's own: only an optimizer makes one. [`Keeper`] is one that has these states, and no other purpose.

use std::collections::BTreeMap;
use std::sync::{Arc, Once};

use burn_backend::TensorMetadata;
use burn_backend::ops::FloatTensorOps;
use burn_core::backend::tensor::FloatTensor;
use burn_core::module::{Module, ModuleMapper, Param};
use burn_core::tensor::{DType, Device, Tensor, TensorData};
use burn_dist_door::{AnyTensor, Resident, RouterClient, SMALLEST, data_of};
use burn_dist_engine::warn::warn;
use burn_optim::{
    GradientsParams, LearningRate, ModuleOptimizer, Optimizer, OptimizerRecord, RecordState,
    StateSink, StateSource,
};
use burn_pack::Scalar;
use burn_std::future::block_on;

use super::StateError;
use super::settle::apart;
use crate::mesh::DType as MeshDType;
use crate::ops::dtype::of_burn;
use crate::record::parts::Parts;
use crate::run::Fault;
use crate::{Dist, MeshDevice};

/// Burn's default device, on which it makes the state of an optimizer.
pub(super) struct Host {
    /// The type that it has floats in.
    dtype: DType,
    /// True if it keeps data as it gets it, and hands it out so.
    keeps: bool,
}

impl Host {
    pub(super) fn new() -> Self {
        let device = Device::default();
        let dtype: DType = device.settings().float_dtype.into();
        Self {
            dtype,
            keeps: device == Device::flex() && dtype.size() >= SMALLEST,
        }
    }

    /// Checks that a state of this type can be loaded.
    ///
    /// # Errors
    /// [`StateError::Mismatch`].
    pub(super) fn takes(&self, key: &str, found: MeshDType) -> Result<(), StateError> {
        let host = of_burn(self.dtype);
        let reason = match found.is_float() {
            false => format!("it is in {found}, and the state of optimizers is in floats"),
            true if self.keeps || found == host => return Ok(()),
            true => format!(
                "it is in {found}, and Burn makes the state of optimizers on its default device, in {host}: where that \
                 is Flex (`BURN_DEVICE=flex`) with floats of {SMALLEST} bytes or more, it can be in any type of floats"
            ),
        };
        let name = key.to_string();
        Err(StateError::Mismatch { name, reason })
    }

    /// Returns a float tensor of a mesh as data of the host. Moved to its mesh, it is the tensor, in the type that it
    /// has there.
    ///
    /// # Errors
    /// [`StateError::Unread`].
    pub(super) fn data_of(&self, key: &str, tensor: AnyTensor) -> Result<TensorData, StateError> {
        let tensor = Dist::float_of(tensor);
        let tensor = tensor.ok_or_else(|| Fault::bug("a float was made as something else"))?;
        let shape = TensorMetadata::shape(&tensor);
        let behind = Loaded {
            tensor,
            dtype: self.dtype,
        };
        if self.keeps {
            return Ok(data_of(behind, shape, self.dtype));
        }
        behind.data().map_err(|reason| {
            let name = key.to_string();
            StateError::Unread { name, reason }
        })
    }
}

/// A tensor behind data of the host.
struct Loaded {
    tensor: FloatTensor<Dist>,
    /// The type of the data.
    dtype: DType,
}

impl Loaded {
    fn data(&self) -> Result<TensorData, String> {
        let read = block_on(Dist::float_into_data(self.tensor.clone()));
        let data = read.map_err(|error| error.to_string())?;
        Ok(data.convert_dtype(self.dtype))
    }
}

impl Resident for Loaded {
    fn device(&self) -> MeshDevice {
        self.tensor.client.device()
    }

    fn tensor(&self) -> AnyTensor {
        Box::new(self.tensor.clone())
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        static WARNED: Once = Once::new();
        let found = TensorMetadata::dtype(&self.tensor);
        if found != self.dtype {
            let (found, host) = (of_burn(found), of_burn(self.dtype));
            WARNED.call_once(|| {
                warn(&format!(
                    "the state of a loaded optimizer is read in {host}, and is in {found}: a program that steps one of \
                     two clones of it has to load it twice instead"
                ));
            });
        }
        self.data().map(|data| data.as_bytes().to_vec())
    }
}

/// The state of a parameter.
#[derive(Default)]
pub(super) struct State {
    /// The number of dims of the parameter.
    pub rank: u64,
    pub tensors: Vec<(String, TensorData)>,
    pub scalars: Vec<(String, Scalar)>,
}

impl State {
    /// Returns a state with the same names, and an element in each tensor.
    pub(super) fn small(&self) -> Self {
        let tensors = self.tensors.iter().map(|(name, data)| {
            let shape = vec![1; data.shape().num_dims()];
            (name.clone(), TensorData::zeros::<f32, _>(shape))
        });
        Self {
            rank: self.rank,
            tensors: tensors.collect(),
            scalars: self.scalars.clone(),
        }
    }
}

/// Returns the record of an optimizer of `model` with these states, by the ids of parameters.
///
/// # Errors
/// The id of a state that does not go with its parameter, and the number of dims that the parameter has; `None` if it
/// is no float.
pub(super) fn record_of<M: Module>(
    states: BTreeMap<u64, State>,
    model: &M,
) -> Result<OptimizerRecord, (u64, Option<u64>)> {
    let states = Arc::new(states);
    let mut blank = Blank {
        states: &states,
        device: Device::default().autodiff(),
        gradients: GradientsParams::new(),
        ranks: BTreeMap::new(),
    };
    let module = apart(model).map(&mut blank);
    let Blank {
        gradients, ranks, ..
    } = blank;
    for (id, state) in states.iter() {
        let rank = ranks.get(id).copied();
        if rank != Some(state.rank) {
            return Err((*id, rank));
        }
    }
    let mut optimizer = ModuleOptimizer::from(Keeper(states));
    optimizer.step(0.0, module, gradients);
    Ok(optimizer.to_record())
}

/// Gives parameters no elements, on the host, and those with a state a gradient without any.
struct Blank<'a> {
    states: &'a BTreeMap<u64, State>,
    device: Device,
    gradients: GradientsParams,
    /// The numbers of dims of floats, by their ids.
    ranks: BTreeMap<u64, u64>,
}

impl ModuleMapper for Blank<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let empty = Tensor::<D>::empty([0; D], &self.device);
        self.ranks.insert(param.id.val(), D as u64);
        if self.states.contains_key(&param.id.val()) {
            self.gradients
                .register::<D>(param.id, empty.clone().inner());
        }
        Param::initialized(param.id, empty)
    }
}

/// An optimizer that has states, by the ids of parameters.
#[derive(Clone)]
struct Keeper(Arc<BTreeMap<u64, State>>);

/// The state of a parameter of [`Keeper`]: its record finds it by the parameter's id.
#[derive(Clone)]
struct Kept<const D: usize>(Arc<BTreeMap<u64, State>>);

impl Optimizer for Keeper {
    type State<const D: usize> = Kept<D>;

    fn step<const D: usize>(
        &self,
        _: LearningRate,
        tensor: Tensor<D>,
        _: Tensor<D>,
        _: Option<Kept<D>>,
    ) -> (Tensor<D>, Option<Kept<D>>) {
        (tensor, Some(Kept(self.0.clone())))
    }

    fn to_device<const D: usize>(state: Kept<D>, _: &Device) -> Kept<D> {
        state
    }
}

impl<const D: usize> RecordState for Kept<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        let Some(state) = prefix.parse().ok().and_then(|id: u64| self.0.get(&id)) else {
            return;
        };
        for (field, data) in &state.tensors {
            out.push_tensor(prefix, field, data.clone());
        }
        for (field, scalar) in &state.scalars {
            out.push_scalar(prefix, field, *scalar);
        }
    }

    /// Nobody loads a record into a [`Keeper`].
    fn state_unflatten(_: &str, _: &mut StateSource, _: &Device) -> Option<Self> {
        None
    }
}
