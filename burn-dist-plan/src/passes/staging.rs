//! Stages: the program common to all ranks becomes one for the ranks of each coordinate along the pipeline axis.
//!
//! Every step of a stage goes to the ranks that have the stage, and what has none is made wherever it is needed. What
//! one coordinate makes and another uses is sent as soon as it is made, and received before its first use. The work
//! of a microbatch on a stage, forward, backward or for the gradients of weights, is an action, and a coordinate takes
//! its actions in the order of the schedule; what belongs to no microbatch, such as the optimizer, comes after them.
//!
//! Nothing here changes a value: the same steps run on the same operands, and gradients are added up in the order in
//! which the program adds them up. A step that the schedule has come to before what it needs waits for that.
//!
//! Sends do not wait for the receiver, and between two coordinates messages keep their order, so that ranks that run
//! their programs from top to bottom cannot wait for each other; [`Staged::check`] makes sure of it.
//!
//! Stages of which only some ranks are planned for are split like all others: their sends have an order too.

mod costs;
pub(crate) mod parts;
mod repeat;
mod split;
mod steps;

pub(crate) use costs::costs;
pub(crate) use parts::parts;
pub(crate) use split::Split;

use std::collections::{HashMap, HashSet, VecDeque};

use rustc_hash::{FxHashMap, FxHashSet};

use super::redundancy::redundancy;
use super::{Context, Report, State};
use crate::cost::Network;
use crate::error::PlanError;
use crate::facts::flow::Flow;
use crate::facts::stages::{Stages, stages};
use crate::ir::{InputState, Op, Program, ProgramStep, ScheduleChoice, Slot, Transfer, Window};
use crate::pipeline::{Action, Kind};
use parts::{Part, count, has_backward};
use repeat::{Repeated, repeat};
use split::Planned;
use steps::Steps;

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    &Context { mesh, options, .. }: &Context<'_>,
) -> Result<Report, PlanError> {
    let mut report = Report::default();
    if mesh.pipeline_axis().is_some() {
        state.stages = stages(&state.window, &state.facts)?;
    }
    let [program] = &mut state.programs[..] else {
        return Ok(report);
    };
    if state.stages.is_none() && options.microbatches.is_none() {
        return Ok(report);
    }
    let mut parts = parts(&state.window, &state.facts, state.stages.as_ref());
    // Before microbatches are repeated.
    let recorded = options.microbatches.map(|_| parts.clone());
    let repeated = match options.microbatches {
        Some(count) => repeat(program, &mut parts, &mut state.visits, count)?,
        None => None,
    };
    if let Some(repeated) = &repeated {
        let times = repeated.times(program);
        let times = |step: usize| f64::from(times[step]);
        report.redundancy = Some(redundancy(program, &state.facts, mesh, times));
    }
    let Some(stages) = &state.stages else {
        if let Some(repeated) = repeated {
            program.steps = repeated.steps(program);
        }
        return Ok(report);
    };
    let (pipeline, count) = (&stages.pipeline, count(&parts));
    let costs = || {
        let flow = Flow::new(program, &state.facts, mesh);
        let network = Network::new(mesh, &options.links, &options.topology);
        let recorded = recorded.as_deref().unwrap_or(&parts);
        costs(program, &flow, recorded, pipeline, &network)
    };
    let order = match has_backward(&parts) {
        true => {
            let (name, schedule) = pipeline.schedule(count, costs)?;
            report.scheduled = Some(match &pipeline.schedule {
                ScheduleChoice::Auto { .. } => format!("{pipeline}: {name}"),
                _ => pipeline.to_string(),
            });
            schedule.order
        }
        false => pipeline.forwards(count),
    };
    state.actions = actions(&parts, &order);
    let (facts, everyone_reads) = ((&parts[..], stages), options.everyone_reads);
    let split = stage(
        program,
        repeated,
        &state.window,
        facts,
        (&state.actions, &order),
        everyone_reads,
    )?;
    state.split = Some(split);
    Ok(report)
}

/// When a step of a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    /// What is sent elsewhere and is there from the start.
    First,
    /// With that action of the coordinate.
    Action(u32),
    /// After all actions.
    Last,
}

