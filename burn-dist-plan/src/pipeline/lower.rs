//! A schedule with everything that ranks do besides: sends, receives, gathers and reductions.

use std::fmt;

use rustc_hash::FxHashSet;

use super::line::write_line;
use super::{Action, Kind, Schedule};

/// A step of a rank, communication included.
///
/// Text form: an action as ever; `SF0.3>1` sends what the action F0.3 made to rank 1, `RF0.3<0` receives it from rank
/// 0, so that both ends of a message name it alike; `AG2` gathers the parameters of stage 2, `RS2` reduces its
/// gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Computes.
    Compute(Action),
    /// Sends what an action of this rank made: activations of a forward, gradients of a backward.
    Send {
        /// The action.
        of: Action,
        /// The rank that needs it.
        to: u32,
    },
    /// Receives what an action of another rank made.
    Recv {
        /// The action.
        of: Action,
        /// Its rank.
        from: u32,
    },
    /// Gathers the parameters of a stage from the ranks that shard them.
    Gather {
        /// The stage.
        stage: u32,
    },
    /// Reduces the gradients of a stage over the ranks that shard its parameters.
    Reduce {
        /// The stage.
        stage: u32,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(action) => action.fmt(f),
            Self::Send { of, to } => write!(f, "S{of}>{to}"),
            Self::Recv { of, from } => write!(f, "R{of}<{from}"),
            Self::Gather { stage } => write!(f, "AG{stage}"),
            Self::Reduce { stage } => write!(f, "RS{stage}"),
        }
    }
}

/// The steps of each rank, in order. The text form has a line per rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// The steps of each rank.
    pub order: Vec<Vec<Step>>,
}

impl fmt::Display for Lowered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.order.iter().try_for_each(|steps| write_line(f, steps))
    }
}

impl Schedule {
    /// Returns the steps of each rank. It is meant for a valid schedule.
    ///
    /// Results that the next stage needs are sent right after they are made, and received right before they are needed,
    /// unless that stage is on the same rank. With `fsdp`, a rank gathers the parameters of a stage before its first
    /// action, once for all microbatches, and reduces its gradients after its last weight gradient.
    pub fn lower(&self, fsdp: bool) -> Lowered {
        let all: FxHashSet<Action> = self.order.iter().flatten().copied().collect();
        let order = self
            .order
            .iter()
            .enumerate()
            .map(|(rank, actions)| self.lower_rank(rank as u32, actions, &all, fsdp))
            .collect();
        Lowered { order }
    }

    fn lower_rank(
        &self,
        rank: u32,
        actions: &[Action],
        all: &FxHashSet<Action>,
        fsdp: bool,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut gathered = FxHashSet::default();
        let mut left = vec![self.microbatches; if fsdp { self.stages() as usize } else { 0 }];
        for &action in actions {
            let stage = action.stage;
            if fsdp && gathered.insert(stage) {
                steps.push(Step::Gather { stage });
            }
            for of in self.needs(action, |needed| all.contains(&needed)) {
                let from = self.rank(of.stage);
                if from != rank {
                    steps.push(Step::Recv { of, from });
                }
            }
            steps.push(Step::Compute(action));
            let next = match action.kind {
                Kind::Forward => (stage + 1 < self.stages()).then(|| stage + 1),
                Kind::Backward | Kind::Full => stage.checked_sub(1),
                Kind::Weight => None,
            };
            if let Some(to) = next.map(|stage| self.rank(stage)).filter(|to| *to != rank) {
                steps.push(Step::Send { of: action, to });
            }
            if fsdp && matches!(action.kind, Kind::Weight | Kind::Full) {
                left[stage as usize] -= 1;
                if left[stage as usize] == 0 {
                    steps.push(Step::Reduce { stage });
                }
            }
        }
        steps
    }
}
