//! The state that passes rewrite, and the context that all of them may read.

use std::borrow::Cow;
use std::sync::Arc;

use super::lower::Lowered;
use super::staging::Split;
use crate::facts::stages::Stages;
use crate::facts::{Facts, Visits};
use crate::ir::{CollectiveRecord, Op, Program, ValueIndex, Window};
use crate::mesh::{MeshShape, Rank};
use crate::options::PlanOptions;
use crate::pipeline::Action;
use crate::policy::Policy;

/// The mesh and the options that a window is planned for, and what is asked about it.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub mesh: &'a MeshShape,
    pub options: &'a PlanOptions,
    /// A value: why the operation that makes it is split as it is.
    pub why: Option<ValueIndex>,
}

/// A window in mixed precision.
pub(crate) struct Precise<O> {
    pub window: Window<O>,
    /// For each operation whether it is a cast before which terms of a sum are added up: they travel in the type they
    /// have.
    pub reduces_first: Vec<bool>,
}

/// The plan of a window, as far as the passes have come.
pub(crate) struct State<'a, O: Clone> {
    /// The window: as it was recorded, or with its casts and products in 8 bits.
    pub window: Cow<'a, Window<O>>,
    /// Operations (casts) that take sums, not terms of sums; empty if there are none.
    pub reduces_first: Vec<bool>,
    /// The facts of the values and operations of the window.
    pub facts: Facts,
    pub visits: Visits,
    /// The policies of its parameters, in order.
    pub policies: Vec<Arc<Policy>>,
    /// The program common to all ranks; once it is split into stages, one for each coordinate along the pipeline axis.
    pub programs: Vec<Program<O>>,
    /// The stages of its operations and values, if it has some.
    pub stages: Option<Stages>,
    /// How the program is split into those of the coordinates, until they are written down.
    pub split: Option<Split>,
    /// The action of its schedule that each operation belongs to; empty without one.
    pub actions: Vec<Option<Action>>,
    pub collectives: Vec<CollectiveRecord>,
    /// The tasks of each rank.
    pub ranks: Vec<(Rank, Lowered<O>)>,
}

impl<'a, O: Op> State<'a, O> {
    pub(crate) fn new(window: &'a Window<O>) -> Self {
        let facts = Facts::new(window);
        Self {
            window: Cow::Borrowed(window),
            reduces_first: Vec::new(),
            policies: facts.policies(),
            visits: Visits::new(window, &facts),
            facts,
            programs: Vec::new(),
            stages: None,
            split: None,
            actions: Vec::new(),
            collectives: Vec::new(),
            ranks: Vec::new(),
        }
    }

    /// Goes on with a window that was rewritten.
    pub(crate) fn rewritten(&mut self, precise: Precise<O>) {
        self.facts = Facts::new(&precise.window);
        self.visits = Visits::new(&precise.window, &self.facts);
        self.window = Cow::Owned(precise.window);
        self.reduces_first = precise.reduces_first;
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
}
