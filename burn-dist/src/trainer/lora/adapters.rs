//! Which matrices of a model have low-rank adapters, and of which kind.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use burn_core::module::{Module, ModuleMapper, Param};
use burn_core::tensor::{DType, Tensor};

use crate::nn::LateLora;
use crate::nn::int8::{at_rest_in_bf16, packed};

/// The type in which matrices rest that are not trained.
///
/// Text form: `f32`, `bf16`, `f16`, `int8`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// 4 bytes an element, as parameters that are trained.
    #[default]
    F32,
    /// 2 bytes an element.
    BF16,
    /// 2 bytes an element, of less range and more precision than bf16.
    F16,
    /// 33 bytes for 32 neighbours along the last dim: signed integers, and a power of two as their scale. A value is
    /// off by less than a 127th of the largest of its block.
    Int8,
}

const NO_BASE: &str = "is no type in which matrices rest: use f32, bf16, f16 or int8";

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        })
    }
}

impl FromStr for Base {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::F32, Self::BF16, Self::F16, Self::Int8];
        let found = all.into_iter().find(|base| base.to_string() == text);
        found.ok_or_else(|| format!("`{text}` {NO_BASE}"))
    }
}

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
    pub base: Base,
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
            Base::F32 => model,
            base => model.map(&mut Rest::new(base)),
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

/// Sets the type in which the matrices of linear layers rest: what is made or loaded is cast once, and what rests in 8
/// bits is saved as its values.
struct Rest {
    base: Base,
    /// True of each module around the parameter that is a linear layer.
    is_linear: Vec<bool>,
}

impl Rest {
    fn new(base: Base) -> Self {
        Self {
            base,
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
        // A bias is small, and added in the type of the sum.
        if D != 2 || self.is_linear.last() != Some(&true) {
            return param;
        }
        let dtype = match self.base {
            Base::F32 => DType::F32,
            Base::F16 => DType::F16,
            Base::BF16 => DType::BF16,
            // Files have values, and never bytes with scales.
            Base::Int8 => {
                return param
                    .init_mapper(packed)
                    .load_mapper(packed)
                    .save_mapper(at_rest_in_bf16);
            }
        };
        param
            .init_mapper(move |made| made.cast(dtype))
            .load_mapper(move |loaded| loaded.cast(dtype))
    }
}
