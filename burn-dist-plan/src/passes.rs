//! The passes of the planner, in order.

use std::sync::Arc;

use crate::account;
use crate::checkpoint::{self, Flow, Recomputed};
use crate::error::PlanError;
use crate::facts::Facts;
use crate::hierarchy::Hierarchy;
use crate::lower::Lowering;
use crate::memory::MemoryPlan;
use crate::mesh::MeshShape;
use crate::op::Op;
use crate::options::PlanOptions;
use crate::precision::{self, Precise};
use crate::propagate::{self, Program};
use crate::redundancy::{self, Redundancy};
use crate::task::{CollectiveRecord, RankPlan};
use crate::units::Visits;
use crate::window::Window;
use crate::{lifetimes, offload, schedule};

/// What is planned, as far as the passes have come.
pub(crate) struct State<'a, O> {
    pub mesh: &'a MeshShape,
    pub options: &'a PlanOptions,
    /// The window as it was recorded.
    pub recorded: &'a Window<O>,
    /// The window with its casts, if there are any.
    pub precise: Option<Precise<O>>,
    pub facts: Facts,
    pub visits: Visits,
    /// The program common to all ranks.
    pub program: Option<Program<O>>,
    /// Which slots flow into what outlives the window.
    pub lasting: Vec<bool>,
    pub redundancy: Redundancy,
    pub recomputed: Recomputed,
    pub collectives: Vec<CollectiveRecord>,
    /// The tasks of each rank, and the visit that each belongs to.
    pub ranks: Vec<(RankPlan<O>, Vec<u32>)>,
    pub memory: Vec<MemoryPlan>,
}

/// One pass: what it does to the state.
type Pass<O> = fn(&mut State<'_, O>) -> Result<(), PlanError>;

/// The names of the passes, in order, with what each does.
pub const PASSES: [(&str, &str); 9] = [
    ("precision", "16-bit types where units ask for them"),
    (
        "propagate",
        "a layout for every value, redistributions inserted",
    ),
    ("redundancy", "the work that ranks repeat, counted"),
    ("checkpoint", "activations made again in the backward"),
    (
        "schedule",
        "gathers and reductions of a unit together, ahead of their use",
    ),
    ("hierarchy", "collectives over several nodes, in stages"),
    ("lower", "tasks of each rank, with local shapes"),
    ("offload", "moves to the host and back"),
    (
        "lifetimes",
        "last uses, and the bytes that each rank will hold",
    ),
];

/// Returns the passes, in the order of [`PASSES`].
fn passes<O: Op>() -> [Pass<O>; PASSES.len()] {
    [
        |state| state.precision(),
        |state| state.propagate(),
        |state| state.redundancy(),
        |state| state.checkpoint(),
        |state| state.schedule(),
        |state| state.hierarchy(),
        |state| state.lower(),
        |state| state.offload(),
        |state| state.lifetimes(),
    ]
}

impl<'a, O: Op> State<'a, O> {
    pub fn new(window: &'a Window<O>, mesh: &'a MeshShape, options: &'a PlanOptions) -> Self {
        let facts = Facts::new(window);
        Self {
            mesh,
            options,
            recorded: window,
            precise: None,
            visits: Visits::new(window, &facts),
            facts,
            program: None,
            lasting: Vec::new(),
            redundancy: Redundancy::default(),
            recomputed: Recomputed::default(),
            collectives: Vec::new(),
            ranks: Vec::new(),
            memory: Vec::new(),
        }
    }

    /// Runs the passes up to one of them, or all.
    ///
    /// # Errors
    /// [`PlanError`] of the first that fails; [`PlanError::UnknownPass`] if there is none of that name.
    pub fn run(&mut self, last: Option<&str>) -> Result<(), PlanError> {
        if let Some(last) = last
            && PASSES.iter().all(|(name, _)| *name != last)
        {
            return Err(PlanError::UnknownPass { name: last.into() });
        }
        for ((name, _), pass) in PASSES.iter().zip(passes::<O>()) {
            pass(self)?;
            if last == Some(*name) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the window that is planned.
    pub fn window(&self) -> &Window<O> {
        match &self.precise {
            Some(precise) => &precise.window,
            None => self.recorded,
        }
    }

    /// Returns the program.
    ///
    /// # Panics
    /// If there is none yet.
    pub fn program(&self) -> &Program<O> {
        self.program.as_ref().expect("layouts were propagated")
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

    fn propagate(&mut self) -> Result<(), PlanError> {
        let reduces_first = self.precise.as_ref();
        let reduces_first = reduces_first.map_or(&[][..], |precise| &precise.reduces_first);
        self.program = Some(propagate::propagate(
            self.window(),
            self.mesh,
            self.options,
            &self.facts,
            &self.visits,
            reduces_first,
        )?);
        Ok(())
    }

    fn redundancy(&mut self) -> Result<(), PlanError> {
        self.redundancy = redundancy::redundancy(self.program(), &self.facts, self.mesh);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), PlanError> {
        if let Some(program) = &mut self.program {
            self.recomputed = checkpoint::checkpoint(program, self.mesh, self.options.checkpoint);
            self.lasting = Flow::new(program, self.mesh).lasting;
        }
        Ok(())
    }

    fn schedule(&mut self) -> Result<(), PlanError> {
        if let Some(program) = &mut self.program {
            schedule::schedule(program, &self.visits, self.mesh, &self.options.sharding);
        }
        Ok(())
    }

    fn hierarchy(&mut self) -> Result<(), PlanError> {
        if let Some(program) = &mut self.program {
            let between = Hierarchy::new(self.mesh, self.options).compose(program);
            // What lies between the stages of a collective is what comes of them.
            for slot in between {
                self.lasting.push(self.lasting[slot as usize]);
            }
        }
        Ok(())
    }

    fn lower(&mut self) -> Result<(), PlanError> {
        let (window, program) = (self.window(), self.program());
        let lowering = Lowering::new(window, program, self.mesh, self.options);
        let ranks = self.options.ranks.iter().map(|&rank| {
            let (mut plan, visits) = lowering.rank(rank, &self.visits);
            let classes = account::classes(window, program, &self.facts, &self.lasting, &plan);
            plan.classes = classes.into();
            (plan, visits)
        });
        let (ranks, collectives) = (ranks.collect(), lowering.records());
        (self.ranks, self.collectives) = (ranks, collectives);
        Ok(())
    }

    fn offload(&mut self) -> Result<(), PlanError> {
        if self.options.offload.is_on() {
            for (plan, visits) in &mut self.ranks {
                let ahead = self.options.sharding.prefetch;
                offload::offload(plan, visits, &self.options.offload, ahead);
            }
        }
        Ok(())
    }

    fn lifetimes(&mut self) -> Result<(), PlanError> {
        for (plan, _) in &mut self.ranks {
            lifetimes::lifetimes(plan);
            self.memory.push(account::account(plan).0);
        }
        let asked: u64 = self.memory.iter().map(|rank| rank.host_peak_bytes).sum();
        let offload = self.options.offload;
        match offload.host_bytes_max.filter(|limit| asked > *limit) {
            Some(limit) => Err(PlanError::HostMemory {
                offload,
                asked,
                limit,
            }),
            None => Ok(()),
        }
    }

    /// Takes the tasks of all ranks.
    pub fn take_ranks(&mut self) -> Vec<Arc<RankPlan<O>>> {
        let ranks = std::mem::take(&mut self.ranks).into_iter();
        ranks.map(|(plan, _)| Arc::new(plan)).collect()
    }
}
