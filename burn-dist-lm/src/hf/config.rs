//! `config.json`.

use std::fmt::Display;
use std::path::Path;

use burn_dist::train::files::{self, JsonError};
use burn_dist::train::tokenizer::{Ids, Text};
use burn_dist::trainer::folder::{CONFIG_BYTES_MAX, FolderError};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::{LlamaConfig, RopeConfig, RopeScaling};

/// The fields of `config.json` that matter here.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct HfConfig {
    model_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    architectures: Option<Vec<String>>,
    hidden_size: Whole,
    intermediate_size: Whole,
    num_hidden_layers: Whole,
    num_attention_heads: Whole,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_key_value_heads: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head_dim: Option<Whole>,
    vocab_size: Whole,
    /// The defaults are those of Hugging Face's Llama.
    #[serde(default = "default_eps")]
    rms_norm_eps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    /// It takes the place of `rope_parameters`.
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_scaling: Option<HfRope>,
    /// Where newer files keep both of the above.
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_parameters: Option<HfRope>,
    /// Some keep it here instead of beside the other numbers of the scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    original_max_position_embeddings: Option<Whole>,
    #[serde(default = "default_act")]
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    eos_token_id: Option<Ids>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch_dtype: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct HfRope {
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_type: Option<String>,
    /// The older name of the type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    older_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_freq_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_freq_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_max_position_embeddings: Option<Whole>,
}

/// A whole number, which some write with a point: `8192.0`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Whole(usize);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(deserializer)?;
        let of_float = |number: f64| {
            (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
        };
        let whole = number.as_u64().or_else(|| of_float(number.as_f64()?));
        let whole = whole.and_then(|whole| usize::try_from(whole).ok());
        whole
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("{number} is no whole number from 0")))
    }
}

/// Up to here, a float has all whole numbers.
const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;

/// The `rope_theta` of Hugging Face's Llama where a file names none.
const DEFAULT_THETA: f64 = 10_000.0;

fn default_eps() -> f64 {
    1e-6
}

fn default_act() -> String {
    "silu".to_string()
}

/// Reads `config.json` of a folder.
///
/// # Errors
/// [`FolderError::Json`], [`FolderError::Unsupported`], [`FolderError::Contrary`] or [`FolderError::Sizes`].
pub(super) fn read_config(dir: &Path) -> Result<LlamaConfig, FolderError> {
    let path = dir.join("config.json");
    files::read_json::<HfConfig>(&path, CONFIG_BYTES_MAX)?.to_llama(&path)
}

/// Returns the `config.json` of a model that was made here.
pub(super) fn written(config: &LlamaConfig, text: &Text) -> Vec<u8> {
    let config = HfConfig::from_llama(config, text.end());
    let json = serde_json::to_string_pretty(&config);
    (json.expect("plain fields always have a JSON form") + "\n").into_bytes()
}

