//! Which matrices of a decoder have low-rank adapters, and of which kind.

use std::collections::BTreeSet;

use burn::module::Module;
use burn_dist::nn::LateLora;

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
    pub(super) fn attach<M: Module>(&self, model: M) -> M {
        let lora = LateLora::new(self.rank, self.alpha, |path: &str| {
            self.matrices.contains(path)
        });
        model.apply_reparameterization(lora.scale(self.scale()))
    }

    /// All that tells them from other adapters, as names and values.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        // Dropout changes no weight's meaning: a run may go on with another.
        let matrices = self.matrices.iter().map(String::as_str);
        vec![
            ("rank of adapters", self.rank.to_string()),
            ("scale of adapters", self.scale().to_string()),
            (
                "matrices with adapters",
                matrices.collect::<Vec<_>>().join(" "),
            ),
        ]
    }
}
