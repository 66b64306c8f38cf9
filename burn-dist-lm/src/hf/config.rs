//! `config.json`.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use burn_dist::train::files::{self, JsonError};
use burn_dist::train::tokenizer::Text;
use burn_dist::trainer::folder::{CONFIG_BYTES_MAX, FolderError};
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::family::{self, BiasRule, FAMILIES, WindowRule, Written};
use crate::model::{
    Biases, Experts, LAYERS_MAX, LlamaConfig, Options, RopeConfig, RopeScaling, Window,
};

/// The fields of `config.json` that matter here.
#[derive(Debug, Deserialize)]
struct HfConfig {
    model_type: String,
    hidden_size: Whole,
    intermediate_size: Whole,
    num_hidden_layers: Whole,
    num_attention_heads: Whole,
    num_key_value_heads: Option<Whole>,
    head_dim: Option<Whole>,
    vocab_size: Whole,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    /// It takes the place of `rope_parameters`.
    rope_scaling: Option<HfRope>,
    /// Where newer files keep both of the above.
    rope_parameters: Option<HfRope>,
    /// Some keep it here instead of beside the other numbers of the scaling.
    original_max_position_embeddings: Option<Whole>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    max_position_embeddings: Option<Whole>,
    partial_rotary_factor: Option<f64>,
    use_sliding_window: Option<bool>,
    /// It is not the same whether it is null or not there.
    #[serde(default, deserialize_with = "there")]
    sliding_window: Option<Option<Whole>>,
    max_window_layers: Option<Whole>,
    layer_types: Option<Vec<String>>,
    /// For each layer, 1 with rotary positions and 0 without.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<Whole>,
    /// One family calls it so, the other thus.
    num_local_experts: Option<Whole>,
    num_experts: Option<Whole>,
    num_experts_per_tok: Option<Whole>,
    moe_intermediate_size: Option<Whole>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<Whole>,
    mlp_only_layers: Option<Vec<usize>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
struct HfRope {
    rope_type: Option<String>,
    /// The older name of the type.
    #[serde(rename = "type")]
    older_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<Whole>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
    /// Some models have other rotary positions in layers of each type.
    full_attention: Option<IgnoredAny>,
    sliding_attention: Option<IgnoredAny>,
}

/// Reads a field that is there.
fn there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Whole>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A whole number, which some write with a point: `8192.0`.
#[derive(Debug, Clone, Copy, PartialEq)]
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

impl From<Whole> for usize {
    fn from(whole: Whole) -> Self {
        whole.0
    }
}

/// Up to here, a float has all whole numbers.
const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;

/// The types of layers: without a window, and with one.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// A value, and the field in which it stands.
type FieldValue<T> = (&'static str, Option<T>);

/// A field, its value if that is another one than what is supported, and what is.
type Refused = (&'static str, Option<String>, &'static str);

/// Reads `config.json` of a folder.
///
/// # Errors
/// [`FolderError::Json`], [`FolderError::Architecture`], [`FolderError::Unsupported`], [`FolderError::Contrary`] or
/// [`FolderError::Sizes`].
pub(super) fn read_config(dir: &Path) -> Result<LlamaConfig, FolderError> {
    let path = &dir.join("config.json");
    let file: HfConfig = files::read_json(path, CONFIG_BYTES_MAX)?;
    let written = family::named(&file.model_type);
    let written = written.map_err(|nearest| FolderError::Architecture {
        path: path.clone(),
        found: file.model_type.clone(),
        nearest,
        known: FAMILIES.iter().map(|it| it.model_type).collect(),
    })?;
    let file = &file;
    Reader {
        path,
        file,
        written,
    }
    .config()
}

/// A file, and the family that it names.
struct Reader<'r> {
    path: &'r Path,
    file: &'r HfConfig,
    written: &'static Written,
}

impl Reader<'_> {
    fn config(&self) -> Result<LlamaConfig, FolderError> {
        let (file, written) = (self.file, self.written);
        let ropes = [&file.rope_scaling, &file.rope_parameters].into_iter();
        let shares = ropes.flatten().map(|rope| rope.partial_rotary_factor);
        let mut shares = shares.chain([file.partial_rotary_factor]).flatten();
        let share = shares.find(|share| *share != 1.0);
        let act = file.hidden_act.as_ref().filter(|act| *act != "silu");
        let bias = file.mlp_bias.filter(|has_bias| *has_bias);
        self.refuse([
            (
                "mlp_bias",
                bias.map(|bias| bias.to_string()),
                "no biases there",
            ),
            (
                "partial_rotary_factor",
                share.map(|share| share.to_string()),
                "rotary positions of whole heads",
            ),
            (
                "hidden_act",
                act.map(|act| format!("{act:?}")),
                "the activation \"silu\" only",
            ),
        ])?;
        let heads = file.num_attention_heads.0;
        let kv_heads = file.num_key_value_heads.map(usize::from);
        let config = LlamaConfig {
            dim: file.hidden_size.0,
            num_layers: file.num_hidden_layers.0,
            num_heads: heads,
            num_kv_heads: kv_heads.or(written.kv_heads).unwrap_or(heads),
            hidden_dim: file.intermediate_size.0,
            vocab: file.vocab_size.0,
            rope: self.rope()?,
            norm_eps: file.rms_norm_eps.unwrap_or(written.eps),
            // All values come from the checkpoint.
            init_std: 0.02,
            tied: file.tie_word_embeddings.unwrap_or(written.tied),
            options: self.options()?,
            adapters: None,
        };
        config.validate().map_err(|source| FolderError::Sizes {
            path: self.path.to_path_buf(),
            source: source.into(),
        })?;
        Ok(config)
    }