/// A value, and the field in which it stands.
type FieldValue<T> = (&'static str, Option<T>);

/// Returns the value of one of two fields, or of both of them alike.
fn alike<T: PartialEq + Display>(
    path: &Path,
    one: FieldValue<T>,
    other: FieldValue<T>,
) -> Result<Option<T>, FolderError> {
    match (one, other) {
        ((field, Some(one)), (field_too, Some(other))) if one != other => {
            Err(FolderError::Contrary {
                path: path.to_path_buf(),
                field,
                one: one.to_string(),
                field_too,
                other: other.to_string(),
            })
        }
        ((_, one), (_, other)) => Ok(one.or(other)),
    }
}

impl HfConfig {
    fn to_llama(&self, path: &Path) -> Result<LlamaConfig, FolderError> {
        let unsupported = |field, found: String, supported| {
            Err(FolderError::Unsupported {
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
            dim: self.hidden_size.0,
            num_layers: self.num_hidden_layers.0,
            num_heads: self.num_attention_heads.0,
            num_kv_heads: self
                .num_key_value_heads
                .unwrap_or(self.num_attention_heads)
                .0,
            hidden_dim: self.intermediate_size.0,
            vocab: self.vocab_size.0,
            rope: self.rope(path)?,
            norm_eps: self.rms_norm_eps,
            // All values come from the checkpoint.
            init_std: 0.02,
            tied: self.tie_word_embeddings,
            adapters: None,
        };
        config.validate().map_err(|source| FolderError::Sizes {
            path: path.to_path_buf(),
            source: source.into(),
        })?;
        if let Some(Whole(head_dim)) = self
            .head_dim
            .filter(|head_dim| head_dim.0 != config.head_dim())
        {
            return unsupported(
                "head_dim",
                head_dim.to_string(),
                "heads of hidden_size / num_attention_heads",
            );
        }
        Ok(config)
    }

    fn rope(&self, path: &Path) -> Result<RopeConfig, FolderError> {
        let none = HfRope::default();
        let scaling = self.rope_scaling.as_ref().filter(|rope| **rope != none);
        let parameters = self.rope_parameters.as_ref().unwrap_or(&none);
        let [theta_name, type_name, older_name, length_name] = match scaling {
            Some(_) => [
                "rope_scaling.rope_theta",
                "rope_scaling.rope_type",
                "rope_scaling.type",
                "rope_scaling.original_max_position_embeddings",
            ],
            None => [
                "rope_parameters.rope_theta",
                "rope_parameters.rope_type",
                "rope_parameters.type",
                "rope_parameters.original_max_position_embeddings",
            ],
        };
        let rope = scaling.unwrap_or(parameters);
        let here = ("rope_theta", self.rope_theta);
        let theta = alike(path, (theta_name, rope.rope_theta), here)?;
        if let (None, Some(lost)) = (theta, parameters.rope_theta) {
            let reason = format!(
                "rope_scaling takes the place of rope_parameters, and there is a rope_theta of {lost} there: write it \
                 into rope_scaling"
            );
            let path = path.to_path_buf();
            return Err(JsonError::Json { path, reason }.into());
        }
        let named = match rope.rope_theta {
            Some(_) => theta_name,
            None => "rope_theta",
        };
        let lost = ("rope_parameters.rope_theta", parameters.rope_theta);
        alike(path, lost, (named, theta))?;
        let theta = theta.unwrap_or(DEFAULT_THETA);
        let older = (older_name, rope.older_type.as_deref());
        let rope_type = alike(path, (type_name, rope.rope_type.as_deref()), older)?;
        let scaling = match rope_type {
            None | Some("default") => None,
            Some("llama3") => Some(self.llama3(path, rope, length_name)?),
            Some(other) => {
                return Err(FolderError::Unsupported {
                    path: path.to_path_buf(),
                    field: "rope_type",
                    found: format!("{other:?}"),
                    supported: "\"default\" and \"llama3\"",
                });
            }
        };
        Ok(RopeConfig { theta, scaling })
    }

    fn llama3(
        &self,
        path: &Path,
        rope: &HfRope,
        length_name: &'static str,
    ) -> Result<RopeScaling, FolderError> {
        let missing = |field: &str| JsonError::Json {
            path: path.to_path_buf(),
            reason: format!("rope_type llama3 needs {field}"),
        };
        let length = |whole: Option<Whole>| whole.map(|Whole(length)| length);
        let here = (
            "original_max_position_embeddings",
            length(self.original_max_position_embeddings),
        );
        let there = (length_name, length(rope.original_max_position_embeddings));
        Ok(RopeScaling {
            factor: rope.factor.ok_or_else(|| missing("factor"))?,
            low_freq_factor: rope
                .low_freq_factor
                .ok_or_else(|| missing("low_freq_factor"))?,
            high_freq_factor: rope
                .high_freq_factor
                .ok_or_else(|| missing("high_freq_factor"))?,
            original_max_position: alike(path, there, here)?
                .ok_or_else(|| missing("original_max_position_embeddings"))?,
        })
    }

    /// The configuration of `config`, whose answers end with `eos`.
    fn from_llama(config: &LlamaConfig, eos: u32) -> Self {
        let rope_scaling = config.rope.scaling.as_ref().map(|scaling| HfRope {
            rope_type: Some("llama3".to_string()),
            older_type: None,
            rope_theta: None,
            factor: Some(scaling.factor),
            low_freq_factor: Some(scaling.low_freq_factor),
            high_freq_factor: Some(scaling.high_freq_factor),
            original_max_position_embeddings: Some(Whole(scaling.original_max_position)),
        });
        Self {
            model_type: "llama".to_string(),
            architectures: Some(vec!["LlamaForCausalLM".to_string()]),
            hidden_size: Whole(config.dim),
            intermediate_size: Whole(config.hidden_dim),
            num_hidden_layers: Whole(config.num_layers),
            num_attention_heads: Whole(config.num_heads),
            num_key_value_heads: Some(Whole(config.num_kv_heads)),
            head_dim: Some(Whole(config.head_dim())),
            vocab_size: Whole(config.vocab),
            rms_norm_eps: config.norm_eps,
            rope_theta: Some(config.rope.theta),
            rope_scaling,
            rope_parameters: None,
            original_max_position_embeddings: None,
            hidden_act: default_act(),
            attention_bias: false,
            mlp_bias: false,
            tie_word_embeddings: config.tied,
            eos_token_id: Some(Ids(vec![eos])),
            torch_dtype: Some("float32".to_string()),
        }
    }
}
