//! Which stage of a pipeline operations run on and values live on.
//!
//! Parameters have the stage that the model gives them. The rest follows them:
//!
//! - an operation of the *forward* runs on the last of the stages that its operands come from: what an earlier stage has
//!   made is sent there;
//! - one of the *backward* runs where the gradient is that it takes, or on the last stage before that has all else that
//!   it needs: what the forward made or used there. One that takes gradients alone and makes that of a parameter runs
//!   on the stage of the parameter, unless that is a later one;
//! - one of an *update* runs on the stage of its parameter.
//!
//! What is made of constants, random numbers and data alone has no stage: each stage makes what it needs of it. Nor has
//! what a backward makes of values of the forward alone, such as a transpose or the slope of a function.

use std::sync::Arc;

use super::{Facts, Phase, Role};
use crate::error::PlanError;
use crate::op::{Mark, Op};
use crate::stage::{Pipeline, Stage};
use crate::window::{InputState, ValueIndex, Window};

/// Which stages operations run on, and values live on.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// How the model is cut into them.
    pub pipeline: Arc<Pipeline>,
    /// The stage of each operation; `None` of what every stage makes that needs it.
    pub of_op: Vec<Option<u32>>,
    /// The stage on which each value lives after the window; `None` of what lives on all.
    pub homes: Vec<Option<u32>>,
}

impl Stages {
    /// Returns the coordinate along the pipeline axis of the ranks that have a stage.
    pub fn coord(&self, stage: u32) -> u32 {
        self.pipeline.coord(stage)
    }

    /// Returns the stage that hands a value to the host: the first of what lives on all.
    pub fn reader(&self, value: ValueIndex) -> u32 {
        self.homes[value as usize].unwrap_or(0)
    }

    /// Returns the stage on which a value lives after the window.
    pub fn home(&self, value: ValueIndex) -> Option<Stage> {
        Some(Stage {
            index: self.homes[value as usize]?,
            pipeline: self.pipeline.clone(),
        })
    }
}

/// The stage that the model gives to what a value belongs to.
fn given(role: &Role) -> Option<&Stage> {
    role.belongs_to()?.stage.as_ref()
}

/// Returns the stages of a window that has some.
///
/// # Errors
/// [`PlanError::TwoPipelines`] if its parameters belong to several pipelines, [`PlanError::Backwards`] if a stage uses
/// what a later one has made.
pub fn stages<O: Op>(window: &Window<O>, facts: &Facts) -> Result<Option<Stages>, PlanError> {
    let marked = window.ops.iter().filter_map(|op| match op.mark()? {
        Mark::Param(spec) => spec.stage.as_ref(),
        Mark::Redistribute(_) => None,
    });
    let placed = window.inputs.iter().filter_map(|input| match &input.state {
        InputState::Placed { stage, .. } => stage.as_ref(),
        InputState::Host { .. } => None,
    });
    let mut all = marked.chain(placed).map(|stage| &stage.pipeline);
    let Some(pipeline) = all.next() else {
        return Ok(None);
    };
    if let Some(other) = all.find(|other| *other != pipeline) {
        return Err(PlanError::TwoPipelines {
            first: pipeline.to_string(),
            second: other.to_string(),
        });
    }
    Finder::new(window, facts).find(pipeline.clone()).map(Some)
}

struct Finder<'a, O> {
    window: &'a Window<O>,
    facts: &'a Facts,
    /// The stage that makes each value.
    made: Vec<Option<u32>>,
    /// The stages that have it once the forward is done: the one that makes it, and those that use it; ascending.
    has: Vec<Vec<u32>>,
    /// What values of the forward each value is made of that a backward makes of them alone.
    made_of: Vec<Vec<ValueIndex>>,
}

impl<'a, O: Op> Finder<'a, O> {
    fn new(window: &'a Window<O>, facts: &'a Facts) -> Self {
        let num_values = window.dies.len();
        let mut this = Self {
            window,
            facts,
            made: vec![None; num_values],
            has: vec![Vec::new(); num_values],
            made_of: vec![Vec::new(); num_values],
        };
        for input in &window.inputs {
            if let InputState::Placed {
                stage: Some(stage), ..
            } = &input.state
            {
                this.made[input.value as usize] = Some(stage.index);
            }
        }
        this
    }

