//! `config.json`.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use burn_dist::train::files::{self, JsonError};
use burn_dist::train::tokenizer::{Ids, Text};
use burn_dist::trainer::folder::{CONFIG_BYTES_MAX, FolderError};
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};

use super::family::{self, BiasRule, FAMILIES, WindowRule, Written};
use crate::model::{
    Biases, Experts, LAYERS_MAX, LlamaConfig, Options, RopeConfig, RopeScaling, Window,
};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    rms_norm_eps: Option<f64>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    tie_word_embeddings: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_position_embeddings: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_rotary_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    use_sliding_window: Option<bool>,
    /// It is not the same whether it is null or not there.
    #[serde(
        default,
        deserialize_with = "there",
        skip_serializing_if = "Option::is_none"
    )]
    sliding_window: Option<Option<Whole>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_window_layers: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer_types: Option<Vec<String>>,
    /// For each layer, 1 with rotary positions and 0 without.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_rope_layers: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_rope_layer_interval: Option<Whole>,
    /// One family calls it so, the other thus.
    #[serde(skip_serializing_if = "Option::is_none")]
    num_local_experts: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_experts: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_experts_per_tok: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moe_intermediate_size: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    norm_topk_prob: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decoder_sparse_step: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mlp_only_layers: Option<Vec<usize>>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    attention_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mscale: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mscale_all_dim: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beta_fast: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beta_slow: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncate: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_rotary_factor: Option<f64>,
    /// Some models have other rotary positions in layers of each type.
    #[serde(skip_serializing)]
    full_attention: Option<IgnoredAny>,
    #[serde(skip_serializing)]
    sliding_attention: Option<IgnoredAny>,
}

/// Reads a field that is there.
fn there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Whole>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
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

/// The types of layers: without a window, and with one.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

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

