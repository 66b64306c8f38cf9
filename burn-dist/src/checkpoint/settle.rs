//! Updates that a module keeps apart.
//!
//! `RunningState`, which `BatchNorm` has, keeps its last update apart until it is settled: `visit` shows the value of the
//! step before, and the update replaces later what `map` puts there. Burn settles it where a module is made one without
//! autodiff. So that is done before a module is visited to be saved, and before values are put into it.

use burn_core::module::{Module, ModuleMapper, Param, Parameter};
use burn_core::tensor::kind::Basic;
use burn_core::tensor::{Bool, Int, Tensor};

/// Settles the state of a module, so that `visit` shows what it holds, and nothing replaces later what `map` puts there.
pub(super) fn settle<M: Module>(module: &M) {
    // A clone shares its running states with the module.
    drop(apart(module));
}

/// Returns a module with the same parameters, without autodiff, that shares no running state with it: what is put into
/// a clone is seen by both. Parameters without values have empty ones.
pub(super) fn apart<M: Module>(module: &M) -> M {
    module.clone().map(&mut Bare).valid()
}

/// Gives values to the parameters that have none: empty ones, for `valid` would draw them.
struct Bare;

impl ModuleMapper for Bare {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        bare(param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        bare(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        bare(param)
    }
}

fn bare<const D: usize, K: Basic>(param: Param<Tensor<D, K>>) -> Param<Tensor<D, K>>
where
    Tensor<D, K>: Parameter,
{
    match param.is_initialized() {
        true => param,
        false => {
            let empty = Tensor::empty([0; D], &param.lazy_device());
            Param::initialized(param.id, empty)
        }
    }
}
