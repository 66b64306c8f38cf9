//! The small values: axis and rank numbers, one axis.

use std::str::FromStr;
use std::sync::LazyLock;

use super::role::ROLES;
use super::{AxisRole, MeshError, TextError};
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

impl FromStr for AxisRole {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        static REASON: LazyLock<String> =
            LazyLock::new(|| format!("is no role of an axis: use {}", AxisRole::all()));
        let role = ROLES.iter().find(|row| row.name == text);
        role.map(|row| row.role)
            .ok_or_else(|| TextError::new(text, &REASON))
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
    use crate::role::Row;

    #[test]
    fn every_name_of_a_role_has_it_and_every_role_has_a_text() {
        for Row {
            role, name, names, ..
        } in ROLES
        {
            assert_eq!(role.to_string().parse(), Ok(*role));
            assert_eq!(role.to_string(), *name);
            for name in *names {
                assert_eq!(Axis::new(*name, 2).unwrap().role, *role);
                assert_eq!(AxisRole::meant_by(name), Some(*name));
            }
        }
        assert_eq!(
            "heads".parse::<AxisRole>().unwrap_err().to_string(),
            "`heads` is no role of an axis: use pipeline, replicate, shard, expert, context or model"
        );
    }
}
