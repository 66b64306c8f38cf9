//! Which stage of a pipeline operations run on and values live on.
//!
//! Parameters have the stage that the model gives them. The rest follows them:
//!
//! - an operation of the *forward* runs on the last of the stages that its operands come from: what an earlier stage has
//!   made is sent there;
//! - one of the *backward* runs where the gradient is that it takes, or on the last stage before that has all else that
//!   it needs: what the forward made or used there. One that takes gradients alone and makes that of a parameter runs
//!   on the stage of the parameter, unless that is a later one;
//! - one that comes *after a backward*, such as a norm of gradients, runs where one of that runs. What it makes of the
//!   gradient of a parameter stays on the stage of that;
//! - one of an *update* runs on the stage of its parameter.
//!
//! What is made of constants, random numbers and data alone has no stage: each stage makes what it needs of it. Nor has
//! what a backward makes, while it runs, of values of the forward alone, such as a transpose or the slope of a
//! function. What was made before is of the forward, whoever uses it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Facts, Phase, Role};
use crate::error::PlanError;
use crate::ir::{InputState, Mark, Op, Pipeline, Stage, ValueIndex, Window};

/// Which stages operations run on, and values live on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stages {
    /// How the model is cut into them.
    pub pipeline: Arc<Pipeline>,
    /// The stage of each operation; `None` of what every stage makes that needs it.
    pub of_op: Vec<Option<u32>>,
    /// The stage on which each value lives after the window; `None` of what lives on all.
    pub homes: Vec<Option<u32>>,
}

impl Stages {
    /// Returns the coordinate along the pipeline axis of the ranks that have a stage.
    pub(crate) fn coord(&self, stage: u32) -> u32 {
        self.pipeline.coord(stage)
    }

    /// Returns the stage that hands a value to the host: the first of what lives on all.
    pub(crate) fn reader(&self, value: ValueIndex) -> u32 {
        self.homes[value as usize].unwrap_or(0)
    }

    /// Returns the stage on which a value lives after the window.
    pub(crate) fn home(&self, value: ValueIndex) -> Option<Stage> {
        Some(Stage {
            index: self.homes[value as usize]?,
            pipeline: self.pipeline.clone(),
        })
    }
}

/// The stage that the model gives to what a value belongs to.
fn stage_of(role: &Role) -> Option<&Stage> {
    role.belongs_to()?.stage.as_ref()
}

/// Returns the stages of a window that has some.
///
/// # Errors
/// [`PlanError::TwoPipelines`] if its parameters belong to several pipelines, [`PlanError::Backwards`] if a stage uses
/// what a later one has made.
pub(crate) fn stages<O: Op>(
    window: &Window<O>,
    facts: &Facts,
) -> Result<Option<Stages>, PlanError> {
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

/// Where something can be had that values with a stage are, or are made of.
#[derive(Clone, Debug, PartialEq)]
struct Source {
    /// The stages that have all of these; ascending.
    has: Vec<u32>,
    /// The last stage that makes one.
    made: u32,
}

struct Finder<'a, O> {
    window: &'a Window<O>,
    facts: &'a Facts,
    /// The stage that makes each value.
    made: Vec<Option<u32>>,
    /// The stages that have it once the forward is done: the one that makes it, and those that use it; ascending.
    has: Vec<Vec<u32>>,
    /// The sources of each value that a backward makes of values of the forward alone, if some have a stage.
    made_of: HashMap<ValueIndex, Source>,
}

impl<'a, O: Op> Finder<'a, O> {
    fn new(window: &'a Window<O>, facts: &'a Facts) -> Self {
        let num_values = window.dies.len();
        let mut this = Self {
            window,
            facts,
            made: vec![None; num_values],
            has: vec![Vec::new(); num_values],
            made_of: HashMap::new(),
        };
        for input in &window.inputs {
            if let InputState::Placed {
                stage: Some(stage), ..
            } = &input.state
            {
                this.make(input.value, stage.index);
            }
        }
        this
    }

    /// Returns for each operation whether a backward makes it while it runs, of no gradient, and nothing else uses what
    /// it makes.
    fn only_for_backward(&self) -> Vec<bool> {
        let mut used_elsewhere: Vec<bool> = self.window.dies.iter().map(|dies| !dies).collect();
        for read in &self.window.reads {
            used_elsewhere[*read as usize] = true;
        }
        // From where on the last backward runs that uses each value.
        let mut used_from: Vec<Option<u32>> = vec![None; self.window.dies.len()];
        let mut found = vec![false; self.window.ops.len()];
        for (index, op) in self.window.ops.iter().enumerate().rev() {
            let uses = op.outputs().map(|out| used_from[out.id as usize]);
            // Nothing if one is not used.
            let uses = uses.collect::<Option<Vec<u32>>>();
            let from = uses.and_then(|uses| uses.into_iter().max());
            let is_used_elsewhere = op.outputs().any(|out| used_elsewhere[out.id as usize]);
            let is_forward = self.facts.phases[index] == Phase::Forward && op.mark().is_none();
            found[index] =
                is_forward && !is_used_elsewhere && from.is_some_and(|from| from < index as u32);
            let from = match is_forward {
                true => from.unwrap_or(0),
                false => {
                    let loss = self.facts.microbatches[index] as usize;
                    self.facts.ones.get(loss).copied().unwrap_or(0)
                }
            };
            let is_elsewhere = self.facts.after_backward[index] || (is_forward && !found[index]);
            for input in op.inputs() {
                let used_from = &mut used_from[input.id as usize];
                *used_from = Some(used_from.map_or(from, |other| other.max(from)));
                used_elsewhere[input.id as usize] |= is_elsewhere;
            }
        }
        found
    }

