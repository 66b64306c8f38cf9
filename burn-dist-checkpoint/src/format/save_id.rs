//! Which save a file belongs to.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Identifies one save: every file and the manifest carry it, so that files of two saves are not mixed up.
///
/// All processes of a save use the same. As text: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SaveId(u128);

impl SaveId {
    /// Returns one that no other save has.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }

    /// Returns the one of this number.
    pub const fn new(number: u128) -> Self {
        Self(number)
    }
}

impl fmt::Display for SaveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is not 32 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("a save is named by 32 hexadecimal digits, not by `{0}`")]
pub struct BadSaveId(String);

burn_dist_mesh::debug_by_message!(BadSaveId);

impl FromStr for SaveId {
    type Err = BadSaveId;

    fn from_str(text: &str) -> Result<Self, BadSaveId> {
        let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        match u128::from_str_radix(text, 16) {
            Ok(number) if text.len() == 32 && text.chars().all(is_hex) => Ok(Self(number)),
            _ => Err(BadSaveId(text.to_owned())),
        }
    }
}

impl TryFrom<String> for SaveId {
    type Error = BadSaveId;

    fn try_from(text: String) -> Result<Self, BadSaveId> {
        text.parse()
    }
}

impl From<SaveId> for String {
    fn from(id: SaveId) -> Self {
        id.to_string()
    }
}
