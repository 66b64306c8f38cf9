//! The only contact with the mesh: which backend trains, on which device, and what it reports.
//!
//! Everything else in this program is generic over Burn's `Backend` and would run on one device as it is.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use burn::backend::Autodiff;
use burn::backend::flex::{Flex, FlexDevice};
use thiserror::Error;

use crate::model::Llama;
use crate::report::{PlanStats, RankMemory, Traffic};

/// The backend everything runs on.
pub type TrainBackend = Autodiff<Flex>;

/// Named axes with their sizes, outermost first, as `--mesh` takes them: `fsdp=2,tp=2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshSpec(Vec<(String, usize)>);

/// A `--mesh` that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeshError {
    /// An axis is not of the form `name=size`.
    #[error("`{0}` is no axis: write name=size, as in fsdp=2,tp=2")]
    Form(String),
    /// The size of an axis is no number of at least 1.
    #[error("axis {axis} has size `{size}`: it must be a whole number of at least 1")]
    Size {
        /// The axis.
        axis: String,
        /// What was given.
        size: String,
    },
    /// An axis is named twice.
    #[error("axis {0} is named twice: name each axis once")]
    Duplicate(String),
    /// This build has one device.
    #[error(
        "mesh {mesh} has {ranks} ranks, and this build runs on one device: leave --mesh out, or make every size 1"
    )]
    OneDevice {
        /// The mesh asked for.
        mesh: MeshSpec,
        /// Its number of ranks.
        ranks: usize,
    },
}

impl FromStr for MeshSpec {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        let mut axes: Vec<(String, usize)> = Vec::new();
        for part in text.split(',') {
            let (name, size) = part
                .split_once('=')
                .ok_or_else(|| MeshError::Form(part.to_string()))?;
            let (name, size) = (name.trim(), size.trim());
            if name.is_empty() {
                return Err(MeshError::Form(part.to_string()));
            }
            let bad_size = || MeshError::Size {
                axis: name.to_string(),
                size: size.to_string(),
            };
            let number: usize = size.parse().map_err(|_| bad_size())?;
            if number == 0 {
                return Err(bad_size());
            }
            if axes.iter().any(|(other, _)| other == name) {
                return Err(MeshError::Duplicate(name.to_string()));
            }
            axes.push((name.to_string(), number));
        }
        Ok(Self(axes))
    }
}

impl fmt::Display for MeshSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, size)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={size}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// What a training step would do on the mesh.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

/// The devices of this run.
#[derive(Debug)]
pub struct Mesh {
    spec: Option<MeshSpec>,
    device: FlexDevice,
}

impl Mesh {
    /// Opens the devices; without a spec, one.
    ///
    /// # Errors
    /// [`MeshError::OneDevice`].
    pub fn open(spec: Option<MeshSpec>) -> Result<Self, MeshError> {
        let mesh = Self {
            spec,
            device: FlexDevice,
        };
        match &mesh.spec {
            Some(spec) if mesh.world_size() > 1 => Err(MeshError::OneDevice {
                mesh: spec.clone(),
                ranks: mesh.world_size(),
            }),
            _ => Ok(mesh),
        }
    }

    /// The device that tensors are made on.
    pub fn device(&self) -> &FlexDevice {
        &self.device
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.spec
            .as_ref()
            .map_or(1, |spec| spec.0.iter().map(|(_, size)| size).product())
    }

    /// The mesh as text; "1" for one device.
    pub fn name(&self) -> String {
        self.spec
            .as_ref()
            .map_or_else(|| "1".to_string(), MeshSpec::to_string)
    }

    /// Lays the model's parameters out over the mesh.
    ///
    /// # Errors
    /// If the model cannot be laid out so.
    pub fn parallelize(&self, model: Llama<TrainBackend>) -> anyhow::Result<Llama<TrainBackend>> {
        Ok(model)
    }

    /// Bytes held by each rank; empty where the backend does not count.
    pub fn memory(&self) -> Vec<RankMemory> {
        Vec::new()
    }

    /// Collectives run so far, by kind.
    pub fn traffic(&self) -> BTreeMap<String, Traffic> {
        BTreeMap::new()
    }

    /// What the planner has done so far.
    pub fn plan(&self) -> PlanStats {
        PlanStats::default()
    }

    /// Plans a training step without running it; `None` on one device, which needs no plan.
    ///
    /// # Errors
    /// If the step cannot be planned.
    pub fn explain(
        &self,
        _step: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Explanation>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_parse_in_order_and_print_back() {
        let spec: MeshSpec = "fsdp=2, tp=4".parse().unwrap();
        assert_eq!(spec.to_string(), "fsdp=2,tp=4");
        assert_eq!(spec.0, [("fsdp".to_string(), 2), ("tp".to_string(), 4)]);
    }

    #[test]
    fn bad_specs_are_named() {
        let error = |text: &str| text.parse::<MeshSpec>().unwrap_err();
        assert_eq!(error("tp"), MeshError::Form("tp".into()));
        assert_eq!(error("=2"), MeshError::Form("=2".into()));
        assert_eq!(error(""), MeshError::Form(String::new()));
        assert_eq!(
            error("tp=0"),
            MeshError::Size {
                axis: "tp".into(),
                size: "0".into()
            }
        );
        assert_eq!(
            error("tp=two"),
            MeshError::Size {
                axis: "tp".into(),
                size: "two".into()
            }
        );
        assert_eq!(error("tp=2,tp=2"), MeshError::Duplicate("tp".into()));
    }
}
