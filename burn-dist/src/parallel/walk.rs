//! The tree of any module of Burn's current line, from one walk over it.

use burn_core::module::{LoraAdapter, Module, ModuleMapper, Param, Reparameterization};
use burn_core::tensor::Tensor;
use burn_dist_front::parallel::{ATTACHED, Line, ModuleTree, TreeBuilder};

/// Burn's current line, whose modules name no backend.
#[derive(Clone, Copy, Debug)]
pub struct Burn;

/// The walk is `Module::map`, as the one that installs specs is: both reach the same parameters in the same order.
impl<M: Module> Line<M, ()> for Burn {
    fn tree(module: &M) -> ModuleTree {
        let mut walker = Walker::default();
        drop(module.clone().map(&mut walker));
        walker.tree.build()
    }
}

#[derive(Default)]
struct Walker {
    tree: TreeBuilder,
    names: Vec<String>,
    /// How many modules are open around the LoRA adapter that the walk is in.
    lora: Option<usize>,
}

impl Walker {
    /// Returns the dim that a factor of LoRA has in common with its base: `base + scale * (a @ b)`.
    fn dim(&self) -> Option<usize> {
        let inside = &self.names[self.lora? + 1..];
        match inside {
            [name] if name == "a" => Some(0),
            [name] if name == "b" => Some(1),
            _ => None,
        }
    }
}

impl ModuleMapper for Walker {
    fn enter_module(&mut self, name: &str, container: &str) {
        // So Burn marks what is attached to the parameter before it.
        if container == ATTACHED {
            self.tree.adapter();
            self.lora = (name == LoraAdapter::NAME).then_some(self.names.len());
        }
        self.names.push(name.into());
        self.tree.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.names.pop();
        self.lora = self.lora.filter(|open| self.names.len() > *open);
        self.tree.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dim = self.dim();
        self.tree.factor(&param.lazy_shape(), dim);
        param
    }
}
