//! The state that passes rewrite, and the context that all of them may read.

use std::borrow::Cow;
use std::sync::Arc;

use super::lower::Lowered;
use super::rewriting::Rewritten;
use super::staging::Split;
use crate::facts::stages::Stages;
use crate::facts::{Facts, Visits};
use crate::ir::{CollectiveRecord, Op, Program, ValueIndex, Window};
use crate::layout::Policy;
use crate::mesh::{MeshShape, Rank};
use crate::options::PlanOptions;
use crate::pipeline::Action;

/// The mesh and the options that a window is planned for, and what is asked about it.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub mesh: &'a MeshShape,
    pub options: &'a PlanOptions,
    /// A value: why the operation that makes it is split as it is.
    pub why: Option<ValueIndex>,
}

/// The plan of a window, as far as the passes have come.
pub(crate) struct State<'a, O: Clone> {
    /// The window: as it was recorded, or with its casts and products in 8 bits.
    pub window: Cow<'a, Window<O>>,
    /// Operations (casts) that take sums, not terms of sums; empty if there are none.
    pub reduces_first: Vec<bool>,
    /// The facts of the values and operations of the window: nothing before the first pass.
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
        Self {
            window: Cow::Borrowed(window),
            reduces_first: Vec::new(),
            policies: Vec::new(),
            visits: Visits::default(),
            facts: Facts::default(),
            programs: Vec::new(),
            stages: None,
            split: None,
            actions: Vec::new(),
            collectives: Vec::new(),
            ranks: Vec::new(),
        }
    }

    /// Goes on with the facts of the window.
    pub(crate) fn found(&mut self, facts: Facts) {
        self.policies = facts.policies();
        self.visits = Visits::new(&self.window, &facts);
        self.facts = facts;
    }

    /// Goes on with a window that was rewritten: what is known of it follows.
    pub(crate) fn rewritten(&mut self, made: Rewritten<O>) {
        self.facts.follow(&self.window, &made.window, &made.edits);
        self.visits.follow(&made.edits);
        self.window = Cow::Owned(made.window);
        self.reduces_first = made.reduces_first;
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
