//! How files are packed.

use std::path::{Path, PathBuf};

/// How a file is packed, which the end of its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// One member or several, as gzip, pigz and bgzip write them.
    Gzip,
    /// One frame or several.
    Zstd,
}

impl Packing {
    /// Returns how the file is packed, and its name without what says so.
    pub(super) fn of(path: &Path) -> Option<(Self, PathBuf)> {
        let packing = match path.extension()?.to_str()? {
            "gz" => Self::Gzip,
            "zst" => Self::Zstd,
            _ => return None,
        };
        Some((packing, path.with_extension("")))
    }

    /// Its name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}
