//! Installing specs on the parameters of a module.

use super::walk::Burn;
use super::{ParallelError, ParamSpec, Plan};
use crate::Dist;
use crate::bridge::{Tracked, mesh_device, on_mesh};
use crate::mesh::MeshShape;
use crate::ops::int8::is_packed;
use burn_core::backend::BackendTensor;
use burn_core::module::{Module, ModuleMapper, Param, ParamMapper};
use burn_core::tensor::{Device, Tensor};
use burn_dist_engine::Annotate;
use burn_dist_engine::warn::warn;
use burn_dist_front::parallel::{Line, idle, idle_axes};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::IntoIter;

/// Parallelises any Burn module, foreign ones too, by a plan of path patterns.
pub trait ParallelizeWith: Module {
    /// Places every float parameter as `plan` says, now and whenever it is loaded from a record.
    ///
    /// Lazy parameters stay lazy, ids stay, and other load and save mappers (`LinearLayout::Col`) go on working. Int
    /// and bool parameters and constant tensors are left alone, and so are quantized values, which stay whole on every
    /// rank, but for a base of adapters that rests in 8 bits.
    ///
    /// Only `plan` counts: to amend a module's own attributes, start from [`crate::Parallelize::plan`].
    ///
    /// An axis that splits the model (`tp`), and over which none of its parameters and none of the layouts that the
    /// plan says of activations is split, is a warning: ranks along it all compute the same, unless the program itself
    /// splits tensors over it.
    ///
    /// # Communication
    /// None by itself: layouts are recorded, and moves happen where values are used.
    /// # Panics
    /// Not here, but later: a parameter that is loaded panics with [`ParallelError::RecordShape`] if it has another
    /// shape. Burn's `load_record` says so itself before.
    /// # Errors
    /// Those of [`Plan::resolve`], and [`ParallelError::OtherMesh`] and [`ParallelError::NoMesh`] if the model lives
    /// elsewhere.
    fn parallelize_with(
        self,
        mesh: &impl AsRef<MeshShape>,
        plan: &Plan,
    ) -> Result<Self, ParallelError> {
        let mesh = mesh.as_ref();
        let specs = plan.resolve_tree(&Burn::tree(&self), mesh)?;
        for axis in idle_axes(&specs, mesh) {
            warn(&idle(axis, mesh));
        }
        let mut installer = Installer {
            specs: specs.into_iter(),
            mesh,
            error: None,
        };
        let module = self.map(&mut installer);
        match installer.error {
            Some(error) => Err(error),
            None => Ok(module),
        }
    }
}

impl<M: Module> ParallelizeWith for M {}

struct Installer<'a> {
    /// In the order of the walk.
    specs: IntoIter<ParamSpec>,
    mesh: &'a MeshShape,
    error: Option<ParallelError>,
}

impl Installer<'_> {
    /// Returns the spec of the next parameter, which is on `device`.
    fn spec(&mut self, device: &Device) -> Result<ParamSpec, ParallelError> {
        let spec = self.specs.next();
        let spec = spec.expect("`Module::map` reaches the parameters that it reached before");
        let Some(found) = mesh_device(device) else {
            return Err(ParallelError::NoMesh {
                path: spec.path,
                device: format!("{device:?}"),
                asked: self.mesh.clone(),
            });
        };
        match Dist::mesh_shape(found) {
            Some(found) if found != *self.mesh => Err(ParallelError::OtherMesh {
                path: spec.path,
                asked: self.mesh.clone(),
                found,
            }),
            _ => Ok(spec),
        }
    }
}

