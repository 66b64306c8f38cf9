//! Roles of axes.

use serde::{Deserialize, Serialize};

use super::listed::{any_of, listed};

/// The role of an axis; decides where batches and resting parameters go. In the order of how much ranks along such axes
/// communicate, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AxisRole {
    /// Splits the model into stages, one after the other: `pp`, `pipeline`. No tensor is split over it.
    Pipeline,
    /// Data parallel, parameters replicated (DDP): `dp`, `ddp`, `dp_replicate`, `data`, `batch`, `replicate`.
    Replicate,
    /// Data parallel, parameters at rest in pieces (FSDP / ZeRO): `fsdp`, `dp_shard`, `zero`, `shard`.
    Shard,
    /// Expert parallel: data parallel as over a shard axis, but that stacked experts are split over it and stay so:
    /// `ep`, `expert`.
    Expert,
    /// Context parallel: splits the sequences of a batch, parameters at rest in pieces as over a shard axis: `cp`,
    /// `context`.
    Context,
    /// Splits tensors of the model, as its plan says: `tp`, `tensor`, `model`.
    Model,
}

/// The parts that ranks along an axis have each their own of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    /// Rows of a batch.
    Rows,
    /// Parts of the sequences of a batch.
    Sequences,
    /// Parts of the model's tensors, if its plan says so.
    Tensors,
    /// Stages of the model.
    Stages,
}

/// All that is known of a role.
pub(super) struct Row {
    pub role: AxisRole,
    pub name: &'static str,
    /// Names of axes that have it by default; the first stands for the others.
    pub names: &'static [&'static str],
    splits: Parts,
    /// True if parameters rest in pieces over such an axis.
    shards: bool,
    /// True if stacked experts are split over such an axis.
    experts: bool,
}

/// A row for each role, in the order in which they are declared.
pub(super) const ROLES: &[Row] = &[
    Row {
        role: AxisRole::Pipeline,
        name: "pipeline",
        names: &["pp", "pipeline"],
        splits: Parts::Stages,
        shards: false,
        experts: false,
    },
    Row {
        role: AxisRole::Replicate,
        name: "replicate",
        names: &["dp", "ddp", "dp_replicate", "data", "batch", "replicate"],
        splits: Parts::Rows,
        shards: false,
        experts: false,
    },
    Row {
        role: AxisRole::Shard,
        name: "shard",
        names: &["fsdp", "dp_shard", "zero", "shard"],
        splits: Parts::Rows,
        shards: true,
        experts: false,
    },
    Row {
        role: AxisRole::Expert,
        name: "expert",
        names: &["ep", "expert"],
        splits: Parts::Rows,
        shards: true,
        experts: true,
    },
    Row {
        role: AxisRole::Context,
        name: "context",
        names: &["cp", "context"],
        splits: Parts::Sequences,
        shards: true,
        experts: false,
    },
    Row {
        role: AxisRole::Model,
        name: "model",
        names: &["tp", "tensor", "model"],
        splits: Parts::Tensors,
        shards: false,
        experts: false,
    },
];

const _: () = {
    let mut index = 0;
    while index < ROLES.len() {
        assert!(ROLES[index].role as usize == index);
        index += 1;
    }
};

impl AxisRole {
    const fn row(self) -> &'static Row {
        &ROLES[self as usize]
    }

    /// Returns the role that an axis of this name has by default, if the name is known.
    ///
    /// ```
    /// use burn_dist_mesh::AxisRole;
    /// assert_eq!(AxisRole::of_name("fsdp"), Some(AxisRole::Shard));
    /// assert_eq!(AxisRole::of_name("fdsp"), None);
    /// ```
    pub fn of_name(name: &str) -> Option<Self> {
        let mut roles = ROLES.iter();
        roles.find_map(|row| row.names.contains(&name).then_some(row.role))
    }

    /// Returns the known name that is most like this one, if one is like it.
    pub(super) fn meant_by(name: &str) -> Option<&'static str> {
        let names = ROLES.iter().flat_map(|row| row.names.iter().copied());
        let near = names.map(|known| (distance(name, known), known));
        // Short names are all near each other: half of the letters have to be right.
        let near = near.filter(|(distance, known)| 2 * distance <= known.len());
        // Of names that are as near, one that begins alike is meant.
        let begins_alike = |known: &str| known.get(..1) == name.get(..1);
        near.min_by_key(|(distance, known)| (*distance, !begins_alike(known)))
            .map(|(_, known)| known)
    }

    /// Returns whether the rows of a batch are split over such an axis.
    pub fn splits_rows(self) -> bool {
        self.row().splits == Parts::Rows
    }

    /// Returns whether the sequences of a batch are split over such an axis.
    pub fn splits_sequences(self) -> bool {
        self.row().splits == Parts::Sequences
    }

    /// Returns whether ranks along such an axis have other data: other rows, or other parts of sequences.
    pub fn splits_data(self) -> bool {
        self.splits_rows() || self.splits_sequences()
    }

    /// Returns whether stacked experts are split over such an axis by default.
    pub fn splits_experts(self) -> bool {
        self.row().experts
    }

    /// Returns whether the plan splits tensors of the model over such an axis; without a plan nothing is split.
    pub fn splits_model(self) -> bool {
        self.row().splits == Parts::Tensors
    }

    /// Returns whether parameters rest in pieces over such an axis: [`AxisRole::Shard`], [`AxisRole::Context`] and
    /// [`AxisRole::Expert`].
    pub fn shards(self) -> bool {
        self.row().shards
    }

    /// Returns whether ranks along such an axis hold whole parameters and other rows of a batch.
    pub fn replicates(self) -> bool {
        self.splits_rows() && !self.shards()
    }

    /// Returns whether the model is cut into stages along such an axis, and no tensor is split over it.
    pub fn cuts_stages(self) -> bool {
        self.row().splits == Parts::Stages
    }

    /// Returns whether tensors can be split over such an axis.
    pub fn splits_tensors(self) -> bool {
        !self.cuts_stages()
    }

    /// Returns the names of all roles, for messages: `pipeline, replicate, ... or model`.
    pub(super) fn all() -> String {
        any_of(ROLES.iter().map(|row| row.name))
    }

    /// Returns the first name of the axes of each role, for messages: `pp, dp, ... and tp`.
    pub(super) fn all_axes() -> String {
        listed(ROLES.iter().map(|row| row.names[0]), "and")
    }
}

/// The name of the role, as in `heads:model=2`.
impl std::fmt::Display for AxisRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.row().name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_splits_data_the_model_or_nothing() {
        for Row { role, .. } in ROLES {
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
