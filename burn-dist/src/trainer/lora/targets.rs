//! Which layers get adapters.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use burn_dist_plan::pattern::Pattern;

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
    /// Layers whose path one of these names.
    Named(Vec<Pattern>),
}

const ALL: &str = "all-linear";
/// The beginning of a path, before the name of a target in its pattern.
const ANY: &str = "**.";

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
            let paths = layers.iter().map(|(name, layer)| (path(name), layer));
            let found: Vec<_> = paths.filter(|(path, _)| target.matches(path)).collect();
            if found.is_empty() {
                let (target, names) = (name_of(target), layers.lasts());
                return Err(AdapterError::Target { target, names });
            }
            matrices.extend(found.into_iter().map(|(_, layer)| layer.matrix.clone()));
        }
        Ok(matrices)
    }
}

fn path(name: &str) -> Vec<String> {
    name.split('.').map(str::to_string).collect()
}

/// The text that a target was read from.
fn name_of(target: &Pattern) -> String {
    target.to_string().split_off(ANY.len())
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllLinear => f.write_str(ALL),
            Self::Named(targets) => {
                let names: Vec<String> = targets.iter().map(name_of).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl FromStr for Targets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == ALL {
            return Ok(Self::AllLinear);
        }
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '*' | '.');
        let target = |name: &str| {
            let name = name.trim();
            let target = Pattern::parse(&format!("{ANY}{name}")).ok();
            target.filter(|_| name.chars().all(is_known)).ok_or_else(|| {
                format!(
                    "`{name}` names no layer: write all-linear, or names and patterns such as q_proj,v_proj or mlp.*"
                )
            })
        };
        let targets = text.split(',').map(target);
        Ok(Self::Named(targets.collect::<Result<_, _>>()?))
    }
}
