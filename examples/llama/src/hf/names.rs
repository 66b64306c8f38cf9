//! Which tensor of a checkpoint is which parameter, and how its elements are laid out.

use burn::module::{ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::model::Llama;

/// The name of the output matrix, which a checkpoint leaves out if it is the embedding.
pub(super) const OUTPUT: &str = "lm_head.weight";
/// The name of the embedding.
pub(super) const EMBEDDING: &str = "model.embed_tokens.weight";

/// How a checkpoint lays out what a parameter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Alike.
    Same,
    /// `[output, input]`, where Burn's linear layer has `[input, output]`.
    Transposed,
    /// Transposed, and within each head the first elements of all pairs stand before the second ones.
    ///
    /// Head width 6, ours to the checkpoint's: `a0 b0 a1 b1 a2 b2` to `a0 a1 a2 b0 b1 b2`.
    Rotary {
        /// Elements of a head.
        head_dim: usize,
    },
}

impl Form {
    /// The shape in the checkpoint of a parameter of `shape`.
    pub(super) fn stored_shape(self, shape: &[usize]) -> Vec<usize> {
        match self {
            Form::Same => shape.to_vec(),
            Form::Transposed | Form::Rotary { .. } => shape.iter().rev().copied().collect(),
        }
    }

    /// The checkpoint's row that holds our output column `column`.
    fn row(self, column: usize) -> usize {
        match self {
            Form::Same | Form::Transposed => column,
            Form::Rotary { head_dim } => {
                let (head, within) = (column / head_dim, column % head_dim);
                head * head_dim + within % 2 * (head_dim / 2) + within / 2
            }
        }
    }

    /// Turns a checkpoint's elements into a parameter's, whose shape is `shape`.
    pub(super) fn unpack(self, stored: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        let (Form::Transposed | Form::Rotary { .. }, &[inputs, outputs]) = (self, shape) else {
            return stored;
        };
        let mut values = vec![0.0; stored.len()];
        for_tiles(inputs, outputs, |input, output| {
            values[input * outputs + output] = stored[self.row(output) * inputs + input];
        });
        values
    }

    /// Turns a parameter's elements into a checkpoint's: the inverse of [`Form::unpack`].
    pub(super) fn pack(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        let (Form::Transposed | Form::Rotary { .. }, &[inputs, outputs]) = (self, shape) else {
            return values;
        };
        let mut stored = vec![0.0; values.len()];
        for_tiles(inputs, outputs, |input, output| {
            stored[self.row(output) * inputs + input] = values[input * outputs + output];
        });
        stored
    }
}

/// Visits every index pair tile by tile, so that a transposition stays in the cache.
fn for_tiles(rows: usize, columns: usize, mut visit: impl FnMut(usize, usize)) {
    const TILE: usize = 32;
    for row in (0..rows).step_by(TILE) {
        for column in (0..columns).step_by(TILE) {
            for row in row..(row + TILE).min(rows) {
                for column in column..(column + TILE).min(columns) {
                    visit(row, column);
                }
            }
        }
    }
}

/// The checkpoint's name and form of the parameter at `path`, as in `layers.3.attention.wq.weight`.
///
/// # Panics
/// If the model has a parameter without a place in checkpoints: a mistake in this file.
pub(super) fn stored_as(path: &str, head_dim: usize) -> (String, Form) {
    if let Some((layer, inner)) = path
        .strip_prefix("layers.")
        .and_then(|rest| rest.split_once('.'))
    {
        let (inner, form) = match inner {
            "attention_norm.gamma" => ("input_layernorm.weight", Form::Same),
            "attention.wq.weight" => ("self_attn.q_proj.weight", Form::Rotary { head_dim }),
            "attention.wk.weight" => ("self_attn.k_proj.weight", Form::Rotary { head_dim }),
            "attention.wv.weight" => ("self_attn.v_proj.weight", Form::Transposed),
            "attention.wo.weight" => ("self_attn.o_proj.weight", Form::Transposed),
            "ffn_norm.gamma" => ("post_attention_layernorm.weight", Form::Same),
            "feed_forward.w1.weight" => ("mlp.gate_proj.weight", Form::Transposed),
            "feed_forward.w2.weight" => ("mlp.down_proj.weight", Form::Transposed),
            "feed_forward.w3.weight" => ("mlp.up_proj.weight", Form::Transposed),
            _ => panic!("parameter {path} has no name in checkpoints: add it to the list"),
        };
        return (format!("model.layers.{layer}.{inner}"), form);
    }
    match path {
        "tok_embeddings.weight" => (EMBEDDING.to_string(), Form::Same),
        "norm.gamma" => ("model.norm.weight".to_string(), Form::Same),
        "output.weight" => (OUTPUT.to_string(), Form::Transposed),
        _ => panic!("parameter {path} has no name in checkpoints: add it to the list"),
    }
}

/// Keeps the path of the module being walked.
#[derive(Debug, Default)]
pub(super) struct PathStack(Vec<String>);

impl PathStack {
    pub(super) fn enter(&mut self, name: &str) {
        self.0.push(name.to_string());
    }

    pub(super) fn exit(&mut self) {
        self.0.pop();
    }

    pub(super) fn path(&self) -> String {
        self.0.join(".")
    }
}

/// A parameter's place in checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) form: Form,
    /// The parameter's own shape.
    pub(super) shape: Vec<usize>,
}

/// Lists the parameters in the model's order, without making their values.
pub(super) fn entries<B: Backend>(model: &Llama<B>, head_dim: usize) -> Vec<Entry> {
    struct List {
        path: PathStack,
        head_dim: usize,
        entries: Vec<Entry>,
    }
    impl<B: Backend> ModuleVisitor<B> for List {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let (name, form) = stored_as(&self.path.path(), self.head_dim);
            let shape = param.lazy_shape().to_vec();
            self.entries.push(Entry { name, form, shape });
        }
    }
    let mut list = List {
        path: PathStack::default(),
        head_dim,
        entries: Vec::new(),
    };
    burn::module::Module::visit(model, &mut list);
    list.entries
}
