//! Which activations are made again.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use burn_dist_mesh::TextError;

/// Which activations are made again in the backward instead of being kept; never a value.
///
/// Activations are grouped by unit: `#[parallel(unit)]` on a block, or `Plan::unit`. A
/// model without units has nothing to checkpoint. Units marked `#[parallel(checkpoint)]` are checkpointed in full,
/// whatever the model's policy.
///
/// | text | |
/// | --- | --- |
/// | `none` | every activation is kept |
/// | `full` | of every unit, only what the next one takes is kept |
/// | `every=2` | so for every second unit |
/// | `selective` | in every unit, results that are costly to make are kept too |
/// | `bytes=1048576` | in every unit, the results that are the costliest per byte are kept too, up to that many bytes |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationCheckpoint {
    /// Keeps every activation.
    #[default]
    None,
    /// Makes everything inside every unit again.
    Full,
    /// The same as `Full`, for the n-th, 2n-th, ... of the units of this policy, in the order in which they are used.
    EveryNth(NonZeroUsize),
    /// Makes everything inside every unit again but results of linear layers, convolutions and attention, of products
    /// no larger than their operands (so not the scores of attention), and of reductions over ranks.
    Selective,
    /// Makes everything inside every unit again but what costs the most work per byte, up to this many bytes on one
    /// rank, counted over all units of this policy in one pass forward. What the next unit takes is not counted.
    Bytes(u64),
}

impl fmt::Display for ActivationCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Full => f.write_str("full"),
            Self::EveryNth(n) => write!(f, "every={n}"),
            Self::Selective => f.write_str("selective"),
            Self::Bytes(bytes) => write!(f, "bytes={bytes}"),
        }
    }
}

impl FromStr for ActivationCheckpoint {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = match text.split_once('=') {
            None => match text {
                "none" => Some(Self::None),
                "full" => Some(Self::Full),
                "selective" => Some(Self::Selective),
                _ => None,
            },
            Some(("every", n)) => n.parse().ok().map(Self::EveryNth),
            Some(("bytes", bytes)) => bytes.parse().ok().map(Self::Bytes),
            Some(_) => None,
        };
        found.ok_or_else(|| {
            TextError::new(
                text,
                "is no checkpoint policy: use none, full, every=N with N of at least \
            1, selective, or bytes=N",
            )
        })
    }
}
