//! The linear layers of a model.

use std::collections::{BTreeMap, BTreeSet};

use burn_core::module::{ModuleVisitor, Param};
use burn_core::tensor::{Device, Tensor};
use burn_dist_front::parallel::ModulePath;

use crate::checkpoint::hf::{Form, Names};
use crate::trainer::folder::InFolders;

/// The linear layers of a model, by their names in Hugging Face's library: `model.layers.0.self_attn.q_proj`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// By name.
    layers: BTreeMap<String, Layer>,
    /// The name of the layer that makes the logits.
    output: &'static str,
}

/// A linear layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The path of its matrix in the model.
    pub matrix: String,
    /// How many elements it reads.
    pub inputs: usize,
    /// How many it makes.
    pub outputs: usize,
}

impl Layers {
    /// Lists the layers of a model of these sizes: what its folders hold turned. Adapters are none.
    pub fn of<M: InFolders>(config: &M::Config) -> Self {
        let mut lister = Lister {
            names: M::names(config),
            path: ModulePath::default(),
            layers: BTreeMap::new(),
        };
        // Nothing of it is made.
        M::build(config, &Device::flex()).visit(&mut lister);
        let output = M::TIED.and_then(|tied| tied.name.strip_suffix(WEIGHT));
        Self {
            layers: lister.layers,
            output: output.unwrap_or_default(),
        }
    }

    /// Returns the layer of a name.
    pub fn get(&self, name: &str) -> Option<&Layer> {
        self.layers.get(name)
    }

    /// Returns names and layers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Layer)> {
        let layers = self.layers.iter();
        layers.map(|(name, layer)| (name.as_str(), layer))
    }

    /// Returns whether a layer makes the logits.
    pub(super) fn is_output(&self, name: &str) -> bool {
        name == self.output
    }

    /// Returns the fewest names that say which layers these are of all, as PEFT takes them: the last names of their
    /// paths, or whole paths where a last name is that of another layer too.
    pub fn shortest(&self, chosen: &BTreeSet<&str>) -> Vec<String> {
        let lasts: BTreeSet<&str> = chosen.iter().map(|name| last(name)).collect();
        let mut named = self.layers.keys().filter(|name| lasts.contains(last(name)));
        let names = match named.all(|name| chosen.contains(name.as_str())) {
            true => &lasts,
            false => chosen,
        };
        names.iter().map(ToString::to_string).collect()
    }

    /// Returns the last names of all layers.
    pub(super) fn lasts(&self) -> Vec<String> {
        let lasts: BTreeSet<&str> = self.layers.keys().map(|name| last(name)).collect();
        lasts.into_iter().map(str::to_string).collect()
    }
}

/// The end of the name of a layer's matrix.
const WEIGHT: &str = ".weight";

/// The last name of a path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

struct Lister {
    names: Names,
    path: ModulePath,
    layers: BTreeMap<String, Layer>,
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let matrix = self.path.path();
        let tensor = self.names.tensor(&matrix);
        let Some((tensor, form)) = tensor.filter(|_| !self.path.is_attached()) else {
            return;
        };
        let shape = param.lazy_shape();
        // An embedding is held as it is, and looked up instead of multiplied.
        if let (Some(name), &[inputs, outputs], true) =
            (tensor.strip_suffix(WEIGHT), &shape[..], form != Form::Same)
        {
            let layer = Layer {
                matrix,
                inputs,
                outputs,
            };
            self.layers.insert(name.to_string(), layer);
        }
    }
}