    /// Returns where operands with a stage can be had, and what others are made of; `None` if none has a stage.
    fn source<'i>(&'i self, inputs: impl Iterator<Item = ValueIndex>) -> Option<Source> {
        let of = |value: ValueIndex| match self.made[value as usize] {
            Some(made) => Some((&self.has[value as usize][..], made)),
            None => {
                let source = self.made_of.get(&value)?;
                Some((&source.has[..], source.made))
            }
        };
        let mut all: Vec<(&'i [u32], u32)> = inputs.filter_map(of).collect();
        // The fewest first: what all have is among them.
        all.sort_by_key(|(has, _)| has.len());
        let ((first, _), others) = all.split_first()?;
        let is_common = |stage: &&u32| {
            let mut others = others.iter();
            others.all(|(has, _)| has.binary_search(stage).is_ok())
        };
        Some(Source {
            has: first.iter().filter(is_common).copied().collect(),
            made: all.iter().map(|(_, made)| *made).max()?,
        })
    }

    /// Notes that a stage makes a value.
    fn make(&mut self, value: ValueIndex, stage: u32) {
        self.made[value as usize] = Some(stage);
        self.note(value, stage);
    }

    /// Notes that a stage has a value.
    fn note(&mut self, value: ValueIndex, stage: u32) {
        let has = &mut self.has[value as usize];
        if let Err(at) = has.binary_search(&stage) {
            has.insert(at, stage);
        }
    }

    fn find(mut self, pipeline: Arc<Pipeline>) -> Result<Stages, PlanError> {
        let mut of_op = Vec::with_capacity(self.window.ops.len());
        // Parameters that a later stage has used, and stages on which forward operations ran.
        let mut borrowed: Vec<(ValueIndex, u32, u32)> = Vec::new();
        // Those that their own has made or used.
        let mut at_home: HashSet<ValueIndex> = HashSet::new();
        let mut first = u32::MAX;
        let only_for_backward = self.only_for_backward();
        for (index, op) in self.window.ops.iter().enumerate() {
            if only_for_backward[index] {
                if let Some(source) = self.source(op.inputs().map(|input| input.id)) {
                    let made = op.outputs().map(|out| (out.id, source.clone()));
                    self.made_of.extend(made);
                }
                of_op.push(None);
                continue;
            }
            let phase = self.facts.phases[index];
            let stage = self.stage(index, op);
            of_op.push(stage);
            let Some(stage) = stage else { continue };
            if phase == Phase::Forward && op.mark().is_none() {
                first = first.min(stage);
                for input in op.inputs() {
                    let param = self.facts.parameter(input.id);
                    if let Some(own) = param.and_then(|spec| spec.stage.as_ref()) {
                        if own.index < stage {
                            borrowed.push((input.id, own.index, stage));
                        } else if own.index == stage {
                            at_home.insert(input.id);
                        }
                    }
                    if self.made[input.id as usize].is_some() {
                        self.note(input.id, stage);
                    }
                }
            }
            for out in op.outputs() {
                let param = self.facts.parameter(out.id);
                let own = param.and_then(|spec| spec.stage.as_ref());
                if own.is_some_and(|own| own.index == stage) {
                    at_home.insert(out.id);
                }
                self.make(out.id, stage);
            }
        }
        for (param, own, by) in borrowed {
            // What two modules share is used on its own stage too.
            let shared = at_home.contains(&param);
            if let (false, true, Some(spec)) = (shared, first <= own, self.facts.parameter(param)) {
                return Err(PlanError::Backwards {
                    path: spec.path.clone(),
                    stage: own,
                    by,
                });
            }
        }
        let homes = self.made.iter().zip(&self.facts.roles);
        let homes = homes.map(|(made, role)| stage_of(role).map(|stage| stage.index).or(*made));
        Ok(Stages {
            homes: homes.collect(),
            pipeline,
            of_op,
        })
    }

    fn stage(&self, index: usize, op: &O) -> Option<u32> {
        let (facts, phase) = (self.facts, self.facts.phases[index]);
        if let Some(Mark::Param(spec)) = op.mark() {
            return spec.stage.as_ref().map(|stage| stage.index);
        }
        let out = op.outputs().next()?.id as usize;
        let of = stage_of(&facts.roles[out])
            .or(facts.update_of[out].as_ref().and_then(|p| p.stage.as_ref()));
        if let (Phase::Update, Some(of)) = (phase, of) {
            return Some(of.index);
        }
        let is_gradient =
            |value: &ValueIndex| phase != Phase::Forward && facts.backward[*value as usize];
        let (gradients, saved): (Vec<ValueIndex>, Vec<ValueIndex>) =
            op.inputs().map(|input| input.id).partition(is_gradient);
        let saved = self.source(saved.into_iter());
        let made = gradients
            .iter()
            .filter_map(|value| self.made[*value as usize]);
        let Some(from) = made.min() else {
            return saved.map(|saved| saved.made);
        };
        if let (Some(of), true) = (of, facts.after_backward[index]) {
            // What it takes besides is there once all stages are done.
            return Some(of.index);
        }
        if let Some(Source { has, .. }) = saved {
            let common = has.partition_point(|stage| *stage <= from).checked_sub(1);
            return Some(common.map_or(from, |at| has[at]));
        }
        Some(of.map_or(from, |of| of.index.min(from)))
    }
}
