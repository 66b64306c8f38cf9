//! Which matrices of a model have low-rank adapters, and of which kind.

use std::collections::BTreeSet;

use burn_core::module::{Module, ModuleMapper, Param};
use burn_core::tensor::{DType, Tensor};

use crate::Float;
use crate::nn::LateLora;

/// The adapters of a model: LoRA's factors beside frozen matrices.
///
/// # Source
/// LoRA, arXiv:2106.09685; the names are those of PEFT's `LoraConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapters {
    /// Rank of the product of the factors.
    pub rank: usize,
    /// The product counts `alpha / rank` times.
    pub alpha: f64,
    /// True if it counts `alpha / rank^0.5` times instead (rsLoRA, arXiv:2312.03732).
    pub is_rank_stabilized: bool,
    /// The share of their input that is dropped in training.
    pub dropout: f64,
    /// The type in which the matrices of the layers rest, which are not trained.
    pub base: Float,
    /// Paths of the matrices that have factors: `layers.0.attention.wq.weight`.
    pub matrices: BTreeSet<String>,
}

impl Adapters {
    /// Returns how often the product of the factors counts.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        match self.is_rank_stabilized {
            true => self.alpha / rank.sqrt(),
            false => self.alpha / rank,
        }
    }

    /// Freezes a model, and attaches factors to its matrices.
    pub fn attach<M: Module>(&self, model: M) -> M {
        let model = match self.base {
            Float::F32 => model,
            Float::F16 => model.map(&mut Rest::new(DType::F16)),
            Float::BF16 => model.map(&mut Rest::new(DType::BF16)),
        };
        let lora = LateLora::new(self.rank, self.alpha, |path: &str| {
            self.matrices.contains(path)
        });
        model.apply_reparameterization(lora.scale(self.scale()))
    }

    /// All that tells them from other adapters, as names and values.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        // Dropout changes no weight's meaning: a run may go on with another.
        let matrices = self.matrices.iter().map(String::as_str);
        vec![
            ("rank of adapters", self.rank.to_string()),
            ("scale of adapters", self.scale().to_string()),
            ("type of matrices that rest", self.base.to_string()),
            (
                "matrices with adapters",
                matrices.collect::<Vec<_>>().join(" "),
            ),
        ]
    }
}

/// Sets the type in which the matrices of linear layers rest: what is made or loaded is cast once.
struct Rest {
    dtype: DType,
    /// True of each module around the parameter that is a linear layer.
    is_linear: Vec<bool>,
}

impl Rest {
    fn new(dtype: DType) -> Self {
        Self {
            dtype,
            is_linear: Vec::new(),
        }
    }
}

impl ModuleMapper for Rest {
    fn enter_module(&mut self, _name: &str, container: &str) {
        self.is_linear.push(container == "Struct:Linear");
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.is_linear.pop();
    }

    /// Layers of this model have no mappers of their own, which these would replace.
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dtype = self.dtype;
        // A bias is small, and added in the type of the sum.
        match D == 2 && self.is_linear.last() == Some(&true) {
            true => param
                .init_mapper(move |made| made.cast(dtype))
                .load_mapper(move |loaded| loaded.cast(dtype)),
            false => param,
        }
    }
}
