//! The tree of any module of Burn's current line, from one walk over it.

use burn_core::module::{Module, ModuleMapper, Param};
use burn_core::tensor::Tensor;
use burn_dist_front::parallel::{Line, ModuleTree, TreeBuilder};

/// Burn's current line, whose modules name no backend.
#[derive(Clone, Copy, Debug)]
pub struct Burn;

/// The walk is `Module::map`, as the one that installs specs is: both reach the same parameters in the same order.
impl<M: Module> Line<M, ()> for Burn {
    fn tree(module: &M) -> ModuleTree {
        let mut walker = Walker(TreeBuilder::default());
        drop(module.clone().map(&mut walker));
        walker.0.build()
    }
}

struct Walker(TreeBuilder);

impl ModuleMapper for Walker {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.0.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0.parameter(&param.lazy_shape());
        param
    }
}
