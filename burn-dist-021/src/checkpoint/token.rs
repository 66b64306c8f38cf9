//! Tokens of tensors in records that are JSON.

use burn_core::tensor::TensorData;
use burn_dist_door::Nonce;
use serde_json::{Map, Value};

/// Returns the index of a tensor, if data that a record has as an object is a token of an exchange.
pub(super) fn index_in(nonce: Nonce, object: &Map<String, Value>) -> Option<usize> {
    let has = |key| object.contains_key(key);
    if object.len() != 3 || !has("bytes") || !has("dtype") {
        return None;
    }
    let data: TensorData = serde_json::from_value(Value::Object(object.clone())).ok()?;
    nonce.index(&data)
}