/// What a coordinate does, in order.
enum Item {
    Step(u32),
    /// Waits for what another coordinate makes.
    Need(Slot),
}

struct Staged<'a, O> {
    steps: Steps<'a, O>,
    stages: &'a Stages,
    /// The step that makes each slot.
    producer: Vec<u32>,
    /// The stage of each slot and of each step.
    of_slot: Vec<Option<u32>>,
    of_step: Vec<Option<u32>>,
    /// True if each step stands at an operation that every stage makes wherever it needs it, and is another one: what a
    /// backward makes again of a forward.
    with_need: Vec<bool>,
    /// Coordinates besides its own that need each slot.
    wanted: FxHashMap<Slot, Vec<u32>>,
}

/// Splits `program`, whose slots are those of all microbatches, by the coordinates of the pipeline axis.
///
/// # Errors
/// [`PlanError::Deadlock`] if the coordinates would wait for each other.
fn stage<O: Op>(
    program: &Program<O>,
    repeated: Option<Repeated>,
    window: &Window<O>,
    (parts, stages): (&[Part], &Stages),
    (actions, order): (&[Option<Action>], &[Vec<Action>]),
    everyone_reads: bool,
) -> Result<Split, PlanError> {
    let steps = Steps::new(program, repeated.as_ref());
    let mut staged = Staged::new(program, steps, window, (parts, stages), everyone_reads);
    // Once to see what each coordinate needs of others, and once with what they send first.
    for (coord, mine) in (0..).zip(order) {
        for item in staged.items(coord, &whens(actions, mine)) {
            if let Item::Need(slot) = item {
                staged.wanted.entry(slot).or_default().push(coord);
            }
        }
    }
    let items = (0..).zip(order);
    let items = items.map(|(coord, mine)| staged.items(coord, &whens(actions, mine)));
    let coords = staged.transfers(items.collect())?;
    Ok(Split { repeated, coords })
}

/// Returns the action that each part is in a schedule, which may not take a backward apart.
fn actions(parts: &[Part], order: &[Vec<Action>]) -> Vec<Option<Action>> {
    let all: HashSet<Action> = order.iter().flatten().copied().collect();
    let of = |part: &Part| {
        let action = Action::new(part.kind?, part.stage?, part.microbatch);
        let kinds = match action.kind {
            Kind::Forward => [Kind::Forward; 2],
            split => [split, Kind::Full],
        };
        let mut actions = kinds.map(|kind| action.with_kind(kind)).into_iter();
        actions.find(|action| all.contains(action))
    };
    parts.iter().map(of).collect()
}

/// Returns when each operation's steps run on a coordinate that has these actions, in order.
fn whens(actions: &[Option<Action>], mine: &[Action]) -> Vec<When> {
    let places: FxHashMap<Action, u32> = mine.iter().copied().zip(0..).collect();
    let when = |action: &Option<Action>| {
        let place = action.and_then(|action| places.get(&action));
        place.map_or(When::Last, |place| When::Action(*place))
    };
    actions.iter().map(when).collect()
}

