//! The linear layers of a model.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use burn_dist::checkpoint::hf::{Form, Names};
use burn_dist::trainer::folder::InFolders;

use crate::model::{Llama, LlamaConfig};

/// The linear layers of a model, by their names in Hugging Face's library: `model.layers.0.self_attn.q_proj`.
#[derive(Debug, Clone, PartialEq)]
pub struct Layers {
    /// By name.
    layers: BTreeMap<String, Layer>,
    /// The name of the layer that makes the logits.
    output: String,
}

/// A linear layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layer {
    /// The path of its matrix here.
    pub(super) matrix: String,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Layers {
    /// Lists the layers of a model of these sizes: what its folders hold turned.
    pub fn of(config: &LlamaConfig) -> Self {
        let config = LlamaConfig {
            adapters: None,
            ..config.clone()
        };
        let mut lister = Lister {
            names: Llama::names(&config),
            path: Vec::new(),
            layers: BTreeMap::new(),
        };
        // Nothing of it is made.
        config.init(&Device::flex()).visit(&mut lister);
        let output = Llama::TIED.and_then(|tied| tied.name.strip_suffix(WEIGHT));
        Self {
            layers: lister.layers,
            output: output.unwrap_or_default().to_string(),
        }
    }

    /// Returns the layer of a name.
    pub(super) fn get(&self, name: &str) -> Option<&Layer> {
        self.layers.get(name)
    }

    /// Returns names and layers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Layer)> {
        let layers = self.layers.iter();
        layers.map(|(name, layer)| (name.as_str(), layer))
    }

    /// Returns whether a layer makes the logits.
    pub(super) fn is_output(&self, name: &str) -> bool {
        name == self.output
    }

    /// Returns the fewest names that say which layers these are of all, as PEFT takes them: the last names of their
    /// paths, or whole paths where a last name is that of another layer too.
    pub(super) fn shortest(&self, chosen: &BTreeSet<&str>) -> Vec<String> {
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
    path: Vec<String>,
    layers: BTreeMap<String, Layer>,
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let matrix = self.path.join(".");
        let Some((tensor, form)) = self.names.tensor(&matrix) else {
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