    /// The options that the family and the file say besides the sizes.
    fn options(&self) -> Result<Options, FolderError> {
        let (file, written) = (self.file, self.written);
        let shared = file.hidden_size.0 / file.num_attention_heads.0.max(1);
        let head_dim = file.head_dim.map(usize::from).or(written.head_dim);
        let unturned = match written.unturned {
            true => self.unturned()?,
            false => BTreeSet::new(),
        };
        let experts = written.experts.as_ref();
        Ok(Options {
            family: written.family,
            head_dim: head_dim.filter(|width| *width != shared),
            biases: match written.biases {
                BiasRule::Inputs => Biases::Inputs,
                BiasRule::Said if file.attention_bias == Some(true) => Biases::All,
                BiasRule::Said | BiasRule::Never => Biases::None,
            },
            head_norms: written.head_norms,
            window: self.window(&unturned)?,
            unturned,
            experts: experts.map(|usual| self.experts(usual)).transpose()?,
        })
    }

    /// The experts of each layer; what the file does not say is as `usual`.
    fn experts(&self, usual: &Experts) -> Result<Experts, FolderError> {
        let file = self.file;
        let says_norm = self.written.says_norm;
        let norm = match file.norm_topk_prob {
            _ if !says_norm => None,
            Some(true) => None,
            Some(false) => Some("false".to_string()),
            None => Some("not there".to_string()),
        };
        let dense = file.mlp_only_layers.as_ref();
        let dense = dense.filter(|layers| !layers.is_empty());
        let step = file.decoder_sparse_step.filter(|step| step.0 != 1);
        self.refuse([
            (
                "norm_topk_prob",
                norm,
                "weights of a token's experts that sum to 1",
            ),
            (
                "mlp_only_layers",
                dense.map(|layers| format!("{layers:?}")),
                "experts in all layers",
            ),
            (
                "decoder_sparse_step",
                step.map(|step| step.0.to_string()),
                "experts in all layers",
            ),
        ])?;
        let one = ("num_experts", file.num_experts.map(usize::from));
        let other = ("num_local_experts", file.num_local_experts.map(usize::from));
        let top_k = file.num_experts_per_tok.map(usize::from);
        let width = match says_norm {
            true => file.moe_intermediate_size,
            false => Some(file.intermediate_size),
        };
        Ok(Experts {
            num: self.alike(one, other)?.unwrap_or(usual.num),
            top_k: top_k.unwrap_or(usual.top_k),
            hidden_dim: width.map_or(usual.hidden_dim, usize::from),
        })
    }

    /// The number of layers. Beyond any model's, sizes are refused as soon as all are known.
    fn layers(&self) -> usize {
        self.file.num_hidden_layers.0.min(LAYERS_MAX)
    }

    /// The layers without rotary positions.
    fn unturned(&self) -> Result<BTreeSet<usize>, FolderError> {
        let interval = self.file.no_rope_layer_interval.map_or(4, usize::from);
        let usual = |layer: usize| u8::from(!(layer + 1).is_multiple_of(interval.max(1)));
        let turned = match &self.file.no_rope_layers {
            Some(turned) => turned,
            None => &(0..self.layers()).map(usual).collect(),
        };
        let turned = self.each_layer("no_rope_layers", turned)?;
        let unturned = turned.filter(|(_, turns)| **turns == 0);
        Ok(unturned.map(|(layer, _)| layer).collect())
    }

