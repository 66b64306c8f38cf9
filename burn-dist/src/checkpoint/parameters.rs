//! The parameters of any Burn module, of every kind, by their paths.

use std::marker::PhantomData;

use burn_core::module::{Module, ModuleVisitor, Param, ParamId};
use burn_core::tensor::{Bool, Int, Tensor, TensorPrimitive};
use burn_dist_plan::ParamSpec;

use crate::mesh::DType;
use crate::ops::dtype::of_burn;
use crate::parallel::{MeshBackend, Place};
use crate::record::intercept::noting;
use crate::record::parts::Taken;
use burn_backend::get_device_settings;
use burn_core::tensor::DType as BurnDType;

/// The elements of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float,
    Int,
    Bool,
}

/// A parameter as records hold it: after its save mapper, before its load mapper.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Dotted path from the root of the module.
    pub path: String,
    /// Random, and different in every process.
    pub id: ParamId,
    pub kind: Kind,
    pub shape: Vec<usize>,
    pub dtype: DType,
    /// What `parallelize` has said of it.
    pub spec: Option<ParamSpec>,
}

/// Lists the parameters of a module, in the order of its visit. Those that have no value yet get none.
pub fn parameters<B: MeshBackend>(module: &impl Module<B>) -> Vec<Parameter> {
    let mut lister = Lister::<B> {
        place: Place::default(),
        found: Vec::new(),
        backend: PhantomData,
    };
    module.visit(&mut lister);
    lister.found
}

struct Lister<B> {
    place: Place,
    found: Vec<Parameter>,
    backend: PhantomData<B>,
}

impl<B: MeshBackend> Lister<B> {
    fn push(&mut self, id: ParamId, kind: Kind, shape: Vec<usize>, dtype: BurnDType) {
        self.found.push(Parameter {
            path: self.place.path(),
            id,
            kind,
            shape,
            dtype: of_burn(dtype),
            spec: None,
        });
    }
}

impl<B: MeshBackend> ModuleVisitor<B> for Lister<B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.place.exit();
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
                let saved = saved_int(param);
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
                let saved = saved_bool(param);
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
/// The path of a quantized parameter.
pub fn take_parameters<B: MeshBackend>(
    module: &impl Module<B>,
) -> Result<Vec<(String, Box<dyn Taken>)>, String> {
    let mut taker = Taker::<B> {
        place: Place::default(),
        taken: Vec::new(),
        quantized: None,
        backend: PhantomData,
    };
    module.visit(&mut taker);
    match taker.quantized {
        Some(path) => Err(path),
        None => Ok(taker.taken),
    }
}

struct Taker<B> {
    place: Place,
    taken: Vec<(String, Box<dyn Taken>)>,
    quantized: Option<String>,
    backend: PhantomData<B>,
}

impl<B: MeshBackend> ModuleVisitor<B> for Taker<B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.place.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let path = self.place.path();
        match saved_float(param).into_primitive() {
            TensorPrimitive::Float(tensor) => self.taken.push((path, B::take_float(tensor))),
            TensorPrimitive::QFloat(_) => self.quantized = Some(path),
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        let tensor = saved_int(param).into_primitive();
        self.taken.push((self.place.path(), B::take_int(tensor)));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        let tensor = saved_bool(param).into_primitive();
        self.taken.push((self.place.path(), B::take_bool(tensor)));
    }
}

/// Returns what records hold of a parameter, which gets a value if it has none: a clone would get another one.
macro_rules! saved {
    ($($name:ident, $kind:ident;)*) => {$(
        fn $name<B: MeshBackend, const D: usize>(
            param: &Param<Tensor<B, D, $kind>>,
        ) -> Tensor<B, D, $kind> {
            drop(param.val());
            let (_, tensor, mapper) = param.clone().consume();
            mapper.on_save(tensor)
        }
    )*};
}

saved! {
    saved_int, Int;
    saved_bool, Bool;
}

fn saved_float<B: MeshBackend, const D: usize>(param: &Param<Tensor<B, D>>) -> Tensor<B, D> {
    drop(param.val());
    let (_, tensor, mapper) = param.clone().consume();
    // What the mapper does is no part of the model's graph.
    mapper.on_save(tensor.set_require_grad(false))
}
