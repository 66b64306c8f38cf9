//! The name of a program of this crate's commands.

/// The name of a program that has this crate's commands: its help and the configuration files that it writes say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// One line about it, for its help.
    pub about: &'static str,
}

impl Default for Program {
    /// The program `burn-dist-lm`.
    fn default() -> Self {
        Self {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            about: env!("CARGO_PKG_DESCRIPTION"),
        }
    }
}

impl Program {
    /// Name and version, as configuration files have them.
    pub(crate) fn versioned(self) -> String {
        format!("{} {}", self.name, self.version)
    }
}
