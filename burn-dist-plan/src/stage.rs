//! Stages: parts of a model along a pipeline axis, one after the other.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use burn_dist_mesh::TextError;

use crate::mesh::AxisIndex;

/// In which order ranks work on microbatches.
///
/// As text: `gpipe`, `1f1b`, `interleaved`, `looped-bfs`, `zb-h1`, `zb-h2`, `zb-v`, `dualpipe-v`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    /// All forwards, then all backwards (arXiv:1811.06965).
    GPipe,
    /// One forward, one backward, once the pipeline is full (arXiv:2006.09503).
    #[default]
    OneFOneB,
    /// As 1F1B, with several stages on each rank (arXiv:2104.04473, section 2.2).
    Interleaved,
    /// All microbatches through a stage before the next one of the rank (arXiv:2211.05953).
    LoopedBfs,
    /// Weight gradients fill the bubble, in the memory of 1F1B (arXiv:2401.10241, section 2).
    ZbH1,
    /// As ZB-H1, with twice the memory and next to no bubble (arXiv:2401.10241, section 2).
    ZbH2,
    /// Two stages per rank in the shape of a V (arXiv:2405.15362).
    ZbV,
    /// The half of DualPipe (arXiv:2412.19437, section 3.2.1) with stages in the shape of a V.
    DualPipeV,
}

impl ScheduleKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved,
        Self::LoopedBfs,
        Self::ZbH1,
        Self::ZbH2,
        Self::ZbV,
        Self::DualPipeV,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved",
            Self::LoopedBfs => "looped-bfs",
            Self::ZbH1 => "zb-h1",
            Self::ZbH2 => "zb-h2",
            Self::ZbV => "zb-v",
            Self::DualPipeV => "dualpipe-v",
        }
    }

    /// Whether the second half of the stages goes back from the last rank to the first.
    pub fn is_v(self) -> bool {
        matches!(self, Self::ZbV | Self::DualPipeV)
    }

    /// Whether ranks may have several stages.
    pub fn is_looped(self) -> bool {
        matches!(self, Self::Interleaved | Self::LoopedBfs) || self.is_v()
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            TextError::new(
                text,
                "is no schedule: use gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, zb-v or dualpipe-v",
            )
        })
    }
}

/// How a model is cut into stages, and in which order ranks work on them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pipeline {
    /// The mesh axis along which ranks have stages of their own.
    pub axis: AxisIndex,
    /// Ranks along that axis.
    pub ranks: u32,
    /// Number of stages: a multiple of `ranks`.
    pub stages: u32,
    /// The schedule.
    pub schedule: ScheduleKind,
}

impl Pipeline {
    /// Returns the coordinate along the pipeline axis of the ranks that have a stage.
    ///
    /// Stages go round the ranks (`0 1 2 3 0 1 2 3`), or there and back (`0 1 2 3 3 2 1 0`).
    pub fn coord(&self, stage: u32) -> u32 {
        let (round, place) = (stage / self.ranks, stage % self.ranks);
        match self.schedule.is_v() && round % 2 == 1 {
            true => self.ranks - 1 - place,
            false => place,
        }
    }
}

/// The stage that a parameter belongs to: it lives on the ranks of that stage alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    /// Its number, from 0.
    pub index: u32,
    /// Of which pipeline; one for all parameters of a model.
    pub pipeline: Arc<Pipeline>,
}

impl Stage {
    /// Returns the coordinate along the pipeline axis of the ranks that have it.
    pub fn coord(&self) -> u32 {
        self.pipeline.coord(self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_go_round_or_there_and_back() {
        let coords = |schedule| {
            let pipeline = Pipeline {
                axis: AxisIndex(0),
                ranks: 3,
                stages: 6,
                schedule,
            };
            (0..6)
                .map(|stage| pipeline.coord(stage))
                .collect::<Vec<_>>()
        };
        assert_eq!(coords(ScheduleKind::Interleaved), [0, 1, 2, 0, 1, 2]);
        assert_eq!(coords(ScheduleKind::ZbV), [0, 1, 2, 2, 1, 0]);
    }

    #[test]
    fn schedules_have_names() {
        for kind in ScheduleKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "zb".parse::<ScheduleKind>().unwrap_err().to_string();
        assert!(error.contains("`zb` is no schedule"), "{error}");
    }
}
