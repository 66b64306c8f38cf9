//! The tree of any module of this line of Burn, from one walk over it.

use burn_core::module::{Module, ModuleMapper, Param};
use burn_core::tensor::backend::Backend;
use burn_core::tensor::{Bool, Int, Tensor};
use burn_dist_front::parallel::{Line, ModuleTree, TreeBuilder};

/// Burn 0.21, whose modules name their backend.
#[derive(Clone, Copy, Debug)]
pub struct Burn021;

/// The walk is `Module::map`, as the one that installs specs is: both reach the same parameters in the same order.
impl<B: Backend, M: Module<B>> Line<M, B> for Burn021 {
    fn tree(module: &M) -> ModuleTree {
        let mut walker = Walker(TreeBuilder::default());
        drop(module.clone().map(&mut walker));
        walker.0.build()
    }
}

struct Walker(TreeBuilder);

impl<B: Backend> ModuleMapper<B> for Walker {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.0.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.0.parameter(&param.lazy_shape());
        param
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
