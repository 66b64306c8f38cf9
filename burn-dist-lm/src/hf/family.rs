//! The families that `config.json` names, and what each has where a file says nothing.

use crate::model::{Experts, Family};

/// How a family writes its `config.json`: as the configurations of Hugging Face's library have it.
pub(super) struct Written {
    pub(super) family: Family,
    pub(super) model_type: &'static str,
    pub(super) architecture: &'static str,
    /// The key/value heads where a file names none; as many as heads without a number.
    pub(super) kv_heads: Option<usize>,
    /// The width of a head where a file names none; what heads share without a number.
    pub(super) head_dim: Option<usize>,
    pub(super) theta: f64,
    pub(super) eps: f64,
    pub(super) tied: bool,
    /// Which products of attention have biases.
    pub(super) biases: BiasRule,
    pub(super) head_norms: bool,
    /// Which layers have a window.
    pub(super) windows: WindowRule,
    /// True if some layers are without rotary positions.
    pub(super) unturned: bool,
    /// The experts where a file says nothing of them, for families that have some.
    pub(super) experts: Option<Experts>,
    /// True if a file says whether the weights of the experts of a token sum to 1.
    pub(super) says_norm: bool,
    /// The names of tensors that only this family has.
    pub(super) names: &'static str,
}

/// Where it stands which products of attention have biases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BiasRule {
    /// None has.
    Never,
    /// `attention_bias` says it of all.
    Said,
    /// Products of queries, keys and values have.
    Inputs,
}

/// Where it stands which layers have a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowRule {
    /// None has.
    Never,
    /// All have, if `sliding_window` is a number; so many keys without the field.
    All(Option<usize>),
    /// With `use_sliding_window` all have; so many keys without the field.
    AllUsed(usize),
    /// With `use_sliding_window`: those of `layer_types`, or from `max_window_layers` on; so many keys without the
    /// field.
    From(usize),
    /// With `use_sliding_window` and a number: those of `layer_types`, or those without rotary positions.
    Unturned,
}

const LLAMA: Written = Written {
    family: Family::Llama,
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    kv_heads: None,
    head_dim: None,
    theta: 10_000.0,
    eps: 1e-6,
    tied: false,
    biases: BiasRule::Said,
    head_norms: false,
    windows: WindowRule::Never,
    unturned: false,
    experts: None,
    says_norm: false,
    names: "",
};

/// The families, Llama first.
pub(super) const FAMILIES: [Written; 7] = [
    LLAMA,
    Written {
        family: Family::Mistral,
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        kv_heads: Some(8),
        biases: BiasRule::Never,
        windows: WindowRule::All(Some(4096)),
        ..LLAMA
    },
    Written {
        family: Family::Qwen2,
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        kv_heads: Some(32),
        biases: BiasRule::Inputs,
        windows: WindowRule::From(4096),
        ..LLAMA
    },
    Written {
        family: Family::Qwen3,
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        kv_heads: Some(32),
        head_dim: Some(128),
        head_norms: true,
        windows: WindowRule::From(4096),
        ..LLAMA
    },
    Written {
        family: Family::SmolLm3,
        model_type: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        kv_heads: Some(4),
        theta: 2_000_000.0,
        tied: true,
        windows: WindowRule::Unturned,
        unturned: true,
        ..LLAMA
    },
    Written {
        family: Family::Mixtral,
        model_type: "mixtral",
        architecture: "MixtralForCausalLM",
        kv_heads: Some(8),
        theta: 1_000_000.0,
        eps: 1e-5,
        biases: BiasRule::Never,
        windows: WindowRule::All(None),
        experts: Some(Experts {
            num: 8,
            top_k: 2,
            hidden_dim: 14_336,
        }),
        names: include_str!("mixtral.toml"),
        ..LLAMA
    },
    Written {
        family: Family::Qwen3Moe,
        model_type: "qwen3_moe",
        architecture: "Qwen3MoeForCausalLM",
        kv_heads: Some(4),
        head_norms: true,
        windows: WindowRule::AllUsed(4096),
        experts: Some(Experts {
            num: 128,
            top_k: 8,
            hidden_dim: 768,
        }),
        says_norm: true,
        names: include_str!("qwen3_moe.toml"),
        ..LLAMA
    },
];

/// Returns how a family writes its `config.json`.
pub(super) fn written(family: Family) -> &'static Written {
    let found = FAMILIES.iter().find(|written| written.family == family);
    found.expect("every family has a row")
}

/// Returns the family that a `config.json` names; the name that is most like it if there is none.
pub(super) fn named(model_type: &str) -> Result<&'static Written, &'static str> {
    let found = FAMILIES.iter().find(|it| it.model_type == model_type);
    let alike = |it: &Written| (strsim::jaro_winkler(it.model_type, model_type) * 1e6) as u64;
    found.ok_or_else(|| {
        let nearest = FAMILIES.iter().max_by_key(|it| alike(it));
        nearest.unwrap_or(&LLAMA).model_type
    })
}
