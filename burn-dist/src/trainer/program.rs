//! The name of a program.

/// The name of a program, as its help and the configuration files that it writes have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Program {
    /// The name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// One line about it, for its help.
    pub about: &'static str,
}

impl Program {
    /// Name and version, as configuration files have them.
    pub fn versioned(self) -> String {
        format!("{} {}", self.name, self.version)
    }
}
