//! The end of gathered parameters.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use burn_dist_mesh::TextError;

/// When gathered parameters are freed after forward (FSDP2's `reshard_after_forward`).
///
/// Text form: `always`, `last` (all but the last), `every=2`, `never`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reshard {
    /// Every unit, after each visit: least memory.
    Always,
    /// Every unit but the one that backward starts with, which would be gathered again at once.
    #[default]
    AllButLast,
    /// The n-th, 2n-th, ... of the units of this policy, in forward order; the others stay gathered until backward.
    Every(NonZeroU32),
    /// Parameters stay gathered until the optimizer (ZeRO-2): least communication.
    Never,
}

impl fmt::Display for Reshard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::AllButLast => f.write_str("last"),
            Self::Every(n) => write!(f, "every={n}"),
            Self::Never => f.write_str("never"),
        }
    }
}

impl FromStr for Reshard {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = match text.split_once('=') {
            None => match text {
                "always" => Some(Self::Always),
                "last" => Some(Self::AllButLast),
                "never" => Some(Self::Never),
                _ => None,
            },
            Some(("every", n)) => n.parse().ok().map(Self::Every),
            Some(_) => None,
        };
        found.ok_or_else(|| {
            TextError::new(
                text,
                "does not say when to reshard: use always, last, every=N with N of at \
            least 1, or never",
            )
        })
    }
}
