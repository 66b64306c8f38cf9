//! Which layers get adapters.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::error::AdapterError;
use super::layers::Layers;

/// Layers by name and pattern. Text form: `all-linear`, or names with commas between: `q_proj,v_proj`,
/// `layers.*.mlp.up_proj`, `self_attn.*`.
///
/// A name is the end of a layer's path in Hugging Face's library, from a point on, and `*` stands for any letters but
/// points. `all-linear` is all layers but the one that makes the logits.
///
/// # Source
/// `target_modules` of PEFT's `LoraConfig`. Differs: patterns in place of regular expressions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Targets {
    /// All layers but the one that makes the logits.
    #[default]
    AllLinear,
    /// Layers that one of these names.
    Named(Vec<String>),
}

const ALL: &str = "all-linear";

impl Targets {
    /// Returns the matrices of the layers that are named.
    ///
    /// # Errors
    /// [`AdapterError::Target`] for the first that names none.
    pub fn matrices(&self, layers: &Layers) -> Result<BTreeSet<String>, AdapterError> {
        let mut matrices = BTreeSet::new();
        let Self::Named(targets) = self else {
            let inner = layers.iter().filter(|(name, _)| !layers.is_output(name));
            matrices.extend(inner.map(|(_, layer)| layer.matrix.clone()));
            return Ok(matrices);
        };
        for target in targets {
            let found = layers.iter().filter(|(name, _)| fits(target, name));
            let mut found = found.map(|(_, layer)| layer.matrix.clone()).peekable();
            if found.peek().is_none() {
                return Err(AdapterError::Target {
                    target: target.clone(),
                    names: layers.lasts(),
                });
            }
            matrices.extend(found);
        }
        Ok(matrices)
    }
}

/// Returns whether a target names the end of a path.
fn fits(target: &str, path: &str) -> bool {
    let (mut names, mut found) = (target.rsplit('.'), path.rsplit('.'));
    names.all(|name| found.next().is_some_and(|found| is_like(name, found)))
}

/// Returns whether a name fits a pattern in which `*` stands for any letters.
fn is_like(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(start) else {
        return false;
    };
    let mut rest: Vec<&str> = rest.split('*').collect();
    let end = rest.pop().unwrap_or_default();
    let mut left = name;
    for part in rest {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(end)
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllLinear => f.write_str(ALL),
            Self::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

impl FromStr for Targets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == ALL {
            return Ok(Self::AllLinear);
        }
        let is_name = |name: &str| {
            let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '*');
            !name.is_empty()
                && name
                    .split('.')
                    .all(|part| !part.is_empty() && part.chars().all(is_known))
        };
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        match names.iter().find(|name| !is_name(name)) {
            Some(name) => Err(format!(
                "`{name}` names no layer: write all-linear, or names and patterns such as q_proj,v_proj or mlp.*"
            )),
            None => Ok(Self::Named(names.into_iter().map(str::to_string).collect())),
        }
    }
}
