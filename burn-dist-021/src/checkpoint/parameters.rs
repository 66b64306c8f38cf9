//! The parameters of any Burn module, of every kind, by their paths.

use std::collections::HashSet;
use std::marker::PhantomData;

use burn_backend::tensor::{BoolTensor, IntTensor};
use burn_backend::{
    DType as BurnDType, ExecutionError, TensorData, TensorMetadata, get_device_settings,
};
use burn_core::module::{Module, ModuleVisitor, Param, ParamId};
use burn_core::tensor::{Bool, Int, Tensor, TensorPrimitive};
use burn_std::future::block_on;

pub(super) use super::parameter::{Kind, Parameter, Unsaved};
use super::settle::{settle, unseen};
use super::write::Keyed;
use crate::mesh::DType;
use crate::ops::dtype::of_burn;
use crate::parallel::{MeshBackend, ModulePath};
use crate::record::noting;

/// Lists the parameters of a module, in the order of its visit. Those that have no value yet get none.
pub(super) fn parameters<B: MeshBackend>(module: &impl Module<B>) -> Vec<Parameter> {
    let mut lister = Lister::<B> {
        path: ModulePath::default(),
        found: Vec::new(),
        backend: PhantomData,
    };
    module.visit(&mut lister);
    lister.found
}

struct Lister<B> {
    path: ModulePath,
    found: Vec<Parameter>,
    backend: PhantomData<B>,
}

impl<B: MeshBackend> Lister<B> {
    fn push(&mut self, id: ParamId, kind: Kind, shape: Vec<usize>, dtype: BurnDType) {
        self.found.push(Parameter {
            path: self.path.path(),
            id,
            kind,
            shape,
            dtype: of_burn(dtype),
            is_packed: false,
            spec: None,
        });
    }
}

impl<B: MeshBackend> ModuleVisitor<B> for Lister<B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let (shape, dtype, device) = match param.is_initialized() {
            true => {
                let saved = saved_float(param);
                (saved.dims().to_vec(), saved.dtype(), saved.device())
            }
            false => {
                let device = param.lazy_device();
                let dtype = get_device_settings::<B>(&device).float_dtype.into();
                (param.lazy_shape().to_vec(), dtype, device)
            }
        };
        let spec = noting(|| {
            // What is loaded into it would go where its load mapper says.
            let blank = Tensor::<B, D>::zeros(shape.clone(), &device);
            drop(param.clone().transform_for_load(blank, param.id));
        });
        self.push(param.id, Kind::Float, shape, dtype);
        if let Some(found) = self.found.last_mut() {
            found.spec = spec.into_iter().next_back();
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        let (shape, dtype) = match param.is_initialized() {
            true => {
                let saved = param.transform_for_save().into_value();
                (saved.dims().to_vec(), saved.dtype())
            }
            false => {
                let dtype = get_device_settings::<B>(&param.lazy_device()).int_dtype;
                (param.lazy_shape().to_vec(), dtype.into())
            }
        };
        self.push(param.id, Kind::Int, shape, dtype);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        let (shape, dtype) = match param.is_initialized() {
            true => {
                let saved = param.transform_for_save().into_value();
                (saved.dims().to_vec(), saved.dtype())
            }
            false => {
                let dtype = get_device_settings::<B>(&param.lazy_device()).bool_dtype;
                (param.lazy_shape().to_vec(), dtype.into())
            }
        };
        self.push(param.id, Kind::Bool, shape, dtype);
    }
}

/// Returns the tensors of a module that records hold, with their paths. Parameters that have no value yet get one.
///
/// # Errors
/// Those of [`values`], and a quantized parameter.
pub(super) fn take_parameters<B: MeshBackend>(
    module: &impl Module<B>,
) -> Result<Vec<Keyed>, Unsaved> {
    let mut taken = Vec::new();
    for (path, value) in values::<B>(module)? {
        let tensor = match value {
            Value::Float(TensorPrimitive::Float(tensor)) => B::take_float(tensor),
            Value::Float(TensorPrimitive::QFloat(_)) => {
                let reason = "it is quantized: save the model that it was made of".into();
                return Err(Unsaved { path, reason });
            }
            Value::Int(tensor) => B::take_int(tensor),
            Value::Bool(tensor) => B::take_bool(tensor),
        };
        taken.push((path, tensor));
    }
    Ok(taken)
}

