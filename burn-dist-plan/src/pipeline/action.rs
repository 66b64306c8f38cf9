//! Actions of a rank for one stage and one microbatch.

use std::fmt;
use std::str::FromStr;

use burn_dist_mesh::TextError;

/// The work of an action.
///
/// A backward is either whole (`Full`) or split into `Backward` and `Weight` (arXiv:2401.10241, section 1).
///
/// Text form: `F`, `B`, `W`, `BW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The forward of a stage.
    Forward,
    /// The gradient of the stage's input. The gradient of its weights follows as `Weight`.
    Backward,
    /// The gradient of the stage's weights, from what `Backward` left behind.
    Weight,
    /// Both gradients in one: the backward of a schedule that does not split it.
    Full,
}

burn_dist_mesh::texts!(
    Kind,
    "is not an action: it starts with F, B, W or BW",
    Forward = "F",
    Backward = "B",
    Weight = "W",
    Full = "BW",
);

/// One action: a kind, a stage of the whole model, and a microbatch.
///
/// Text form: `F0.3` is the forward of stage 0 for microbatch 3; likewise `B0.3`, `W0.3`, `BW0.3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// Its work.
    pub kind: Kind,
    /// The stage, counted over the whole model.
    pub stage: u32,
    /// The microbatch.
    pub microbatch: u32,
}

impl Action {
    /// The forward of a stage.
    pub const fn forward(stage: u32, microbatch: u32) -> Self {
        Self::new(Kind::Forward, stage, microbatch)
    }

    /// The input gradient of a stage, whose weight gradient follows.
    pub const fn backward(stage: u32, microbatch: u32) -> Self {
        Self::new(Kind::Backward, stage, microbatch)
    }

    /// The weight gradient of a stage.
    pub const fn weight(stage: u32, microbatch: u32) -> Self {
        Self::new(Kind::Weight, stage, microbatch)
    }

    /// Both gradients of a stage.
    pub const fn full(stage: u32, microbatch: u32) -> Self {
        Self::new(Kind::Full, stage, microbatch)
    }

    pub(crate) const fn new(kind: Kind, stage: u32, microbatch: u32) -> Self {
        Self {
            kind,
            stage,
            microbatch,
        }
    }

    pub(crate) const fn with_kind(self, kind: Kind) -> Self {
        Self::new(kind, self.stage, self.microbatch)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}.{}", self.kind, self.stage, self.microbatch)
    }
}

impl FromStr for Action {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason| TextError::new(text, reason);
        let digits = text
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(text.len());
        let (kind, place) = text.split_at(digits);
        let kind = kind
            .parse()
            .map_err(|wrong: TextError| error(wrong.reason))?;
        let (stage, microbatch) = place.split_once('.').ok_or_else(|| {
            error("is not an action: a stage and a microbatch follow, as in F0.3")
        })?;
        let number = |digits: &str| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits.parse().ok().filter(|_| plain);
            number
                .ok_or_else(|| error("is not an action: its stage or its microbatch is no number"))
        };
        Ok(Self::new(kind, number(stage)?, number(microbatch)?))
    }
}
