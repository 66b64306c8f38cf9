//! The parameters of any Burn module, of every kind, by their paths.

use burn_core::backend::BackendTensor;
use burn_core::module::{Module, ModuleVisitor, Param, ParamId};
use burn_core::tensor::kind::Basic;
use burn_core::tensor::{
    Bool, DType as BurnDType, Device, ExecutionError, Int, Tensor, TensorData,
};
use burn_std::future::block_on;

pub(super) use super::parameter::{Kind, Parameter, Unsaved};
use super::settle::settle;
use super::write::Keyed;
use crate::Dist;
use crate::bridge::{on_mesh, taken};
use crate::mesh::DType;
use crate::ops::dtype::of_burn;
use crate::ops::int8::is_packed;
use crate::parallel::ModulePath;
use crate::record::noting;

/// Lists the parameters of a module, in the order of its visit. Those that have no value yet get none.
pub(super) fn parameters(module: &impl Module) -> Vec<Parameter> {
    listed(module).0
}

/// Does the same as [`parameters`]; returns also of each whether it is attached to another one, as a factor of LoRA is.
pub(super) fn listed(module: &impl Module) -> (Vec<Parameter>, Vec<bool>) {
    let mut lister = Lister {
        path: ModulePath::default(),
        found: Vec::new(),
        are_attached: Vec::new(),
    };
    module.visit(&mut lister);
    (lister.found, lister.are_attached)
}

struct Lister {
    path: ModulePath,
    found: Vec<Parameter>,
    are_attached: Vec<bool>,
}

impl Lister {
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
        self.are_attached.push(self.path.is_attached());
    }
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // What is made of 8 bits to be saved is not made to be listed.
        let rests_in_8_bits = |dtype| is_packed(dtype).then_some(BurnDType::BF16);
        let (shape, known, device) = match param.is_initialized() {
            true if is_packed(param.base().dtype()) => {
                let base = param.base();
                (base.dims().to_vec(), Some(base.dtype()), base.device())
            }
            true => {
                let saved = saved_float(param);
                (saved.dims().to_vec(), Some(saved.dtype()), saved.device())
            }
            false => (param.lazy_shape().to_vec(), None, param.lazy_device()),
        };
        // What is loaded into it would go where its load mapper says, and have the type that it makes.
        let mut loaded = BurnDType::F32;
        let spec = noting(|| {
            let blank = Tensor::<D>::zeros(shape.clone(), &device);
            let made = param.clone().transform_for_load(blank, param.id);
            loaded = made.base().dtype();
        });
        let dtype = known.unwrap_or(loaded);
        let saved = rests_in_8_bits(dtype);
        self.push(param.id, Kind::Float, shape, saved.unwrap_or(dtype));
        if let Some(found) = self.found.last_mut() {
            found.spec = spec.into_iter().next_back();
            found.is_packed = saved.is_some();
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let (shape, dtype) = match param.is_initialized() {
            true => {
                let saved = param.transform_for_save().into_value();
                (saved.dims().to_vec(), saved.dtype())
            }
            false => {
                let dtype = param.lazy_device().settings().int_dtype;
                (param.lazy_shape().to_vec(), dtype.into())
            }
        };
        self.push(param.id, Kind::Int, shape, dtype);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let (shape, dtype) = match param.is_initialized() {
            true => {
                let saved = param.transform_for_save().into_value();
                (saved.dims().to_vec(), saved.dtype())
            }
            false => {
                let dtype = param.lazy_device().settings().bool_dtype;
                (param.lazy_shape().to_vec(), dtype.into())
            }
        };
        self.push(param.id, Kind::Bool, shape, dtype);
    }
}

/// Returns the tensors of a module that records hold, with their paths. Parameters that have no value yet get one.
///
/// # Errors
/// A quantized parameter, and one that is on no mesh.
pub(super) fn take_parameters(module: &impl Module) -> Result<Vec<Keyed>, Unsaved> {
    let mut all = Vec::new();
    for (path, value) in values(module) {
        match value.take() {
            Ok(tensor) => all.push((path, tensor)),
            Err(reason) => return Err(Unsaved { path, reason }),
        }
    }
    Ok(all)
}

/// The value of a parameter, as records hold it: a tensor of any number of dims and kind.
pub(super) struct Value {
    /// True if it is attached to another parameter, as a factor of LoRA is.
    pub(super) is_attached: bool,
    shape: Vec<usize>,
    dtype: BurnDType,
    device: Device,
    tensor: Option<BackendTensor<Dist>>,
    read: Box<dyn Fn() -> Result<TensorData, ExecutionError>>,
}

impl Value {
    fn new<const D: usize, K: Basic + 'static>(tensor: Tensor<D, K>, is_attached: bool) -> Self {
        let on_mesh = on_mesh(tensor.clone()).ok();
        Self {
            is_attached,
            shape: tensor.dims().to_vec(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            tensor: on_mesh.map(|tensor| tensor.tensor),
            read: Box::new(move || block_on(tensor.clone().into_data_async())),
        }
    }

    /// Reads all of it, in every process.
    ///
    /// # Errors
    /// What has stopped the mesh.
    pub(super) fn read(&self) -> Result<TensorData, ExecutionError> {
        (self.read)()
    }

    /// Returns the global shape.
    pub(super) fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    /// Returns the type of its elements.
    pub(super) fn dtype(&self) -> DType {
        of_burn(self.dtype)
    }

    fn take(self) -> Result<Box<dyn crate::record::parts::Taken>, String> {
        match self.tensor {
            Some(BackendTensor::Quantized(_)) => {
                Err("it is quantized: save the model that it was made of".into())
            }
            Some(tensor) => Ok(taken(tensor)),
            None => Err(format!(
                "it is on {:?}, which is no device of a mesh",
                self.device
            )),
        }
    }
}

/// Returns the values of a module's parameters as records hold them, with their paths. Parameters that have no value
/// yet get one.
pub(super) fn values(module: &impl Module) -> Vec<(String, Value)> {
    settle(module);
    let mut collector = Collector {
        path: ModulePath::default(),
        values: Vec::new(),
    };
    module.visit(&mut collector);
    collector.values
}

struct Collector {
    path: ModulePath,
    values: Vec<(String, Value)>,
}

impl Collector {
    fn push<const D: usize, K: Basic + 'static>(&mut self, tensor: Tensor<D, K>) {
        let value = Value::new(tensor, self.path.is_attached());
        self.values.push((self.path.path(), value));
    }
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.push(saved_float(param));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.push(param.transform_for_save().into_value());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.push(param.transform_for_save().into_value());
    }
}

/// Returns what records hold of a parameter, outside of the model's graph.
fn saved_float<const D: usize>(param: &Param<Tensor<D>>) -> Tensor<D> {
    let (_, tensor, mapper) = param.clone().consume();
    mapper.on_save(tensor.set_require_grad(false)).inner()
}
