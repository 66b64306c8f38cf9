//! Installing specs on the parameters of a module.

use super::walk::Burn021;
use super::{Annotate, ParallelError, ParamSpec, Plan};
use crate::mesh::MeshShape;
use burn_core::module::{Module, ModuleMapper, Param};
use burn_core::tensor::{Bool, Int, Tensor, TensorPrimitive};
use burn_dist_engine::warn::warn;
use burn_dist_front::parallel::{Line, idle, idle_axes};
use core::marker::PhantomData;
use std::vec::IntoIter;

/// Parallelises any Burn module, foreign ones too, by a plan of path patterns.
pub trait ParallelizeWith<B: Annotate>: Module<B> {
    /// Places every float parameter as `plan` says, now and whenever it is loaded from a record.
    ///
    /// Lazy parameters stay lazy, ids stay, and other load and save mappers (`LinearLayout::Col`) go on working. Int
    /// and bool parameters and constant tensors are left alone, and so are quantized values, which stay whole on every
    /// rank.
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
    /// Not here, but later: `load_record` panics with [`ParallelError::RecordShape`] if the record holds a parameter of
    /// another shape.
    /// # Errors
    /// Those of [`Plan::resolve`], and [`ParallelError::OtherMesh`] if the model lives on another mesh.
    fn parallelize_with(
        self,
        mesh: &impl AsRef<MeshShape>,
        plan: &Plan,
    ) -> Result<Self, ParallelError> {
        let mesh = mesh.as_ref();
        let specs = plan.resolve_tree(&Burn021::tree(&self), mesh)?;
        for axis in idle_axes(&specs, mesh) {
            warn(&idle(axis, mesh));
        }
        let mut installer = Installer::<B> {
            specs: specs.into_iter(),
            mesh,
            error: None,
            backend: PhantomData,
        };
        let module = self.map(&mut installer);
        match installer.error {
            Some(error) => Err(error),
            None => Ok(module),
        }
    }
}

impl<B: Annotate, M: Module<B>> ParallelizeWith<B> for M {}

struct Installer<'a, B> {
    /// In the order of the walk.
    specs: IntoIter<ParamSpec>,
    mesh: &'a MeshShape,
    error: Option<ParallelError>,
    backend: PhantomData<B>,
}

impl<B: Annotate> Installer<'_, B> {
    /// Returns the spec of the next parameter, which is on `device`.
    fn spec(&mut self, device: &B::Device) -> Result<ParamSpec, ParallelError> {
        let spec = self.specs.next();
        let spec = spec.expect("`Module::map` reaches the parameters that it reached before");
        match B::mesh_shape(device) {
            Some(found) if found != *self.mesh => Err(ParallelError::OtherMesh {
                path: spec.path,
                asked: self.mesh.clone(),
                found,
            }),
            _ => Ok(spec),
        }
    }
}

impl<B: Annotate> ModuleMapper<B> for Installer<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
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

    // The defaults would initialise the parameters.
    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        param
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        param
    }
}

/// Pins a parameter now, or when it is initialised, and whenever it is loaded.
///
/// `Param::load_mapper` replaces the mapper there may be, so ours runs that one first.
fn install<B: Annotate, const D: usize>(
    param: Param<Tensor<B, D>>,
    spec: ParamSpec,
) -> Param<Tensor<B, D>> {
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
    // A lazy parameter hands out its mappers only by loading; a clone of it is a recipe and holds no value.
    let recipe = param.clone();
    // Burn states the shape before the mappers, and records hold it so too.
    let expected = param.lazy_shape().to_vec();
    let id = param.id;
    let at_init = spec.clone();
    param
        .init_mapper(move |tensor| pin(tensor, &at_init))
        .load_mapper(move |loaded| {
            check_loaded(&spec.path, &expected, &loaded.dims());
            let recipe = recipe.clone();
            let loaded = recipe.transform_for_load(untracked(loaded), id);
            pin(loaded.into_value(), &spec)
        })
}

/// Checks the shape of a loaded parameter: Burn itself takes any, and the model would fail somewhere else, or compute
/// something else.
///
/// # Panics
/// If it is not the expected one: `load_record` returns no result.
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
fn untracked<B: Annotate, const D: usize>(loaded: Tensor<B, D>) -> Tensor<B, D> {
    loaded.set_require_grad(false)
}

/// Returns the tensor with its layout pinned, tracked by autodiff as before.
fn pin<B: Annotate, const D: usize>(tensor: Tensor<B, D>, spec: &ParamSpec) -> Tensor<B, D> {
    let tracked = tensor.is_require_grad();
    let shape = tensor.dims();
    match tensor.set_require_grad(false).into_primitive() {
        TensorPrimitive::Float(primitive) => {
            let primitive = B::annotate(primitive, &spec.clone().for_shape(&shape));
            // The pinned tensor is a leaf: gradients belong to the parameter, not to what it was made from.
            Tensor::from_primitive(TensorPrimitive::Float(primitive)).set_require_grad(tracked)
        }
        quantized => {
            tracing::warn!(
                path = spec.path,
                "a quantized parameter is not split: it stays whole on every rank"
            );
            Tensor::from_primitive(quantized)
        }
    }
}