/// Returns the error of a field that has another value than what is supported, of a file.
fn unsupported(path: &Path) -> impl Fn(&'static str, String, &'static str) -> FolderError {
    |field, found, supported| FolderError::Unsupported {
        path: path.to_path_buf(),
        field,
        found,
        supported,
    }
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
        let unsupported = unsupported(path);
        let written = family::named(&self.model_type);
        let written = written.map_err(|nearest| FolderError::Architecture {
            path: path.to_path_buf(),
            found: self.model_type.clone(),
            nearest,
            known: FAMILIES.iter().map(|it| it.model_type).collect(),
        })?;
        if self.mlp_bias {
            return Err(unsupported(
                "mlp_bias",
                "true".to_string(),
                "no biases there",
            ));
        }
        let of_rope = [&self.rope_scaling, &self.rope_parameters];
        let of_rope = of_rope
            .into_iter()
            .flatten()
            .map(|rope| rope.partial_rotary_factor);
        let mut partial = of_rope.chain([self.partial_rotary_factor]).flatten();
        if let Some(share) = partial.find(|share| *share != 1.0) {
            let supported = "rotary positions of whole heads";
            return Err(unsupported(
                "partial_rotary_factor",
                share.to_string(),
                supported,
            ));
        }
        if self.hidden_act != "silu" {
            return Err(unsupported(
                "hidden_act",
                format!("{:?}", self.hidden_act),
                "the activation \"silu\" only",
            ));
        }
        let config = LlamaConfig {
            dim: self.hidden_size.0,
            num_layers: self.num_hidden_layers.0,
            num_heads: self.num_attention_heads.0,
            num_kv_heads: match (self.num_key_value_heads, written.kv_heads) {
                (Some(Whole(heads)), _) | (None, Some(heads)) => heads,
                (None, None) => self.num_attention_heads.0,
            },
            hidden_dim: self.intermediate_size.0,
            vocab: self.vocab_size.0,
            rope: self.rope(path, written)?,
            norm_eps: self.rms_norm_eps.unwrap_or(written.eps),
            // All values come from the checkpoint.
            init_std: 0.02,
            tied: self.tie_word_embeddings.unwrap_or(written.tied),
            options: self.options(path, written)?,
            adapters: None,
        };
        config.validate().map_err(|source| FolderError::Sizes {
            path: path.to_path_buf(),
            source: source.into(),
        })?;
        Ok(config)
    }

    /// The options that the family and the file say besides the sizes.
    fn options(&self, path: &Path, written: &Written) -> Result<Options, FolderError> {
        // Beyond any model's, sizes are refused as soon as all are known.
        let layers = self.num_hidden_layers.0.min(LAYERS_MAX);
        let shared = self.hidden_size.0 / self.num_attention_heads.0.max(1);
        let head_dim = self.head_dim.map(|Whole(width)| width);
        let unturned = match written.unturned {
            true => self.unturned(path, layers)?,
            false => BTreeSet::new(),
        };
        Ok(Options {
            family: written.family,
            head_dim: head_dim
                .or(written.head_dim)
                .filter(|width| *width != shared),
            biases: match written.biases {
                BiasRule::Inputs => Biases::Inputs,
                BiasRule::Said if self.attention_bias => Biases::All,
                BiasRule::Said | BiasRule::Never => Biases::None,
            },
            head_norms: written.head_norms,
            window: self.window(path, (written, layers), &unturned)?,
            unturned,
            experts: match &written.experts {
                Some(usual) => Some(self.experts(path, written, usual)?),
                None => None,
            },
        })
    }

    /// The experts of each layer; what the file does not say is as `usual`.
    fn experts(
        &self,
        path: &Path,
        written: &Written,
        usual: &Experts,
    ) -> Result<Experts, FolderError> {
        let unsupported = unsupported(path);
        if written.says_norm && self.norm_topk_prob != Some(true) {
            let found = self
                .norm_topk_prob
                .map_or("not there", |_| "false")
                .to_string();
            return Err(unsupported(
                "norm_topk_prob",
                found,
                "weights of a token's experts that sum to 1",
            ));
        }
        let dense = self
            .mlp_only_layers
            .as_ref()
            .filter(|layers| !layers.is_empty());
        if let Some(layers) = dense {
            return Err(unsupported(
                "mlp_only_layers",
                format!("{layers:?}"),
                "experts in all layers",
            ));
        }
        if let Some(Whole(step)) = self.decoder_sparse_step.filter(|step| step.0 != 1) {
            return Err(unsupported(
                "decoder_sparse_step",
                step.to_string(),
                "experts in all layers",
            ));
        }
        let number = |whole: Option<Whole>| whole.map(|Whole(number)| number);
        let one = ("num_experts", number(self.num_experts));
        let other = ("num_local_experts", number(self.num_local_experts));
        let hidden_dim = match written.says_norm {
            true => number(self.moe_intermediate_size).unwrap_or(usual.hidden_dim),
            false => self.intermediate_size.0,
        };
        Ok(Experts {
            num: alike(path, one, other)?.unwrap_or(usual.num),
            top_k: number(self.num_experts_per_tok).unwrap_or(usual.top_k),
            hidden_dim,
        })
    }

    /// The layers without rotary positions.
    fn unturned(&self, path: &Path, layers: usize) -> Result<BTreeSet<usize>, FolderError> {
        let turned = match (&self.no_rope_layers, self.no_rope_layer_interval) {
            (Some(turned), _) => turned.clone(),
            (None, interval) => {
                let interval = interval.map_or(4, |Whole(interval)| interval).max(1);
                let turns = |layer: usize| u8::from(!(layer + 1).is_multiple_of(interval));
                (0..layers).map(turns).collect()
            }
        };
        self.each_layer(path, ("no_rope_layers", turned.len()), layers)?;
        let turned = turned.into_iter().take(layers).enumerate();
        Ok(turned
            .filter(|(_, turns)| *turns == 0)
            .map(|(layer, _)| layer)
            .collect())
    }

    /// The window, and the layers that have it.
    fn window(
        &self,
        path: &Path,
        (written, layers): (&Written, usize),
        unturned: &BTreeSet<usize>,
    ) -> Result<Option<Window>, FolderError> {
        let keys = |default: Option<usize>| match self.sliding_window {
            Some(keys) => keys.map(|Whole(keys)| keys),
            None => default,
        };
        let is_used = self.use_sliding_window.unwrap_or(false);
        let from = |first: usize| (first.min(layers)..layers).collect();
        let (keys, otherwise) = match written.windows {
            WindowRule::All(default) => (keys(default), from(0)),
            WindowRule::AllUsed(default) if is_used => (keys(Some(default)), from(0)),
            WindowRule::From(default) if is_used => {
                let first = self.max_window_layers.map_or(28, |Whole(first)| first);
                (keys(Some(default)), from(first))
            }
            WindowRule::Unturned if is_used => (keys(None), unturned.clone()),
            WindowRule::Never
            | WindowRule::AllUsed(_)
            | WindowRule::From(_)
            | WindowRule::Unturned => return Ok(None),
        };
        let listed = self.layer_types.as_ref();
        let of_all = matches!(written.windows, WindowRule::All(_) | WindowRule::AllUsed(_));
        let listed = listed.filter(|_| !of_all);
        let layers = match listed {
            None => otherwise,
            Some(types) => {
                self.each_layer(path, ("layer_types", types.len()), layers)?;
                let mut windowed = BTreeSet::new();
                for (layer, kind) in types.iter().take(layers).enumerate() {
                    match kind.as_str() {
                        FULL => {}
                        SLIDING => drop(windowed.insert(layer)),
                        _ => {
                            return Err(FolderError::Unsupported {
                                path: path.to_path_buf(),
                                field: "layer_types",
                                found: format!("{kind:?}"),
                                supported: "layers of \"full_attention\" and \"sliding_attention\"",
                            });
                        }
                    }
                }
                windowed
            }
        };
        let window = keys.map(|keys| Window { keys, layers });
        Ok(window.filter(|window| !window.layers.is_empty()))
    }

    /// Refuses a list that has not something of each layer.
    fn each_layer(
        &self,
        path: &Path,
        (field, found): (&'static str, usize),
        layers: usize,
    ) -> Result<(), FolderError> {
        match found < layers {
            true => Err(JsonError::Json {
                path: path.to_path_buf(),
                reason: format!("{field} has {found} entries, and there are {layers} layers"),
            }
            .into()),
            false => Ok(()),
        }
    }

    fn rope(&self, path: &Path, written: &Written) -> Result<RopeConfig, FolderError> {
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
        let theta = theta.unwrap_or(written.theta);
        let older = (older_name, rope.older_type.as_deref());
        let rope_type = alike(path, (type_name, rope.rope_type.as_deref()), older)?;
        let unsupported = unsupported(path);
        if rope.full_attention.is_some() || rope.sliding_attention.is_some() {
            let found = "for each type of layers".to_string();
            return Err(unsupported("rope_parameters", found, "one for all layers"));
        }
        let scaling = match rope_type {
            None | Some("default") => None,
            Some(kind) => {
                let scaling = self.scaling((path, kind), rope, length_name)?;
                Some(scaling.ok_or_else(|| {
                    let kinds = "\"default\", \"linear\", \"dynamic\", \"llama3\" and \"yarn\"";
                    unsupported("rope_type", format!("{kind:?}"), kinds)
                })?)
            }
        };
        Ok(RopeConfig { theta, scaling })
    }

    /// The scaling of a kind, if there is one of this name.
    fn scaling(
        &self,
        (path, kind): (&Path, &str),
        rope: &HfRope,
        length_name: &'static str,
    ) -> Result<Option<RopeScaling>, FolderError> {
        let missing = |field: &str| JsonError::Json {
            path: path.to_path_buf(),
            reason: format!("rope_type {kind} needs {field}"),
        };
        let needed = |value: Option<f64>, field| value.ok_or_else(|| missing(field));
        let length = |whole: Option<Whole>| whole.map(|Whole(length)| length);
        let max_position = || {
            let field = "max_position_embeddings";
            length(self.max_position_embeddings).ok_or_else(|| missing(field))
        };
        let original = || {
            let field = "original_max_position_embeddings";
            let here = (field, length(self.original_max_position_embeddings));
            let there = (length_name, length(rope.original_max_position_embeddings));
            let found = alike(path, there, here)?;
            Ok::<_, FolderError>(found.ok_or_else(|| missing(field))?)
        };
        let factor = || needed(rope.factor, "factor");
        Ok(Some(match kind {
            "linear" => RopeScaling::Linear { factor: factor()? },
            "dynamic" => RopeScaling::Dynamic {
                factor: factor()?,
                max_position: max_position()?,
            },
            "llama3" => RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: needed(rope.low_freq_factor, "low_freq_factor")?,
                high_freq_factor: needed(rope.high_freq_factor, "high_freq_factor")?,
                original_max_position: original()?,
            },
            "yarn" => {
                let original_max_position = original()?;
                let factor = match rope.factor {
                    Some(factor) => factor,
                    None => max_position()? as f64 / original_max_position as f64,
                };
                RopeScaling::Yarn {
                    factor,
                    attention_factor: rope.attention_factor.unwrap_or_else(|| rope.grown(factor)),
                    beta_fast: rope.beta_fast.unwrap_or(32.0),
                    beta_slow: rope.beta_slow.unwrap_or(1.0),
                    truncate: rope.truncate.unwrap_or(true),
                    original_max_position,
                }
            }
            _ => return Ok(None),
        }))
    }

    /// The configuration of `config`, whose answers end with `eos`.
    fn from_llama(config: &LlamaConfig, eos: u32) -> Self {
        let written = family::written(config.options.family);
        let Options {
            window,
            unturned,
            experts,
            ..
        } = &config.options;
        let experts_as = |is_so: bool| experts.as_ref().filter(|_| is_so);
        let layers = || 0..config.num_layers;
        let window_of_all = matches!(written.windows, WindowRule::All(_));
        let layer_type = |layer| match config.options.window_of(layer) {
            Some(_) => SLIDING.to_string(),
            None => FULL.to_string(),
        };
        let keys = window.as_ref().map(|window| Whole(window.keys));
        Self {
            model_type: written.model_type.to_string(),
            architectures: Some(vec![written.architecture.to_string()]),
            hidden_size: Whole(config.dim),
            intermediate_size: Whole(config.hidden_dim),
            num_hidden_layers: Whole(config.num_layers),
            num_attention_heads: Whole(config.num_heads),
            num_key_value_heads: Some(Whole(config.num_kv_heads)),
            head_dim: Some(Whole(config.head_dim())),
            vocab_size: Whole(config.vocab),
            rms_norm_eps: Some(config.norm_eps),
            rope_theta: Some(config.rope.theta),
            rope_scaling: config.rope.scaling.as_ref().map(HfRope::of),
            rope_parameters: None,
            original_max_position_embeddings: None,
            hidden_act: default_act(),
            attention_bias: config.options.biases == Biases::All,
            mlp_bias: false,
            tie_word_embeddings: Some(config.tied),
            max_position_embeddings: match config.rope.scaling {
                Some(RopeScaling::Dynamic { max_position, .. }) => Some(Whole(max_position)),
                _ => None,
            },
            partial_rotary_factor: None,
            use_sliding_window: (window.is_some() && !window_of_all).then_some(true),
            sliding_window: (window.is_some() || window_of_all).then_some(keys),
            max_window_layers: None,
            layer_types: (window.is_some() && !window_of_all)
                .then(|| layers().map(layer_type).collect()),
            no_rope_layers: written.unturned.then(|| {
                let turns = |layer| u8::from(!unturned.contains(&layer));
                layers().map(turns).collect()
            }),
            no_rope_layer_interval: None,
            num_local_experts: experts_as(!written.says_norm).map(|it| Whole(it.num)),
            num_experts: experts_as(written.says_norm).map(|it| Whole(it.num)),
            num_experts_per_tok: experts.as_ref().map(|it| Whole(it.top_k)),
            moe_intermediate_size: experts_as(written.says_norm).map(|it| Whole(it.hidden_dim)),
            norm_topk_prob: written.says_norm.then_some(true),
            decoder_sparse_step: None,
            mlp_only_layers: None,
            eos_token_id: Some(Ids(vec![eos])),
            torch_dtype: Some("float32".to_string()),
        }
    }
}