    /// The window, and the layers that have it.
    fn window(&self, unturned: &BTreeSet<usize>) -> Result<Option<Window>, FolderError> {
        let file = self.file;
        let from = |first: usize| (first.min(self.layers())..self.layers()).collect();
        let is_used = file.use_sliding_window == Some(true);
        let (usual_keys, usual_layers, listed) = match self.written.windows {
            WindowRule::All(keys) => (keys, from(0), None),
            WindowRule::AllUsed(keys) if is_used => (Some(keys), from(0), None),
            WindowRule::From(keys) if is_used => {
                let first = file.max_window_layers.map_or(28, usize::from);
                (Some(keys), from(first), file.layer_types.as_ref())
            }
            WindowRule::Unturned if is_used => (None, unturned.clone(), file.layer_types.as_ref()),
            WindowRule::Never
            | WindowRule::AllUsed(_)
            | WindowRule::From(_)
            | WindowRule::Unturned => return Ok(None),
        };
        let keys = match file.sliding_window {
            Some(keys) => keys.map(usize::from),
            None => usual_keys,
        };
        let mut layers = usual_layers;
        if let Some(types) = listed {
            layers.clear();
            for (layer, kind) in self.each_layer("layer_types", types)? {
                let other = ![FULL, SLIDING].contains(&kind.as_str());
                self.refuse([(
                    "layer_types",
                    other.then(|| format!("{kind:?}")),
                    "layers of \"full_attention\" and \"sliding_attention\"",
                )])?;
                layers.extend((kind == SLIDING).then_some(layer));
            }
        }
        let window = keys.map(|keys| Window { keys, layers });
        Ok(window.filter(|window| !window.layers.is_empty()))
    }

    fn rope(&self) -> Result<RopeConfig, FolderError> {
        let file = self.file;
        let none = HfRope::default();
        let scaling = file.rope_scaling.as_ref().filter(|rope| **rope != none);
        let parameters = file.rope_parameters.as_ref().unwrap_or(&none);
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
        let here = ("rope_theta", file.rope_theta);
        let theta = self.alike((theta_name, rope.rope_theta), here)?;
        if let (None, Some(lost)) = (theta, parameters.rope_theta) {
            return Err(self.wrong(format!(
                "rope_scaling takes the place of rope_parameters, and there is a rope_theta of {lost} there: write it \
                 into rope_scaling"
            )));
        }
        let named = match rope.rope_theta {
            Some(_) => theta_name,
            None => "rope_theta",
        };
        let lost = ("rope_parameters.rope_theta", parameters.rope_theta);
        self.alike(lost, (named, theta))?;
        let older = (older_name, rope.older_type.as_deref());
        let kind = self.alike((type_name, rope.rope_type.as_deref()), older)?;
        let is_of_types = rope.full_attention.is_some() || rope.sliding_attention.is_some();
        self.refuse([(
            "rope_parameters",
            is_of_types.then(|| "for each type of layers".to_string()),
            "one for all layers",
        )])?;
        let kind = kind.filter(|kind| *kind != "default");
        let scaling = kind.map(|kind| self.scaling(kind, rope, length_name));
        Ok(RopeConfig {
            theta: theta.unwrap_or(self.written.theta),
            scaling: scaling.transpose()?,
        })
    }

    /// The scaling of a kind.
    fn scaling(
        &self,
        kind: &str,
        rope: &HfRope,
        length_name: &'static str,
    ) -> Result<RopeScaling, FolderError> {
        let file = self.file;
        let missing = |field| self.wrong(format!("rope_type {kind} needs {field}"));
        let needed = |value: Option<f64>, field| value.ok_or_else(|| missing(field));
        let factor = || needed(rope.factor, "factor");
        let max_position = || {
            let length = file.max_position_embeddings.map(usize::from);
            length.ok_or_else(|| missing("max_position_embeddings"))
        };
        let original = || {
            let field = "original_max_position_embeddings";
            let here = file.original_max_position_embeddings.map(usize::from);
            let there = rope.original_max_position_embeddings.map(usize::from);
            let found = self.alike((length_name, there), (field, here))?;
            found.ok_or_else(|| missing(field))
        };
        Ok(match kind {
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
            _ => {
                return Err(self.unsupported(
                    "rope_type",
                    format!("{kind:?}"),
                    "\"default\", \"linear\", \"dynamic\", \"llama3\" and \"yarn\"",
                ));
            }
        })
    }

