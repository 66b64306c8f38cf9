//! The small values: axis and rank numbers, axis roles.

use super::{MeshError, TextError};
use serde::{Deserialize, Serialize};

/// Index of a mesh axis, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AxisIndex(pub u8);

/// Index of a device (a process or a worker thread) of a mesh, row-major over the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The role of an axis; decides where batches and resting parameters go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AxisRole {
    /// Data parallel, parameters replicated (DDP): `dp`, `ddp`, `dp_replicate`, `data`, `batch`, `replicate`.
    Replicate,
    /// Data parallel, parameters at rest in pieces (FSDP / ZeRO): `fsdp`, `dp_shard`, `zero`, `shard`.
    Shard,
    /// Context parallel: splits the sequences of a batch, parameters at rest in pieces as over a shard axis: `cp`,
    /// `context`.
    Context,
    /// Expert parallel: data parallel as over a shard axis, but that stacked experts are split over it and stay so:
    /// `ep`, `expert`.
    Expert,
    /// Splits tensors of the model, as its plan says: `tp`, `tensor`, `model`.
    Model,
    /// Splits the model into stages, one after the other: `pp`, `pipeline`. No tensor is split over it.
    Pipeline,
}

/// Each role with its own name and the names of axes that have it by default.
const ROLES: [(AxisRole, &str, &[&str]); 6] = [
    (
        AxisRole::Replicate,
        "replicate",
        &["dp", "ddp", "dp_replicate", "data", "batch", "replicate"],
    ),
    (
        AxisRole::Shard,
        "shard",
        &["fsdp", "dp_shard", "zero", "shard"],
    ),
    (AxisRole::Context, "context", &["cp", "context"]),
    (AxisRole::Expert, "expert", &["ep", "expert"]),
    (AxisRole::Model, "model", &["tp", "tensor", "model"]),
    (AxisRole::Pipeline, "pipeline", &["pp", "pipeline"]),
];

impl AxisRole {
    /// Returns the role that an axis of this name has by default, if the name is known.
    ///
    /// ```
    /// use burn_dist_mesh::AxisRole;
    /// assert_eq!(AxisRole::of_name("fsdp"), Some(AxisRole::Shard));
    /// assert_eq!(AxisRole::of_name("fdsp"), None);
    /// ```
    pub fn of_name(name: &str) -> Option<Self> {
        let mut roles = ROLES.iter();
        roles.find_map(|(role, _, names)| names.contains(&name).then_some(*role))
    }

    /// Returns the known name that is most like this one, if one is like it.
    pub(super) fn meant_by(name: &str) -> Option<&'static str> {
        let names = ROLES.iter().flat_map(|(_, _, names)| names.iter().copied());
        let near = names.map(|known| (distance(name, known), known));
        // Short names are all near each other: half of the letters have to be right.
        let near = near.filter(|(distance, known)| 2 * distance <= known.len());
        near.min_by_key(|(distance, _)| *distance)
            .map(|(_, known)| known)
    }

    /// Returns whether the rows of a batch are split over such an axis.
    pub fn splits_rows(self) -> bool {
        matches!(self, Self::Replicate | Self::Shard | Self::Expert)
    }

    /// Returns whether the sequences of a batch are split over such an axis.
    pub fn splits_sequences(self) -> bool {
        self == Self::Context
    }

    /// Returns whether ranks along such an axis have other data: other rows, or other parts of sequences.
    pub fn splits_data(self) -> bool {
        self.splits_rows() || self.splits_sequences()
    }

    /// Returns whether stacked experts are split over such an axis by default.
    pub fn splits_experts(self) -> bool {
        self == Self::Expert
    }

    /// Returns whether the plan splits tensors of the model over such an axis; without a plan nothing is split.
    pub fn splits_model(self) -> bool {
        self == Self::Model
    }

    /// Returns whether parameters rest in pieces over such an axis: [`AxisRole::Shard`], [`AxisRole::Context`] and
    /// [`AxisRole::Expert`].
    pub fn shards(self) -> bool {
        matches!(self, Self::Shard | Self::Context | Self::Expert)
    }

    /// Returns whether ranks along such an axis hold whole parameters and other rows of a batch.
    pub fn replicates(self) -> bool {
        self.splits_rows() && !self.shards()
    }

    /// Returns whether the model is cut into stages along such an axis, and no tensor is split over it.
    pub fn cuts_stages(self) -> bool {
        self == Self::Pipeline
    }

    /// Returns whether tensors can be split over such an axis.
    pub fn splits_tensors(self) -> bool {
        !self.cuts_stages()
    }
}