impl HfRope {
    /// The factor of scores, by a factor of lengths.
    fn grown(&self, factor: f64) -> f64 {
        let grown = |by: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * by * factor.ln() + 1.0
            }
        };
        match (self.mscale, self.mscale_all_dim) {
            (Some(by), Some(all)) if by != 0.0 && all != 0.0 => grown(by) / grown(all),
            _ => grown(1.0),
        }
    }

    /// The form of a scaling.
    fn of(scaling: &RopeScaling) -> Self {
        let of = |kind: &str, factor| Self {
            rope_type: Some(kind.to_string()),
            factor: Some(factor),
            ..Self::default()
        };
        match *scaling {
            RopeScaling::Linear { factor } => of("linear", factor),
            RopeScaling::Dynamic { factor, .. } => of("dynamic", factor),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => Self {
                low_freq_factor: Some(low_freq_factor),
                high_freq_factor: Some(high_freq_factor),
                original_max_position_embeddings: Some(Whole(original_max_position)),
                ..of("llama3", factor)
            },
            RopeScaling::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                truncate,
                original_max_position,
            } => Self {
                attention_factor: Some(attention_factor),
                beta_fast: Some(beta_fast),
                beta_slow: Some(beta_slow),
                truncate: Some(truncate),
                original_max_position_embeddings: Some(Whole(original_max_position)),
                ..of("yarn", factor)
            },
        }
    }
}
