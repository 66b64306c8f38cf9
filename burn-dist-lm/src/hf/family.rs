//! The families that `config.json` names, and what each has where a file says nothing.

use crate::model::Family;

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
    pub(super) tied: bool,
    /// Which products of attention have biases.
    pub(super) biases: BiasRule,
    pub(super) head_norms: bool,
    /// Which layers have a window.
    pub(super) windows: WindowRule,
    /// True if some layers are without rotary positions.
    pub(super) unturned: bool,
}

/// Where it stands which products of attention have biases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BiasRule {
    /// None has.
    Never,
    /// `attention_bias` says it of all.
    Said,
    /// Those of queries, keys and values have.
    Inputs,
}

/// Where it stands which layers have a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowRule {
    /// None has.
    Never,
    /// All have, if `sliding_window` is a number; so many keys without the field.
    All(usize),
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
    tied: false,
    biases: BiasRule::Said,
    head_norms: false,
    windows: WindowRule::Never,
    unturned: false,
};

/// The families, Llama first.
pub(super) const FAMILIES: [Written; 5] = [
    LLAMA,
    Written {
        family: Family::Mistral,
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        kv_heads: Some(8),
        biases: BiasRule::Never,
        windows: WindowRule::All(4096),
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