    /// Returns the entries of a list that has something of each layer.
    fn each_layer<'l, T>(
        &self,
        field: &str,
        list: &'l [T],
    ) -> Result<impl Iterator<Item = (usize, &'l T)> + use<'l, T>, FolderError> {
        let (found, layers) = (list.len(), self.layers());
        match found < layers {
            true => Err(self.wrong(format!(
                "{field} has {found} entries, and there are {layers} layers"
            ))),
            false => Ok(list.iter().take(layers).enumerate()),
        }
    }

    /// Returns the value of one of two fields, or of both of them alike.
    fn alike<T: PartialEq + Display>(
        &self,
        (field, one): FieldValue<T>,
        (field_too, other): FieldValue<T>,
    ) -> Result<Option<T>, FolderError> {
        match (one, other) {
            (Some(one), Some(other)) if one != other => Err(FolderError::Contrary {
                path: self.path.to_path_buf(),
                field,
                one: one.to_string(),
                field_too,
                other: other.to_string(),
            }),
            (one, other) => Ok(one.or(other)),
        }
    }

    /// Refuses the first field that has another value than what is supported.
    fn refuse<const N: usize>(&self, fields: [Refused; N]) -> Result<(), FolderError> {
        for (field, found, supported) in fields {
            if let Some(found) = found {
                return Err(self.unsupported(field, found, supported));
            }
        }
        Ok(())
    }

    fn unsupported(
        &self,
        field: &'static str,
        found: String,
        supported: &'static str,
    ) -> FolderError {
        FolderError::Unsupported {
            path: self.path.to_path_buf(),
            field,
            found,
            supported,
        }
    }

    /// The error of a file that does not say enough, or not right.
    fn wrong(&self, reason: String) -> FolderError {
        let path = self.path.to_path_buf();
        JsonError::Json { path, reason }.into()
    }
}

impl HfRope {
    /// The factor of scores, by a factor of lengths.
    fn grown(&self, factor: f64) -> f64 {
        let grown = |by: f64| match factor <= 1.0 {
            true => 1.0,
            false => 0.1 * by * factor.ln() + 1.0,
        };
        match (self.mscale, self.mscale_all_dim) {
            (Some(by), Some(all)) if by != 0.0 && all != 0.0 => grown(by) / grown(all),
            _ => grown(1.0),
        }
    }
}

/// Returns the `config.json` of a model that was made here.
pub(super) fn written(config: &LlamaConfig, text: &Text) -> Vec<u8> {
    let written = family::written(config.options.family);
    let Options {
        window,
        unturned,
        experts,
        biases,
        ..
    } = &config.options;
    let layers = || 0..config.num_layers;
    let mut file = json!({
        "model_type": written.model_type,
        "architectures": [written.architecture],
        "hidden_size": config.dim,
        "intermediate_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim(),
        "vocab_size": config.vocab,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": config.rope.scaling,
        "hidden_act": "silu",
        "attention_bias": *biases == Biases::All,
        "mlp_bias": false,
        "tie_word_embeddings": config.tied,
        "eos_token_id": text.end(),
        "torch_dtype": "float32",
    });
    let mut add = |field: &str, value: Value| file[field] = value;
    if let Some(RopeScaling::Dynamic { max_position, .. }) = config.rope.scaling {
        add("max_position_embeddings", max_position.into());
    }
    let keys = window.as_ref().map(|window| window.keys);
    if matches!(written.windows, WindowRule::All(_)) {
        add("sliding_window", keys.into());
    } else if keys.is_some() {
        let layer_type = |layer| config.options.window_of(layer).map_or(FULL, |_| SLIDING);
        add("use_sliding_window", true.into());
        add("sliding_window", keys.into());
        add("layer_types", layers().map(layer_type).collect());
    }
    if written.unturned {
        let turns = |layer| u8::from(!unturned.contains(&layer));
        add("no_rope_layers", layers().map(turns).collect());
    }
    if let Some(experts) = experts {
        add("num_experts_per_tok", experts.top_k.into());
        if written.says_norm {
            add("num_experts", experts.num.into());
            add("moe_intermediate_size", experts.hidden_dim.into());
            add("norm_topk_prob", true.into());
        } else {
            add("num_local_experts", experts.num.into());
        }
    }
    format!("{file:#}\n").into_bytes()
}