    /// Returns for each operation whether none but a backward uses what it makes, of no gradient.
    fn only_for_backward(&self) -> Vec<bool> {
        let mut used_elsewhere: Vec<bool> = self.window.dies.iter().map(|dies| !dies).collect();
        for read in &self.window.reads {
            used_elsewhere[*read as usize] = true;
        }
        let mut used = vec![false; self.window.dies.len()];
        let mut found = vec![false; self.window.ops.len()];
        for (index, op) in self.window.ops.iter().enumerate().rev() {
            let mut outputs = op.outputs().map(|out| out.id as usize);
            let is_forward = self.facts.phases[index] == Phase::Forward && op.mark().is_none();
            found[index] = is_forward && outputs.all(|out| used[out] && !used_elsewhere[out]);
            for input in op.inputs() {
                used[input.id as usize] = true;
                used_elsewhere[input.id as usize] |= is_forward && !found[index];
            }
        }
        found
    }

    /// Returns the values with a stage that an operation reads, or that what it reads is made of.
    fn operands(&self, op: &O) -> Vec<ValueIndex> {
        let mut found = Vec::new();
        for input in op.inputs() {
            match self.made[input.id as usize] {
                Some(_) => found.push(input.id),
                None => found.extend(&self.made_of[input.id as usize]),
            }
        }
        found
    }

    fn note(&mut self, value: ValueIndex, stage: u32) {
        let has = &mut self.has[value as usize];
        if let Err(at) = has.binary_search(&stage) {
            has.insert(at, stage);
        }
    }

    /// Returns the last stage up to `from` that has all of `values`.
    fn common(&self, values: &[ValueIndex], from: u32) -> Option<u32> {
        let has = |value: &ValueIndex, stage: &u32| {
            self.made[*value as usize] == Some(*stage)
                || self.has[*value as usize].binary_search(stage).is_ok()
        };
        let mut stages = (0..=from).rev();
        stages.find(|stage| values.iter().all(|value| has(value, stage)))
    }

    fn find(mut self, pipeline: Arc<Pipeline>) -> Result<Stages, PlanError> {
        let mut of_op = Vec::with_capacity(self.window.ops.len());
        // Parameters that a later stage has used, and stages on which forward operations ran.
        let mut borrowed: Vec<(ValueIndex, u32, u32)> = Vec::new();
        let mut first = u32::MAX;
        let only_for_backward = self.only_for_backward();
        for (index, op) in self.window.ops.iter().enumerate() {
            if only_for_backward[index] {
                let of = self.operands(op);
                for out in op.outputs() {
                    self.made_of[out.id as usize] = of.clone();
                }
                of_op.push(None);
                continue;
            }
            let phase = self.facts.phases[index];
            let stage = self.stage(op, phase);
            of_op.push(stage);
            let Some(stage) = stage else { continue };
            if phase == Phase::Forward && op.mark().is_none() {
                first = first.min(stage);
                for input in op.inputs() {
                    if let Some(own) = given(&self.facts.roles[input.id as usize])
                        && own.index < stage
                        && matches!(self.facts.roles[input.id as usize], Role::Parameter(_))
                    {
                        borrowed.push((input.id, own.index, stage));
                    }
                    if self.made[input.id as usize].is_some() {
                        self.note(input.id, stage);
                    }
                }
            }
            for out in op.outputs() {
                self.made[out.id as usize] = Some(stage);
                self.note(out.id, stage);
            }
        }
        for (param, own, by) in borrowed {
            // What two modules share is used on its own stage too.
            let shared = self.has[param as usize].contains(&own);
            if let (false, true, Some(spec)) = (shared, first <= own, self.facts.parameter(param)) {
                return Err(PlanError::Backwards {
                    path: spec.path.clone(),
                    stage: own,
                    by,
                });
            }
        }
        let homes = self.made.iter().zip(&self.facts.roles);
        let homes = homes.map(|(made, role)| given(role).map(|stage| stage.index).or(*made));
        Ok(Stages {
            homes: homes.collect(),
            pipeline,
            of_op,
        })
    }

    fn stage(&self, op: &O, phase: Phase) -> Option<u32> {
        let facts = self.facts;
        if let Some(Mark::Param(spec)) = op.mark() {
            return spec.stage.as_ref().map(|stage| stage.index);
        }
        let out = op.outputs().next()?.id as usize;
        let of = given(&facts.roles[out])
            .or(facts.update_of[out].as_ref().and_then(|p| p.stage.as_ref()));
        if let (Phase::Update, Some(of)) = (phase, of) {
            return Some(of.index);
        }
        let (gradients, saved): (Vec<ValueIndex>, Vec<ValueIndex>) = self
            .operands(op)
            .into_iter()
            .partition(|value| phase != Phase::Forward && facts.backward[*value as usize]);
        let made = |value: &ValueIndex| self.made[*value as usize];
        let Some(from) = gradients.iter().filter_map(made).min() else {
            return saved.iter().filter_map(made).max();
        };
        if !saved.is_empty() {
            return Some(self.common(&saved, from).unwrap_or(from));
        }
        Some(of.map_or(from, |of| of.index.min(from)))
    }
}
