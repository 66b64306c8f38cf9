//! The passes of the planner, in order.

pub(crate) mod async_tp;
pub(crate) mod checkpoint;
pub(crate) mod float8;
mod hierarchy;
mod lifetimes;
pub(crate) mod lower;
mod offload;
mod precision;
mod propagate;
pub(crate) mod redundancy;
mod schedule;
pub(crate) mod staging;

use std::sync::Arc;

use crate::account;
use crate::cost::Network;
use crate::error::PlanError;
use crate::facts::flow::Flow;
use crate::facts::stages::{Stages, stages};
use crate::facts::{Facts, Visits};
use crate::ir::{
    CollectiveRecord, Common, Op, Program, RankPlan, ScheduleChoice, ValueIndex, Window,
};
use crate::memory::MemoryPlan;
use crate::mesh::{MeshShape, Rank};
use crate::options::PlanOptions;
use crate::pipeline::Action;
use crate::policy::Policy;
use async_tp::Overlap;
use checkpoint::Recomputed;
use float8::Float8Layer;
use hierarchy::Hierarchy;
use lower::{Lowered, Lowering};
use precision::Precise;
use redundancy::Redundancy;
use staging::Split;

/// What is planned, as far as the passes have come.
pub(crate) struct State<'a, O> {
    pub mesh: &'a MeshShape,
    pub options: &'a PlanOptions,
    /// The window as it was recorded.
    pub recorded: &'a Window<O>,
    /// The window with its casts and products in 8 bits, if there are any.
    pub precise: Option<Precise<O>>,
    pub facts: Facts,
    /// Linear layers whose units ask for float8.
    pub float8: Vec<Float8Layer>,
    /// The policies of its parameters, in order.
    pub policies: Vec<Arc<Policy>>,
    pub visits: Visits,
    /// The program common to all ranks; once it is split into stages, one for each coordinate along the pipeline axis.
    pub programs: Vec<Program<O>>,
    /// The stages of its operations and values, if it has some.
    pub stages: Option<Stages>,
    /// The schedule of its microbatches, for people.
    pub scheduled: Option<String>,
    pub redundancy: Redundancy,
    pub recomputed: Recomputed,
    pub collectives: Vec<CollectiveRecord>,
    /// Collectives along tensor-parallel axes, and whether products run beside them.
    pub overlaps: Vec<Overlap>,
    /// How the program is split into those of the coordinates, until they are written down.
    split: Option<Split>,
    /// The action of its schedule that each operation belongs to; empty without one.
    actions: Vec<Option<Action>>,
    /// The tasks of each rank.
    pub ranks: Vec<(Rank, Lowered<O>)>,
    pub memory: Vec<MemoryPlan>,
}