/// Int and bool parameters, and flags, are left as they are.
impl ModuleMapper for Installer<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() {
            return param;
        }
        match self.spec(&param.lazy_device()) {
            Ok(spec) => install(param, spec),
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

/// Pins a parameter now, or when it is initialised, and whenever it is loaded.
///
/// `Param::load_mapper` replaces the mapper there may be, so ours runs that one first.
fn install<const D: usize>(param: Param<Tensor<D>>, spec: ParamSpec) -> Param<Tensor<D>> {
    if param.is_initialized() {
        let (id, tensor, mapper) = param.consume();
        let expected = tensor.dims();
        let tensor = pin(tensor, &spec);
        return Param::from_mapped_value(id, tensor, mapper.clone()).load_mapper(move |loaded| {
            let loaded = mapper.on_load(untracked(loaded));
            check_loaded(&spec.path, &expected, &loaded.dims());
            pin(loaded, &spec)
        });
    }
    // Burn states the shape before the mappers, and records hold it so too.
    let expected = param.lazy_shape().to_vec();
    let recipe = Arc::new(Mutex::new(Recipe::Lazy(param.clone())));
    let (at_init, made) = (spec.clone(), recipe.clone());
    param
        .init_mapper(move |tensor| {
            Recipe::made(&made);
            pin(tensor, &at_init)
        })
        .load_mapper(move |loaded| {
            check_loaded(&spec.path, &expected, &loaded.dims());
            pin(Recipe::load(&recipe, untracked(loaded)), &spec)
        })
}

/// The load mapper of a parameter that was lazy when ours came on top.
///
/// A lazy parameter hands out its mapper only by loading. Clones of it share the value that it gets, so one that is
/// kept would keep that value too: once there is one, only the mapper is kept.
enum Recipe<const D: usize> {
    Lazy(Param<Tensor<D>>),
    Made(ParamMapper<Tensor<D>>),
}

impl<const D: usize> Recipe<D> {
    /// Notes that the parameter has its value.
    fn made(recipe: &Mutex<Self>) {
        let mut recipe = recipe.lock().unwrap_or_else(PoisonError::into_inner);
        let mapper = match &*recipe {
            Self::Lazy(param) => param.clone().consume().2,
            Self::Made(_) => return,
        };
        *recipe = Self::Made(mapper);
    }

    /// Returns what the mapper makes of a loaded tensor.
    fn load(recipe: &Mutex<Self>, loaded: Tensor<D>) -> Tensor<D> {
        let recipe = recipe.lock().unwrap_or_else(PoisonError::into_inner);
        match &*recipe {
            Self::Made(mapper) => mapper.on_load(loaded),
            Self::Lazy(param) => {
                let id = param.id;
                let loaded = param.clone().transform_for_load(loaded, id);
                untracked(loaded.into_value())
            }
        }
    }
}

/// Checks the shape of a loaded parameter: Burn itself takes any, and the model would fail somewhere else, or compute
/// something else.
///
/// # Panics
/// If it is not the expected one: a mapper returns no result.
fn check_loaded(path: &str, expected: &[usize], found: &[usize]) {
    if expected != found {
        let error = ParallelError::RecordShape {
            path: path.into(),
            expected: expected.into(),
            found: found.into(),
        };
        panic!("{error}");
    }
}

/// Returns a loaded tensor without tracking: the result of a mapper on a tracked one could not become a leaf again.
/// Burn tracks the loaded parameter afterwards.
fn untracked<const D: usize>(loaded: Tensor<D>) -> Tensor<D> {
    loaded.set_require_grad(false)
}

/// Returns the tensor with its layout pinned, tracked by autodiff as before.
fn pin<const D: usize>(tensor: Tensor<D>, spec: &ParamSpec) -> Tensor<D> {
    let (tracked, tensor_dtype) = (tensor.is_require_grad(), tensor.dtype());
    let spec = spec.clone().for_shape(&tensor.dims());
    let tensor = match on_mesh(untracked(tensor)) {
        Ok(tensor) => tensor,
        // It has been moved away from the mesh since.
        Err(tensor) => return retracked(tensor, tracked),
    };
    // The pinned tensor is a leaf: gradients belong to the parameter, not to what it was made from.
    let pinned = match &tensor.tensor {
        BackendTensor::Float(plain) => BackendTensor::Float(Dist::annotate(plain.clone(), &spec)),
        BackendTensor::Autodiff(tracked) => {
            BackendTensor::Autodiff(Tracked::annotate(tracked.clone(), &spec))
        }
        BackendTensor::Quantized(packed) if is_packed(tensor_dtype) => {
            BackendTensor::Quantized(Dist::annotate(packed.clone(), &spec))
        }
        other => {
            tracing::warn!(
                path = spec.path,
                "a quantized parameter is not split: it stays whole on every rank"
            );
            other.clone()
        }
    };
    retracked(tensor.with(pinned).into_tensor(), tracked)
}

fn retracked<const D: usize>(tensor: Tensor<D>, tracked: bool) -> Tensor<D> {
    match tracked {
        true => tensor.require_grad(),
        false => tensor,
    }
}
