//! Updates of a module that neither `visit` nor `map` sees.
//!
//! `RunningState`, which `BatchNorm` has, keeps its last update apart until it is asked for a record: `visit` shows the
//! value of the step before, and the update replaces later what `map` puts there. So a module is asked for its record
//! before it is visited to be saved, and before values are put into it. What its record holds beside parameters that
//! are visited would be lost: that is an error.

use std::collections::HashSet;

use burn_core::module::{Module, ModuleMapper, Param, Parameter};
use burn_core::record::{FullPrecisionSettings, Record};
use burn_core::tensor::backend::Backend;
use burn_core::tensor::{BasicOps, Bool, Int, Tensor};
use serde_json::Value;

use super::token::index_in;
use crate::parallel::MeshBackend;
use burn_dist_door::{Nonce, taking};

/// Settles the state of a module, so that `visit` shows what its record holds, and nothing replaces later what `map`
/// puts there. Returns the record; parameters that have no value have an empty one in it.
pub(super) fn settle<B: Backend, M: Module<B>>(module: &M) -> M::Record {
    // A clone shares its running states with the module.
    module.clone().map(&mut Bare).into_record()
}

/// Gives parameters back without what a record would do to them, which takes time, and values to those that have none:
/// empty ones, for a record would draw them.
struct Bare;

impl<B: Backend> ModuleMapper<B> for Bare {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        bare(param)
    }

    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        bare(param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        bare(param)
    }
}

fn bare<B: Backend, const D: usize, K: BasicOps<B>>(
    param: Param<Tensor<B, D, K>>,
) -> Param<Tensor<B, D, K>>
where
    Tensor<B, D, K>: Parameter<Device = B::Device>,
{
    let value = match param.is_initialized() {
        true => param.val(),
        false => Tensor::empty([0; D], &param.lazy_device()),
    };
    Param::initialized(param.id, value)
}

/// Returns where a record has something beside parameters of these ids, if it has; an error is one of its text.
pub(super) fn unseen<B: MeshBackend>(
    record: impl Record<B>,
    ids: &HashSet<String>,
) -> Result<Option<String>, serde_json::Error> {
    let write = || serde_json::to_value(record.into_item::<FullPrecisionSettings>());
    let (text, nonce, _) = taking(write);
    let mut path = Vec::new();
    let is_unseen = find(&text?, nonce, ids, &mut path);
    Ok(is_unseen.then(|| path.join(".")))
}

/// Leads `path` to the first value that is no parameter of these ids.
fn find(value: &Value, nonce: Nonce, ids: &HashSet<String>, path: &mut Vec<String>) -> bool {
    let mut at = |segment: String, value: &Value| {
        path.push(segment);
        let is_found = find(value, nonce, ids, path);
        if !is_found {
            path.pop();
        }
        is_found
    };
    match value {
        Value::Null => false,
        Value::Object(map) => {
            let id = map.get("id").and_then(Value::as_str);
            let param = map.get("param").and_then(Value::as_object);
            match (id, param) {
                (Some(id), Some(param)) if map.len() == 2 && index_in(nonce, param).is_some() => {
                    !ids.contains(id)
                }
                _ => {
                    let mut each = map.iter();
                    each.any(|(key, value)| at(key.clone(), value))
                }
            }
        }
        Value::Array(values) => {
            let mut each = values.iter().enumerate();
            each.any(|(index, value)| at(index.to_string(), value))
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}
