//! The decoder as a model of the trainer: its loss, in plain Burn, with no word about ranks.

use burn::tensor::{Device, Int, Tensor};
use burn_dist::trainer::batch::Batch as _;
use burn_dist::trainer::model::{Loss, Model, Tensors, Words};
use burn_dist::trainer::tokens::Batch;

use crate::model::{Llama, LlamaConfig};

/// Returns the cross entropy of `logits` against `targets`: the mean, or the sum weighted by `weights`.
///
/// Only sums of one number per token are taken over the vocabulary, so logits that are sharded over it stay so.
///
/// # Shapes
/// `logits`: `[b, s, v]`; `targets`, `weights`: `[b, s]`; output: `[1]`.
pub fn cross_entropy(
    logits_bsv: Tensor<3>,
    targets_bs: Tensor<2, Int>,
    weights_bs: Option<Tensor<2>>,
) -> Tensor<1> {
    let [b, s, v] = logits_bsv.dims();
    let logits_tv = logits_bsv.reshape([b * s, v]);
    // Any shift leaves the value alone: the largest logit keeps the exponentials finite and needs no gradient.
    let shift_t1 = logits_tv.clone().detach().max_dim(1);
    let shifted_tv = logits_tv - shift_t1;
    let target_t1 = shifted_tv.clone().gather(1, targets_bs.reshape([b * s, 1]));
    let losses_t1 = shifted_tv.exp().sum_dim(1).log() - target_t1;
    match weights_bs {
        Some(weights_bs) => (losses_t1 * weights_bs.reshape([b * s, 1])).sum(),
        None => losses_t1.mean(),
    }
}

impl Model for Llama {
    type Config = LlamaConfig;
    type Batch = Batch;

    const UNITS: &'static str = "layers";
    const WORDS: Words = Words {
        model: " (--size, --model)",
        again: "the model, the data, --seq and --seed",
        remedies: "fewer ranks on it (a smaller --mesh, or more machines), a smaller --batch or --seq, --accumulate, \
                   --activation-checkpoint full, or a smaller model",
    };

    fn build(config: &LlamaConfig, device: &Device) -> Self {
        config.init(device)
    }

    fn loss(&self, part: Tensors<Self>, parts: usize) -> Loss {
        let logits = self.forward_packed(part.tokens, part.packed);
        let is_mean = part.weights.is_none();
        let loss = cross_entropy(logits, part.targets, part.weights);
        // Weights sum to 1 over all parts; a mean is that of its part alone.
        match parts > 1 && is_mean {
            true => (loss / parts as f64).into(),
            false => loss.into(),
        }
    }

    fn held_out(&self, part: Tensors<Self>) -> [Tensor<1>; 2] {
        let [rows, seq] = part.tokens.dims();
        let device = part.tokens.device();
        let logits = self.forward_packed(part.tokens, part.packed);
        let learnt = match part.weights {
            Some(weights) => weights.greater_scalar(0.0).float(),
            None => Tensor::ones([rows, seq], &device),
        };
        let num = learnt.clone().sum();
        [cross_entropy(logits, part.targets, Some(learnt)), num]
    }

    /// torchtitan's count, with the keys left out that a causal mask hides, and with the products that turn queries and
    /// keys to their positions.
    ///
    /// # Source
    /// `torchtitan/models/llama3/model/args.py`, `get_nparams_and_flops`: 6 flops for each token and weight of a
    /// matrix, and `12 x layers x heads x width x tokens` for attention.
    fn flops(config: &LlamaConfig, rows: &Batch) -> Option<f64> {
        // With adapters most matrices have no gradient; what has some depends on which of them have factors.
        if config.adapters.is_some() {
            return None;
        }
        let (head_dim, tokens) = (config.head_dim(), rows.count() as f64);
        let (dim, layers, options) = (config.dim, config.num_layers, &config.options);
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let attention = 2 * dim * (q_dim + kv_dim);
        let dense = match options.experts {
            Some(_) => 0,
            None => 3 * dim * config.hidden_dim,
        };
        let products = 6.0 * (layers * (attention + dense) + dim * config.vocab) as f64 * tokens;
        let mixture = config.mixture();
        let mixture = mixture.map_or(0.0, |mixture| mixture.flops(rows.batch, rows.seq));
        let products = products + layers as f64 * mixture;
        let turning = layers - options.unturned.len();
        let turns = 4.0 * (turning * (q_dim + kv_dim) * head_dim) as f64 * tokens;
        // Twice the keys that a query sees in the mean: up to its own, as far as the window goes.
        let keys = |layer| {
            let (seq, hidden) = match options.window_of(layer) {
                Some(window) if window < rows.seq => (rows.seq as f64, (rows.seq - window) as f64),
                _ => (rows.seq as f64, 0.0),
            };
            seq + 1.0 - hidden * (hidden + 1.0) / seq
        };
        let attention = 6.0 * q_dim as f64 * (0..layers).map(keys).sum::<f64>() * tokens;
        Some(products + turns + attention)
    }

    fn cut(config: &LlamaConfig, units: usize) -> Option<LlamaConfig> {
        let mut cut = config.clone();
        cut.num_layers = units;
        let options = &mut cut.options;
        options.unturned.retain(|layer| *layer < units);
        if let Some(window) = &mut options.window {
            // Few layers do not tell of many where some of them see all keys, and others do not.
            if window.layers.len() < config.num_layers {
                return None;
            }
            window.layers.retain(|layer| *layer < units);
        }
        Some(cut)
    }

    fn facts(config: &LlamaConfig) -> Vec<(&'static str, String)> {
        config.facts()
    }
}
