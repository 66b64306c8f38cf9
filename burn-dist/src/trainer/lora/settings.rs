//! `adapter_config.json`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::adapters::{Adapters, Base};
use super::error::AdapterError;
use crate::train::files::read_json;
use crate::trainer::folder::CONFIG_BYTES_MAX;

/// The name of the file.
pub(super) const FILE: &str = "adapter_config.json";

/// Fields that have to say nothing: each asks for other adapters than two factors of one rank beside a frozen matrix.
const EMPTY: &[&str] = &[
    "use_dora",
    "use_qalora",
    "bias",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
    "velora_config",
];

/// Starts of adapters that change the base.
const OTHER_BASES: &[&str] = &["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Reads the settings of a folder: adapters of no matrices yet.
///
/// # Errors
/// [`AdapterError::Json`] and [`AdapterError::Unsupported`].
pub(super) fn read(dir: &Path) -> Result<Adapters, AdapterError> {
    let path = dir.join(FILE);
    let fields: Map<String, Value> = read_json(&path, CONFIG_BYTES_MAX)?;
    let value = |field| fields.get(field).unwrap_or(&Value::Null);
    let unsupported = |field, supported| AdapterError::Unsupported {
        path: path.clone(),
        field,
        found: value(field).to_string(),
        supported,
    };
    if value("peft_type") != "LORA" {
        return Err(unsupported("peft_type", "\"LORA\""));
    }
    if let Some(field) = EMPTY.iter().find(|field| !says_nothing(value(field))) {
        return Err(unsupported(field, "not set"));
    }
    let start = value("init_lora_weights").as_str().unwrap_or_default();
    if OTHER_BASES.iter().any(|other| start.starts_with(other)) {
        return Err(unsupported(
            "init_lora_weights",
            "true, or another start that leaves the base as it is",
        ));
    }
    let rank = value("r").as_u64().filter(|rank| *rank > 0);
    let rank = rank.and_then(|rank| usize::try_from(rank).ok());
    let alpha = value("lora_alpha").as_f64();
    let dropout = match value("lora_dropout") {
        Value::Null => Some(0.0),
        dropout => dropout.as_f64(),
    };
    Ok(Adapters {
        rank: rank.ok_or_else(|| unsupported("r", "a whole number from 1"))?,
        alpha: alpha.ok_or_else(|| unsupported("lora_alpha", "a number"))?,
        is_rank_stabilized: value("use_rslora") == &Value::Bool(true),
        dropout: dropout
            .filter(|share| (0.0..1.0).contains(share))
            .ok_or_else(|| unsupported("lora_dropout", "a number from 0 to below 1"))?,
        base: Base::F32,
        matrices: BTreeSet::new(),
    })
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty() || text == "none",
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Returns the file of adapters, as PEFT writes it, for layers of these names of the model in a folder.
pub(super) fn written(adapters: &Adapters, targets: &[String], base: &str) -> Vec<u8> {
    let whole = adapters.alpha as i64;
    let alpha = match whole as f64 == adapters.alpha {
        true => json!(whole),
        false => json!(adapters.alpha),
    };
    let config = json!({
        "alpha_pattern": {},
        "auto_mapping": null,
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "lora_alpha": alpha,
        "lora_dropout": adapters.dropout,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": adapters.rank,
        "rank_pattern": {},
        "revision": null,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": adapters.is_rank_stabilized,
    });
    format!("{config:#}\n").into_bytes()
}
