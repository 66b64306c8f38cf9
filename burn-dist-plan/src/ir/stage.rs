//! Stages: parts of a model along a pipeline axis, one after the other.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::bytes::human_bytes;
use crate::error::PlanError;
use crate::mesh::{AxisIndex, TextError};
use crate::pipeline::{Action, Costs, Limits, Placement, Schedule, ScheduleKind, choose};

/// In which order ranks work on microbatches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleChoice {
    /// As the literature has it, for any number of microbatches.
    Kind(ScheduleKind),
    /// As a table says, for its number of microbatches.
    Table(Arc<Schedule>),
    /// The fastest for the stages of each window, by [`Schedule::auto`]: times are estimated from the operations of the
    /// plan. Stages go round the ranks.
    Auto {
        /// The most bytes that a rank may hold for backwards to come.
        bytes_max: Option<u64>,
    },
}

impl Default for ScheduleChoice {
    fn default() -> Self {
        Self::Kind(ScheduleKind::default())
    }
}

impl FromStr for ScheduleChoice {
    type Err = TextError;

    /// Reads the name of a [`ScheduleKind`], `auto`, or `auto=N` with the most bytes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes_max = match text.strip_prefix("auto") {
            Some("") => None,
            Some(bytes) => {
                let bytes = bytes.strip_prefix('=').and_then(|bytes| bytes.parse().ok());
                let most = bytes.ok_or_else(|| {
                    TextError::new(text, "is not a schedule: auto, or auto=N with N bytes for a rank to hold at most")
                })?;
                Some(most)
            }
            None => return text.parse::<ScheduleKind>().map(Self::Kind),
        };
        Ok(Self::Auto { bytes_max })
    }
}

impl From<ScheduleKind> for ScheduleChoice {
    fn from(kind: ScheduleKind) -> Self {
        Self::Kind(kind)
    }
}

impl From<Schedule> for ScheduleChoice {
    fn from(table: Schedule) -> Self {
        Self::Table(Arc::new(table))
    }
}

impl fmt::Display for ScheduleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Table(table) => write!(f, "a table of {} microbatches", table.microbatches),
            Self::Auto { bytes_max: None } => write!(f, "auto"),
            Self::Auto {
                bytes_max: Some(most),
            } => write!(f, "auto within {}", human_bytes(*most)),
        }
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
    /// The schedule; a table has as many ranks and stages.
    pub schedule: ScheduleChoice,
}

impl Pipeline {
    /// Returns the coordinate along the pipeline axis of the ranks that have a stage.
    ///
    /// Stages go round the ranks (`0 1 2 3 0 1 2 3`), or there and back (`0 1 2 3 3 2 1 0`).
    pub fn coord(&self, stage: u32) -> u32 {
        let placement = match &self.schedule {
            ScheduleChoice::Kind(kind) if kind.is_v() => Placement::V,
            ScheduleChoice::Kind(_) | ScheduleChoice::Auto { .. } => Placement::Loop,
            ScheduleChoice::Table(table) => table.placement,
        };
        placement.rank(stage, self.ranks)
    }

    /// Returns the actions of each coordinate, in order, for a window of so many microbatches without a backward.
    pub(crate) fn forwards(&self, microbatches: u32) -> Vec<Vec<Action>> {
        let of = |coord: u32| {
            let stages = (0..self.stages).filter(move |stage| self.coord(*stage) == coord);
            let actions = move |microbatch| {
                let stages = stages.clone();
                stages.map(move |stage| Action::forward(stage, microbatch))
            };
            (0..microbatches).flat_map(actions).collect()
        };
        (0..self.ranks).map(of).collect()
    }

    /// Returns the schedule of a window of so many microbatches, and its name; `costs` are asked for where they choose.
    pub(crate) fn schedule(
        &self,
        microbatches: u32,
        costs: impl FnOnce() -> Costs,
    ) -> Result<(String, Schedule), PlanError> {
        let error = |reason| PlanError::Schedule {
            pipeline: self.to_string(),
            reason,
        };
        let chunks = self.stages / self.ranks;
        let schedule = match &self.schedule {
            ScheduleChoice::Kind(kind) => kind
                .schedule(self.ranks, chunks, microbatches)
                .map(|schedule| (kind.to_string(), schedule)),
            ScheduleChoice::Auto { bytes_max } => {
                let Costs { times, bytes } = costs();
                let limits = Limits {
                    memory: bytes_max.unwrap_or(u64::MAX),
                    ..Limits::default()
                };
                let bytes = |stage: u32| bytes[stage as usize];
                let counts = (self.ranks, chunks, microbatches);
                choose(counts, Some(Placement::Loop), &times, limits, bytes)
                    .map(|choice| (choice.name, choice.schedule))
            }
            ScheduleChoice::Table(table) if table.microbatches == microbatches => {
                Ok((self.schedule.to_string(), table.as_ref().clone()))
            }
            ScheduleChoice::Table(table) => {
                return Err(error(format!(
                    "the step has {microbatches} microbatches, and its table is of {}: use as many, or a schedule by \
                     name",
                    table.microbatches
                )));
            }
        };
        schedule.map_err(|reason| error(reason.to_string()))
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            stages,
            ranks,
            schedule,
            ..
        } = self;
        write!(f, "{stages} stages over {ranks} ranks, {schedule}")
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
    fn a_choice_is_read_by_its_name() {
        let read = |text: &str| {
            text.parse::<ScheduleChoice>()
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("zb-v"), Ok(ScheduleKind::ZbV.into()));
        assert_eq!(read("auto"), Ok(ScheduleChoice::Auto { bytes_max: None }));
        let within = ScheduleChoice::Auto {
            bytes_max: Some(4096),
        };
        assert_eq!(within.to_string(), "auto within 4.0 KiB");
        assert_eq!(read("auto=4096"), Ok(within));
        for wrong in ["auto=", "auto=4K", "automatic"] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(wrong) && error.contains("auto=N"), "{error}");
        }
        assert!(read("zb").unwrap_err().contains("zb-h1"));
    }

    #[test]
    fn stages_go_round_or_there_and_back() {
        let coords = |schedule| {
            let pipeline = Pipeline {
                axis: AxisIndex(0),
                ranks: 3,
                stages: 6,
                schedule: ScheduleChoice::Kind(schedule),
            };
            (0..6)
                .map(|stage| pipeline.coord(stage))
                .collect::<Vec<_>>()
        };
        assert_eq!(coords(ScheduleKind::Interleaved), [0, 1, 2, 0, 1, 2]);
        assert_eq!(coords(ScheduleKind::ZbV), [0, 1, 2, 2, 1, 0]);
    }
}
