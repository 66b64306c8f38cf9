//! `config.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::HfError;
use crate::model::{LlamaConfig, RopeConfig, RopeScaling};

/// The fields of `config.json` that matter here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct HfConfig {
    model_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    architectures: Option<Vec<String>>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_key_value_heads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head_dim: Option<usize>,
    vocab_size: usize,
    /// The defaults are those of Hugging Face's Llama.
    #[serde(default = "default_eps")]
    rms_norm_eps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_scaling: Option<HfRope>,
    /// Where newer files keep both of the above.
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_parameters: Option<HfRope>,
    #[serde(default = "default_act")]
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    eos_token_id: Option<OneOrMany>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch_dtype: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct HfRope {
    #[serde(alias = "type", skip_serializing_if = "Option::is_none")]
    rope_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_freq_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_freq_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_max_position_embeddings: Option<usize>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

fn default_eps() -> f64 {
    1e-6
}

fn default_act() -> String {
    "silu".to_string()
}

/// Reads `config.json` of a folder; also returns the ids that end an answer, as far as it names any.
///
/// # Errors
/// [`HfError::Read`], [`HfError::Json`], [`HfError::Unsupported`] or [`HfError::Sizes`].
pub fn read_config(dir: &Path) -> Result<(LlamaConfig, Vec<u32>), HfError> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|source| HfError::Read {
        path: path.clone(),
        source,
    })?;
    let config: HfConfig = serde_json::from_str(&text).map_err(|error| HfError::Json {
        path: path.clone(),
        reason: error.to_string(),
    })?;
    let eos = match &config.eos_token_id {
        None => Vec::new(),
        Some(OneOrMany::One(id)) => vec![*id],
        Some(OneOrMany::Many(ids)) => ids.clone(),
    };
    Ok((config.to_llama(&path)?, eos))
}

impl HfConfig {
    fn to_llama(&self, path: &Path) -> Result<LlamaConfig, HfError> {
        let unsupported = |field, found: String, supported| {
            Err(HfError::Unsupported {
                path: path.to_path_buf(),
                field,
                found,
                supported,
            })
        };
        if self.model_type != "llama" {
            return unsupported(
                "model_type",
                format!("{:?}", self.model_type),
                "the layers of \"llama\" only",
            );
        }
        if self.attention_bias || self.mlp_bias {
            let field = if self.attention_bias {
                "attention_bias"
            } else {
                "mlp_bias"
            };
            return unsupported(field, "true".to_string(), "no biases");
        }
        if self.hidden_act != "silu" {
            return unsupported(
                "hidden_act",
                format!("{:?}", self.hidden_act),
                "the activation \"silu\" only",
            );
        }
        let config = LlamaConfig {
            dim: self.hidden_size,
            num_layers: self.num_hidden_layers,
            num_heads: self.num_attention_heads,
            num_kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            hidden_dim: self.intermediate_size,
            vocab: self.vocab_size,
            rope: self.rope(path)?,
            norm_eps: self.rms_norm_eps,
            // All values come from the checkpoint.
            init_std: 0.02,
            tied: self.tie_word_embeddings,
        };
        config.validate().map_err(|source| HfError::Sizes {
            path: path.to_path_buf(),
            source,
        })?;
        if let Some(head_dim) = self
            .head_dim
            .filter(|head_dim| *head_dim != config.head_dim())
        {
            return unsupported(
                "head_dim",
                head_dim.to_string(),
                "heads of hidden_size / num_attention_heads",
            );
        }
        Ok(config)
    }

    fn rope(&self, path: &Path) -> Result<RopeConfig, HfError> {
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let theta = rope
            .and_then(|rope| rope.rope_theta)
            .or(self.rope_theta)
            .unwrap_or(10_000.0);
        let scaling = match rope.map(|rope| (rope, rope.rope_type.as_deref())) {
            None | Some((_, None | Some("default"))) => None,
            Some((rope, Some("llama3"))) => {
                let missing = |field: &str| HfError::Json {
                    path: path.to_path_buf(),
                    reason: format!("rope_type llama3 needs {field}"),
                };
                Some(RopeScaling {
                    factor: rope.factor.ok_or_else(|| missing("factor"))?,
                    low_freq_factor: rope
                        .low_freq_factor
                        .ok_or_else(|| missing("low_freq_factor"))?,
                    high_freq_factor: rope
                        .high_freq_factor
                        .ok_or_else(|| missing("high_freq_factor"))?,
                    original_max_position: rope
                        .original_max_position_embeddings
                        .ok_or_else(|| missing("original_max_position_embeddings"))?,
                })
            }
            Some((_, Some(other))) => {
                return Err(HfError::Unsupported {
                    path: path.to_path_buf(),
                    field: "rope_type",
                    found: format!("{other:?}"),
                    supported: "\"default\" and \"llama3\"",
                });
            }
        };
        Ok(RopeConfig { theta, scaling })
    }

    /// The configuration of `config`, whose answers end with `eos`.
    pub(super) fn from_llama(config: &LlamaConfig, eos: u32) -> Self {
        let rope_scaling = config.rope.scaling.as_ref().map(|scaling| HfRope {
            rope_type: Some("llama3".to_string()),
            rope_theta: None,
            factor: Some(scaling.factor),
            low_freq_factor: Some(scaling.low_freq_factor),
            high_freq_factor: Some(scaling.high_freq_factor),
            original_max_position_embeddings: Some(scaling.original_max_position),
        });
        Self {
            model_type: "llama".to_string(),
            architectures: Some(vec!["LlamaForCausalLM".to_string()]),
            hidden_size: config.dim,
            intermediate_size: config.hidden_dim,
            num_hidden_layers: config.num_layers,
            num_attention_heads: config.num_heads,
            num_key_value_heads: Some(config.num_kv_heads),
            head_dim: Some(config.head_dim()),
            vocab_size: config.vocab,
            rms_norm_eps: config.norm_eps,
            rope_theta: Some(config.rope.theta),
            rope_scaling,
            rope_parameters: None,
            hidden_act: default_act(),
            attention_bias: false,
            mlp_bias: false,
            tie_word_embeddings: config.tied,
            eos_token_id: Some(OneOrMany::One(eos)),
            torch_dtype: Some("float32".to_string()),
        }
    }
}
