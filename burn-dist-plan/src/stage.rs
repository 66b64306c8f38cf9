//! Stages: parts of a model along a pipeline axis, one after the other.

use std::fmt;
use std::sync::Arc;

use crate::ScheduleKind;
use crate::error::PlanError;
use crate::mesh::AxisIndex;
use crate::pipeline::{Action, Placement};

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
        let placement = match self.schedule.is_v() {
            true => Placement::V,
            false => Placement::Loop,
        };
        placement.rank(stage, self.ranks)
    }
}

impl Pipeline {
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
        let chunks = self.stages / self.ranks;
        let schedule = self.schedule.schedule(self.ranks, chunks, microbatches);
        let schedule = schedule.map_err(|error| PlanError::Schedule {
            pipeline: self.to_string(),
            reason: error.to_string(),
        })?;
        Ok(schedule.order)
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
                schedule,
            };
            (0..6)
                .map(|stage| pipeline.coord(stage))
                .collect::<Vec<_>>()
        };
        assert_eq!(coords(ScheduleKind::Interleaved), [0, 1, 2, 0, 1, 2]);
        assert_eq!(coords(ScheduleKind::ZbV), [0, 1, 2, 2, 1, 0]);
    }
}