impl<'a, O: Op> Staged<'a, O> {
    fn new(
        program: &'a Program<O>,
        steps: Steps<'a, O>,
        window: &Window<O>,
        (parts, stages): (&[Part], &'a Stages),
        everyone_reads: bool,
    ) -> Self {
        let end = window.ops.len() as u32;
        let outside = window.inputs.iter().filter_map(|input| match &input.state {
            InputState::Placed { stage, .. } => Some((input.value, stage.as_ref()?.index)),
            InputState::Host { .. } => None,
        });
        let outside: HashMap<_, _> = outside.collect();
        let mut this = Self {
            stages,
            producer: vec![0; program.slots.len()],
            of_slot: vec![None; program.slots.len()],
            of_step: Vec::with_capacity(steps.len()),
            with_need: Vec::with_capacity(steps.len()),
            wanted: FxHashMap::default(),
            steps,
        };
        for index in 0..this.steps.len() {
            let reads = this.steps.reads(index).iter();
            let from = reads.filter_map(|slot| this.of_slot[*slot as usize]).next();
            let stage = match this.steps.recorded(index) {
                ProgramStep::Load { value, .. } => outside.get(value).copied(),
                ProgramStep::Local(_) | ProgramStep::Move(_) => {
                    // Beyond the last operation, what lives on is brought to where it rests.
                    let [_, of_op] = this.steps.ops(index);
                    let of_op = of_op.filter(|op| *op != end);
                    let stage = of_op.map_or(from, |op| parts[op as usize].stage);
                    // What every stage makes that needs it, each stage moves as well.
                    let is_made = matches!(this.steps.recorded(index), ProgramStep::Local(_));
                    stage.filter(|_| from.is_some() || is_made)
                }
                ProgramStep::Store { value, .. } => stages.homes[*value as usize],
                ProgramStep::Read { read, .. } if !everyone_reads => {
                    let (_, value) = program.reads[*read as usize];
                    Some(stages.reader(value))
                }
                _ => None,
            };
            let [at, of] = this.steps.ops(index);
            let stands_apart = at.filter(|at| Some(*at) != of && *at != end);
            let with_need = stands_apart.is_some_and(|at| parts[at as usize].stage.is_none());
            this.with_need.push(with_need);
            for slot in this.steps.writes(index) {
                this.of_slot[*slot as usize] = stage;
                this.producer[*slot as usize] = index as u32;
            }
            this.of_step.push(stage);
        }
        this
    }

    /// Returns whether other coordinates need what a step makes.
    fn is_wanted(&self, index: usize) -> bool {
        let mut writes = self.steps.writes(index).iter();
        writes.any(|slot| self.wanted.contains_key(slot))
    }

    /// Returns what a coordinate does, in order; `whens` say when it takes the steps of each operation.
    fn items(&self, coord: u32, whens: &[When]) -> Vec<Item> {
        let mut mine: Vec<(When, u32)> = Vec::new();
        for index in 0..self.steps.len() {
            let stage = self.of_step[index];
            if stage.is_some_and(|stage| self.stages.coord(stage) != coord) {
                continue;
            }
            let when = match self.steps.recorded(index) {
                ProgramStep::Load { slot, .. } if self.wanted.contains_key(slot) => When::First,
                ProgramStep::Local(_) | ProgramStep::Move(_) if stage.is_none() => continue,
                ProgramStep::Local(_) if self.with_need[index] && !self.is_wanted(index) => {
                    continue;
                }
                ProgramStep::Local(_) | ProgramStep::Move(_) => {
                    // What is made for another coordinate is made with its own operation.
                    let ops = self.steps.ops(index).into_iter().flatten();
                    let mut whens = ops.map(|op| whens[op as usize]);
                    let of_action = whens.find(|when| matches!(when, When::Action(_)));
                    of_action.unwrap_or(When::Last)
                }
                ProgramStep::Upload { .. } | ProgramStep::Random { .. } => continue,
                _ => When::Last,
            };
            mine.push((when, index as u32));
        }
        mine.sort_unstable();
        let mut items = Vec::with_capacity(mine.len());
        let mut done = vec![false; self.steps.len()];
        let mut received: FxHashSet<Slot> = FxHashSet::default();
        let mut stack: Vec<(u32, bool)> = Vec::new();
        for (_, index) in mine {
            stack.push((index, false));
            // What a step needs comes first, wherever the schedule has it.
            while let Some((index, is_ready)) = stack.pop() {
                if done[index as usize] {
                    continue;
                }
                if is_ready {
                    done[index as usize] = true;
                    items.push(Item::Step(index));
                    continue;
                }
                stack.push((index, true));
                for &slot in self.steps.reads(index as usize).iter().rev() {
                    let of = self.of_slot[slot as usize];
                    let is_here = of.is_none_or(|stage| self.stages.coord(stage) == coord);
                    match is_here {
                        true => stack.push((self.producer[slot as usize], false)),
                        false => {
                            if received.insert(slot) {
                                items.push(Item::Need(slot));
                            }
                        }
                    }
                }
            }
        }
        items
    }

    /// Returns the steps of each coordinate, with what is sent and received.
    fn transfers(&self, items: Vec<Vec<Item>>) -> Result<Vec<Vec<Planned>>, PlanError> {
        let mut programs: Vec<Vec<Planned>> = Vec::with_capacity(items.len());
        // Slots in the order in which one coordinate sends them to another.
        let mut sent: HashMap<(u32, u32), Vec<Slot>> = HashMap::new();
        for (from, items) in (0..).zip(&items) {
            let mut steps = Vec::with_capacity(items.len());
            for item in items {
                match item {
                    Item::Need(slot) => steps.push(Planned::Receive(self.transfer(*slot, from))),
                    Item::Step(index) => {
                        steps.push(Planned::Step(*index));
                        for &slot in self.steps.writes(*index as usize) {
                            let owner = self.of_slot[slot as usize];
                            let owner = owner.map(|stage| self.stages.coord(stage));
                            let wanted = self.wanted.get(&slot).filter(|_| owner == Some(from));
                            for to in wanted.into_iter().flatten() {
                                sent.entry((from, *to)).or_default().push(slot);
                                steps.push(Planned::Send(self.transfer(slot, *to)));
                            }
                        }
                    }
                }
            }
            programs.push(steps);
        }
        // Messages keep their order: what comes first is received first.
        let mut coming: Vec<HashMap<u32, VecDeque<Slot>>> = Vec::new();
        coming.resize_with(programs.len(), HashMap::new);
        for ((from, to), slots) in sent {
            coming[to as usize].insert(from, slots.into());
        }
        for ((to, steps), mut ahead) in (0..).zip(&mut programs).zip(coming) {
            let mut received: HashSet<Slot> = HashSet::new();
            let mut ordered = Vec::with_capacity(steps.len());
            for step in std::mem::take(steps) {
                let Planned::Receive(needed) = &step else {
                    ordered.push(step);
                    continue;
                };
                let Some(ahead) = ahead.get_mut(&needed.from) else {
                    continue;
                };
                while !received.contains(&needed.slot)
                    && let Some(slot) = ahead.pop_front()
                {
                    received.insert(slot);
                    ordered.push(Planned::Receive(self.transfer(slot, to)));
                }
            }
            *steps = ordered;
        }
        self.check(&programs)?;
        Ok(programs)
    }

    fn transfer(&self, slot: Slot, to: u32) -> Transfer {
        let stage = self.of_slot[slot as usize].unwrap_or_default();
        let producer = self.producer[slot as usize] as usize;
        Transfer {
            slot,
            from: self.stages.coord(stage),
            to,
            axis: self.stages.pipeline.axis,
            path: self.steps.recorded(producer).path().cloned(),
        }
    }

    /// Checks that all coordinates come to their ends.
    fn check(&self, programs: &[Vec<Planned>]) -> Result<(), PlanError> {
        let mut at = vec![0; programs.len()];
        let mut sent: HashSet<(Slot, u32)> = HashSet::new();
        // The coordinate that waits for a slot.
        let mut waiting: HashSet<(Slot, u32)> = HashSet::new();
        let mut ready: Vec<u32> = (0..programs.len() as u32).rev().collect();
        while let Some(coord) = ready.pop() {
            let at = &mut at[coord as usize];
            while let Some(step) = programs[coord as usize].get(*at) {
                match step {
                    Planned::Send(transfer) => {
                        let message = (transfer.slot, transfer.to);
                        sent.insert(message);
                        ready.extend(waiting.remove(&message).then_some(transfer.to));
                    }
                    Planned::Receive(transfer) if !sent.contains(&(transfer.slot, coord)) => {
                        waiting.insert((transfer.slot, coord));
                        break;
                    }
                    _ => {}
                }
                *at += 1;
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let waits = at.iter().zip(programs);
        let waits = waits.filter_map(|(at, steps)| match steps.get(*at)? {
            Planned::Receive(transfer) => {
                Some(format!("s{} from {}", transfer.slot, transfer.from))
            }
            _ => None,
        });
        Err(PlanError::Deadlock {
            at: waits.collect::<Vec<_>>().join(", "),
        })
    }
}