/// The value of a parameter, as records hold it.
#[derive(Clone)]
pub(super) enum Value<B: MeshBackend> {
    Float(TensorPrimitive<B>),
    Int(IntTensor<B>),
    Bool(BoolTensor<B>),
}

impl<B: MeshBackend> Value<B> {
    /// Reads all of it, in every process.
    ///
    /// # Errors
    /// What has stopped the mesh.
    pub(super) fn read(self) -> Result<TensorData, ExecutionError> {
        block_on(async {
            match self {
                Self::Float(TensorPrimitive::Float(tensor)) => B::float_into_data(tensor).await,
                Self::Float(TensorPrimitive::QFloat(tensor)) => B::q_into_data(tensor).await,
                Self::Int(tensor) => B::int_into_data(tensor).await,
                Self::Bool(tensor) => B::bool_into_data(tensor).await,
            }
        })
    }

    /// Returns the global shape.
    pub(super) fn shape(&self) -> Vec<usize> {
        match self {
            Self::Float(tensor) => tensor.shape().to_vec(),
            Self::Int(tensor) => tensor.shape().to_vec(),
            Self::Bool(tensor) => tensor.shape().to_vec(),
        }
    }

    /// Returns the type of its elements.
    pub(super) fn dtype(&self) -> DType {
        of_burn(match self {
            Self::Float(tensor) => tensor.dtype(),
            Self::Int(tensor) => tensor.dtype(),
            Self::Bool(tensor) => tensor.dtype(),
        })
    }
}

/// Returns the values of a module's parameters as records hold them, with their paths. Parameters that have no value
/// yet get one.
///
/// # Errors
/// What the module's record holds beside them.
pub(super) fn values<B: MeshBackend>(
    module: &impl Module<B>,
) -> Result<Vec<(String, Value<B>)>, Unsaved> {
    let record = settle(module);
    let mut collector = Collector::<B> {
        path: ModulePath::default(),
        values: Vec::new(),
        ids: HashSet::new(),
    };
    module.visit(&mut collector);
    let found = unseen::<B>(record, &collector.ids);
    let (path, reason) = match found {
        Ok(None) => return Ok(collector.values),
        Ok(Some(path)) => {
            let reason = "the module's record has it, and `visit` does not show it: save the record of the module, with \
                          `State::record`";
            (path, reason.to_string())
        }
        Err(error) => (String::new(), error.to_string()),
    };
    Err(Unsaved { path, reason })
}

struct Collector<B: MeshBackend> {
    path: ModulePath,
    values: Vec<(String, Value<B>)>,
    ids: HashSet<String>,
}

impl<B: MeshBackend> Collector<B> {
    fn push(&mut self, id: ParamId, value: Value<B>) {
        self.values.push((self.path.path(), value));
        self.ids.insert(id.serialize());
    }
}

impl<B: MeshBackend> ModuleVisitor<B> for Collector<B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let value = Value::Float(saved_float(param).into_primitive());
        self.push(param.id, value);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        let value = Value::Int(param.transform_for_save().into_value().into_primitive());
        self.push(param.id, value);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        let value = Value::Bool(param.transform_for_save().into_value().into_primitive());
        self.push(param.id, value);
    }
}

/// Returns what records hold of a parameter, outside of the model's graph.
fn saved_float<B: MeshBackend, const D: usize>(param: &Param<Tensor<B, D>>) -> Tensor<B, D> {
    // A clone of one that has no value yet would get another.
    drop(param.val());
    let (_, tensor, mapper) = param.clone().consume();
    mapper.on_save(tensor.set_require_grad(false))
}