/// One pass: what it does to the state.
type Pass<O> = fn(&mut State<'_, O>) -> Result<(), PlanError>;

/// The names of the passes, in order, with what each does.
pub const PASSES: [(&str, &str); 12] = [
    ("precision", "16-bit types where units ask for them"),
    ("float8", "linear layers in 8 bits where units ask for them"),
    (
        "propagate",
        "a layout for every value, redistributions inserted",
    ),
    ("checkpoint", "activations made again in the backward"),
    ("redundancy", "the work that ranks repeat, counted"),
    (
        "staging",
        "a program for each stage, in the order of the schedule, with what is sent between them",
    ),
    (
        "schedule",
        "gathers and reductions of a unit together, ahead of their use",
    ),
    ("hierarchy", "collectives over several nodes, in stages"),
    (
        "async_tp",
        "products in chunks beside the tensor-parallel transfers that they wait for",
    ),
    ("lower", "tasks of each rank, with local shapes"),
    ("offload", "moves to the host and back"),
    (
        "lifetimes",
        "last uses, and the bytes that each rank will hold",
    ),
];

/// How many passes after `staging` work on the program of one coordinate.
const NUM_EACH: usize = 4;

/// Returns the passes, in the order of [`PASSES`].
fn passes<O: Op>() -> [Pass<O>; PASSES.len()] {
    [
        |state| state.precision(),
        |state| state.float8(),
        |state| state.propagate(),
        |state| state.checkpoint(),
        |state| state.redundancy(),
        |state| state.staging(),
        |state| state.schedule(),
        |state| state.hierarchy(),
        |state| state.async_tp(),
        |state| state.lower(),
        |state| state.offload(),
        |state| state.lifetimes(),
    ]
}

impl<'a, O: Op> State<'a, O> {
    pub(crate) fn new(
        window: &'a Window<O>,
        mesh: &'a MeshShape,
        options: &'a PlanOptions,
    ) -> Self {
        let facts = Facts::new(window);
        Self {
            mesh,
            options,
            recorded: window,
            precise: None,
            float8: Vec::new(),
            policies: facts.policies(),
            visits: Visits::new(window, &facts),
            facts,
            programs: Vec::new(),
            stages: None,
            scheduled: None,
            redundancy: Redundancy::default(),
            recomputed: Recomputed::default(),
            collectives: Vec::new(),
            overlaps: Vec::new(),
            split: None,
            actions: Vec::new(),
            ranks: Vec::new(),
            memory: Vec::new(),
        }
    }

    /// Runs the passes up to one of them, or all.
    ///
    /// # Errors
    /// [`PlanError`] of the first that fails; [`PlanError::UnknownPass`] if there is none of that name.
    pub(crate) fn run(&mut self, last: Option<&str>) -> Result<(), PlanError> {
        if let Some(last) = last
            && PASSES.iter().all(|(name, _)| *name != last)
        {
            return Err(PlanError::UnknownPass {
                name: last.into(),
                passes: PASSES.map(|(name, _)| name).join(", "),
            });
        }
        let mut passes = PASSES.iter().map(|(name, _)| *name).zip(passes::<O>());
        while let Some((name, pass)) = passes.next() {
            pass(self)?;
            if last == Some(name) {
                break;
            }
            if let Some(split) = self.split.take() {
                let each = passes.by_ref().take(NUM_EACH).collect::<Vec<_>>();
                self.each(&split, &each, last)?;
                if each.iter().any(|(name, _)| last == Some(*name)) {
                    break;
                }
            }
        }
        if let Some(split) = self.split.take() {
            let whole = self.program();
            self.programs = split
                .coords()
                .map(|coord| split.program(whole, coord))
                .collect();
        }
        Ok(())
    }

    /// Runs passes on the program of one coordinate after the other. Unless one of them is the `last`, the steps of a
    /// program go once they are lowered.
    fn each(
        &mut self,
        split: &Split,
        passes: &[(&str, Pass<O>)],
        last: Option<&str>,
    ) -> Result<(), PlanError> {
        let mut done = Vec::new();
        let whole = std::mem::take(&mut self.programs);
        for coord in split.coords() {
            self.programs = vec![split.program(&whole[0], coord)];
            for (name, pass) in passes {
                pass(self)?;
                if last == Some(*name) {
                    break;
                }
            }
            let keeps_steps = passes.iter().any(|(name, _)| last == Some(*name));
            for mut program in self.programs.drain(..) {
                if !keeps_steps {
                    program.steps = Vec::new();
                }
                // Of those without steps, one is as good as another.
                if keeps_steps || done.is_empty() {
                    done.push(program);
                }
            }
        }
        self.programs = done;
        Ok(())
    }

    /// Returns the window that is planned.
    pub(crate) fn window(&self) -> &Window<O> {
        match &self.precise {
            Some(precise) => &precise.window,
            None => self.recorded,
        }
    }

    /// Returns the program: that of the first coordinate, if there are several. All have the same slots, values,
    /// reads and outputs.
    ///
    /// # Panics
    /// If there is none yet.
    pub(crate) fn program(&self) -> &Program<O> {
        self.programs.first().expect("layouts were propagated")
    }

    /// Returns the coordinate along the pipeline axis of the ranks that hand a value to the host.
    pub(crate) fn reader(&self, value: ValueIndex) -> usize {
        let stages = self.stages.as_ref();
        stages.map_or(0, |stages| stages.coord(stages.reader(value)) as usize)
    }

    fn precision(&mut self) -> Result<(), PlanError> {
        let precise = precision::precise(self.recorded, &self.facts, &self.visits, self.options)?;
        if let Some(precise) = precise {
            self.facts = Facts::new(&precise.window);
            self.visits = Visits::new(&precise.window, &self.facts);
            self.precise = Some(precise);
        }
        Ok(())
    }

    fn float8(&mut self) -> Result<(), PlanError> {
        if self.policies.iter().all(|policy| policy.float8.is_none()) {
            return Ok(());
        }
        let layers = float8::layers(self.window(), &self.facts, self.mesh);
        if layers.has_products() {
            let reduces_first = self.precise.as_ref();
            let reduces_first = reduces_first.map_or(&[][..], |precise| &precise.reduces_first);
            let precise = float8::rewrite(
                self.window(),
                reduces_first,
                &self.visits,
                &layers,
                self.options.float8_store,
            );
            self.facts = Facts::new(&precise.window);
            self.visits = Visits::new(&precise.window, &self.facts);
            self.precise = Some(precise);
        }
        self.float8 = layers.layers;
        Ok(())
    }

    fn propagate(&mut self) -> Result<(), PlanError> {
        let reduces_first = self.precise.as_ref();
        let reduces_first = reduces_first.map_or(&[][..], |precise| &precise.reduces_first);
        let program = propagate::propagate(
            self.window(),
            self.mesh,
            self.options,
            &self.facts,
            &self.visits,
            reduces_first,
        )?;
        self.programs = vec![program];
        Ok(())
    }

    fn redundancy(&mut self) -> Result<(), PlanError> {
        self.redundancy = redundancy::redundancy(self.program(), &self.facts, self.mesh, |_| 1.0);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), PlanError> {
        for program in &mut self.programs {
            self.recomputed = checkpoint::checkpoint(program, &self.facts, self.mesh);
        }
        Ok(())
    }

    fn staging(&mut self) -> Result<(), PlanError> {
        self.stages = match self.mesh.pipeline_axis() {
            Some(_) => stages(self.window(), &self.facts)?,
            None => None,
        };
        let window = match &self.precise {
            Some(precise) => &precise.window,
            None => self.recorded,
        };
        let [program] = &mut self.programs[..] else {
            return Ok(());
        };
        if self.stages.is_none() && self.options.microbatches.is_none() {
            return Ok(());
        }
        let mut parts = staging::parts(window, &self.facts, self.stages.as_ref());
        let options = self.options;
        // Before microbatches are repeated.
        let recorded = options.microbatches.map(|_| parts.clone());
        let repeated = match options.microbatches {
            Some(count) => staging::repeat(program, &mut parts, &mut self.visits, count)?,
            None => None,
        };
        if let Some(repeated) = &repeated {
            let times = repeated.times(program);
            let times = |step: usize| f64::from(times[step]);
            self.redundancy = redundancy::redundancy(program, &self.facts, self.mesh, times);
        }
        let Some(stages) = &self.stages else {
            if let Some(repeated) = repeated {
                program.steps = repeated.steps(program);
            }
            return Ok(());
        };
        let (pipeline, count) = (&stages.pipeline, staging::count(&parts));
        let costs = || {
            let flow = Flow::new(program, &self.facts, self.mesh);
            let network = Network::new(self.mesh, &options.links, &options.topology);
            let recorded = recorded.as_deref().unwrap_or(&parts);
            staging::costs(program, &flow, recorded, pipeline, &network)
        };
        let actions = match staging::has_backward(&parts) {
            true => {
                let (name, schedule) = pipeline.schedule(count, costs)?;
                self.scheduled = Some(match &pipeline.schedule {
                    ScheduleChoice::Auto { .. } => format!("{pipeline}: {name}"),
                    _ => pipeline.to_string(),
                });
                schedule.order
            }
            false => pipeline.forwards(count),
        };
        self.actions = staging::actions(&parts, &actions);
        let (facts, everyone_reads) = ((&parts[..], stages), options.everyone_reads);
        let split = staging::stage(program, repeated, window, facts, actions, everyone_reads)?;
        self.split = Some(split);
        Ok(())
    }

    fn schedule(&mut self) -> Result<(), PlanError> {
        for program in &mut self.programs {
            schedule::schedule(program, &self.facts, &self.visits, self.mesh);
        }
        Ok(())
    }

    fn hierarchy(&mut self) -> Result<(), PlanError> {
        let hierarchy = Hierarchy::new(self.mesh, self.options);
        for program in &mut self.programs {
            hierarchy.compose(program);
        }
        Ok(())
    }

    fn async_tp(&mut self) -> Result<(), PlanError> {
        if let Some(pass) = async_tp::Pass::new(self.mesh, self.options, &self.visits) {
            for program in &mut self.programs {
                self.overlaps.extend(pass.run(program));
            }
        }
        Ok(())
    }

    fn lower(&mut self) -> Result<(), PlanError> {
        let mut ranks = std::mem::take(&mut self.ranks);
        let mut collectives = std::mem::take(&mut self.collectives);
        let window = self.window();
        let axis = self.stages.as_ref().map(|stages| stages.pipeline.axis);
        for program in &self.programs {
            let first = collectives.len() as u32;
            let coord = |rank: &Rank| axis.map_or(0, |axis| self.mesh.coord(*rank, axis) as u32);
            let mut all = self.mesh.ranks();
            let first_rank = all.find(|rank| coord(rank) == program.coord);
            let first_rank = first_rank.expect("a stage has ranks");
            let first = (first_rank, first);
            let lowering = Lowering::new(window, program, self.mesh, self.options, first)?;
            let mine = self.options.ranks.iter();
            for &rank in mine.filter(|rank| coord(rank) == program.coord) {
                let is_here = |action: &Action| {
                    let stages = self.stages.as_ref();
                    stages.is_some_and(|stages| stages.coord(action.stage) == program.coord)
                };
                let action = |step: &Common<O>| {
                    let ops = [step.at(), step.stage_of()].into_iter().flatten();
                    let mut actions = ops.filter_map(|op| *self.actions.get(op as usize)?);
                    actions.find(is_here)
                };
                let mut lowered = lowering.rank(rank, &self.visits, action)?;
                let classes = account::classes(window, program, &self.facts, &lowered.plan);
                lowered.plan.classes = classes.into();
                ranks.push((rank, lowered));
            }
            collectives.extend(lowering.records());
        }
        ranks.sort_by_key(|(rank, ..)| *rank);
        (self.ranks, self.collectives) = (ranks, collectives);
        Ok(())
    }

    fn offload(&mut self) -> Result<(), PlanError> {
        if self.policies.iter().any(|policy| policy.offload.is_on()) {
            // Of a slot its policy is asked for, which is the same in all programs.
            let program = self.programs.first().expect("layouts were propagated");
            for (_, lowered) in &mut self.ranks {
                offload::offload(&mut lowered.plan, &lowered.visits, program);
            }
        }
        Ok(())
    }

    fn lifetimes(&mut self) -> Result<(), PlanError> {
        for (_, Lowered { plan, actions, .. }) in &mut self.ranks {
            lifetimes::lifetimes(plan);
            plan.find_actions(actions);
            self.memory.push(account::account(plan).0);
        }
        let asked: u64 = self.memory.iter().map(|rank| rank.host_peak_bytes).sum();
        let limits = self.policies.iter().filter_map(|policy| {
            let offload = policy.offload;
            Some((offload.host_bytes_max?, offload))
        });
        match limits.min_by_key(|(limit, _)| *limit) {
            Some((limit, offload)) if asked > limit => Err(PlanError::HostMemory {
                offload,
                asked,
                limit,
            }),
            _ => Ok(()),
        }
    }

    /// Takes the tasks of all ranks.
    pub(crate) fn take_ranks(&mut self) -> Vec<Arc<RankPlan<O>>> {
        let ranks = std::mem::take(&mut self.ranks).into_iter();
        ranks.map(|(_, lowered)| Arc::new(lowered.plan)).collect()
    }
}
