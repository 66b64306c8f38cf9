//! Stages: parts of a model along a pipeline axis, one after the other.

use std::fmt;
use std::sync::Arc;

use crate::ScheduleKind;
use crate::error::PlanError;
use crate::mesh::AxisIndex;
use crate::pipeline::{Action, Placement, Schedule};

/// In which order ranks work on microbatches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleChoice {
    /// As the literature has it, for any number of microbatches.
    Kind(ScheduleKind),
    /// As a table says, for its number of microbatches.
    Table(Arc<Schedule>),
}

impl Default for ScheduleChoice {
    fn default() -> Self {
        Self::Kind(ScheduleKind::default())
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
            ScheduleChoice::Kind(_) => Placement::Loop,
            ScheduleChoice::Table(table) => table.placement,
        };
        placement.rank(stage, self.ranks)
    }

    /// Returns the actions of each coordinate, in order, for a window of so many microbatches that has a backward or
    /// not.
    pub(crate) fn actions(
        &self,
        microbatches: u32,
        has_backward: bool,
    ) -> Result<Vec<Vec<Action>>, PlanError> {
        if !has_backward {
            let of = |coord: u32| {
                let stages = (0..self.stages).filter(move |stage| self.coord(*stage) == coord);
                let actions = move |microbatch| {
                    stages
                        .clone()
                        .map(move |stage| Action::forward(stage, microbatch))
                };
                (0..microbatches).flat_map(actions).collect()
            };
            return Ok((0..self.ranks).map(of).collect());
        }
        let error = |reason| PlanError::Schedule {
            pipeline: self.to_string(),
            reason,
        };
        let chunks = self.stages / self.ranks;
        match &self.schedule {
            ScheduleChoice::Kind(kind) => {
                let schedule = kind.schedule(self.ranks, chunks, microbatches);
                Ok(schedule.map_err(|reason| error(reason.to_string()))?.order)
            }
            ScheduleChoice::Table(table) if table.microbatches == microbatches => {
                Ok(table.order.clone())
            }
            ScheduleChoice::Table(table) => Err(error(format!(
                "the step has {microbatches} microbatches, and its table is of {}: use as many, or a schedule by name",
                table.microbatches
            ))),
        }
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