/// The name of the role, as in `heads:model=2`.
impl std::fmt::Display for AxisRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = ROLES.iter().find(|(role, ..)| role == self);
        f.write_str(name.map_or("", |(_, name, _)| name))
    }
}

impl std::str::FromStr for AxisRole {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let role = ROLES.iter().find(|(_, name, _)| *name == text);
        role.map(|(role, ..)| *role).ok_or_else(|| {
            let reason =
                "is no role of an axis: use replicate, shard, context, expert, model or pipeline";
            TextError::new(text, reason)
        })
    }
}

/// Levenshtein distance in bytes, where two neighbours that change places are one change.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    changed.min(1 + rows[i - 1][j].min(rows[i][j - 1]))
                }
            };
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[a.len()][b.len()]
}

/// One named axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Axis {
    /// The name, unique in its mesh.
    pub name: String,
    /// Number of devices along the axis, at least 1.
    pub size: usize,
    /// The role of the axis.
    pub role: AxisRole,
}

impl Axis {
    /// Creates an axis whose role follows from its name, see [`AxisRole::of_name`].
    ///
    /// # Errors
    /// [`MeshError::UnknownRole`] if the name is none that is known: [`Axis::with_role`] says it.
    pub fn new(name: impl Into<String>, size: usize) -> Result<Self, MeshError> {
        let name = name.into();
        match AxisRole::of_name(&name) {
            Some(role) => Ok(Self { name, size, role }),
            // What could not be a name at all is said to be that.
            None if !is_axis_name(&name) => Err(MeshError::BadName { name }),
            None => {
                let meant = AxisRole::meant_by(&name);
                Err(MeshError::UnknownRole { name, size, meant })
            }
        }
    }

    /// Creates an axis of any name.
    pub fn with_role(name: impl Into<String>, size: usize, role: AxisRole) -> Self {
        let name = name.into();
        Self { name, size, role }
    }
}

pub(super) fn is_axis_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_role_has_it_and_every_role_has_a_text() {
        for (role, name, names) in ROLES {
            assert_eq!(role.to_string().parse(), Ok(role));
            assert_eq!(role.to_string(), name);
            for name in names {
                assert_eq!(Axis::new(*name, 2).unwrap().role, role);
                assert_eq!(AxisRole::meant_by(name), Some(*name));
            }
        }
        assert_eq!(
            "heads".parse::<AxisRole>().unwrap_err().to_string(),
            "`heads` is no role of an axis: use replicate, shard, context, expert, model or pipeline"
        );
    }

    #[test]
    fn a_role_splits_data_the_model_or_nothing() {
        for (role, ..) in ROLES {
            let kinds = [role.splits_data(), role.splits_model(), role.cuts_stages()];
            assert_eq!(kinds.iter().filter(|is| **is).count(), 1, "{role}");
            assert!(!role.shards() || role.splits_data(), "{role}");
            assert!(!role.splits_experts() || role.splits_rows(), "{role}");
            assert_ne!(role.splits_tensors(), role.cuts_stages(), "{role}");
        }
    }

    #[test]
    fn typing_errors_are_distinguished_from_other_names() {
        let meant = [
            ("fdsp", Some("fsdp")),
            ("fsp", Some("fsdp")),
            ("dp-replicate", Some("dp_replicate")),
            ("pipline", Some("pipeline")),
            ("tpp", Some("tp")),
            ("hosts", None),
            ("sequence", None),
        ];
        for (name, known) in meant {
            assert_eq!(AxisRole::meant_by(name), known, "{name}");
        }
    }
}
