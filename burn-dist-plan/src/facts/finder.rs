//! Finds the facts of a window: first what tells which products are layers, then the rest.
//!
//! A cast makes no value of another kind: what a value is, who uses it, and how far it is from another, is asked of it
//! and its casts together, of the *class* that they are.

use std::collections::HashMap;
use std::sync::Arc;

use super::seen::{Seen, keeps_dims};
use super::walk::Walk;
use super::{Edit, Facts};
use crate::ir::{Entry, InputState, Mark, Op, Origin, ParamSpec, Role, ValueIndex, Window, Work};
use crate::pool::Pool;
use crate::rule::OpRule;

/// All that is known of a window while its facts are found.
pub(crate) struct Finder<'a, O> {
    pub(super) window: &'a Window<O>,
    pub(super) ops: Vec<Seen>,
    /// The value that each is a reshape of.
    pub(super) reshape_of: Vec<Option<ValueIndex>>,
    /// The first of the class of each value: what it is a cast of, or a cast of a cast.
    pub(super) root: Vec<ValueIndex>,
    /// The parameter that each value is.
    pub(super) tags: Vec<Option<Arc<ParamSpec>>>,
    /// The parameter that each value is a view of.
    view_of: Vec<Option<Arc<ParamSpec>>>,
    /// Number of the loss that each value comes from, from 1; 0 of what comes from none.
    pub(super) backward: Vec<u32>,
    /// True if each value comes from a loss or from a gradient that came from outside: what is made of the state of an
    /// optimizer alone does not.
    of_gradients: Vec<bool>,
    /// True if each value is enough in pieces, by the first of its class.
    alone: Vec<bool>,
    /// True of a value that is enough in pieces for all but what keeps its dims: that, too, if it is of an update.
    alone_in_update: Vec<bool>,
    update_of: Vec<Option<Arc<ParamSpec>>>,
    /// The parameters that values from outside are to update, as far as the window knew that made them.
    updates_outside: HashMap<ValueIndex, Arc<ParamSpec>>,
}

impl Facts {
    /// Finds what is known.
    pub fn new<O: Op>(window: &Window<O>) -> Self {
        Finder::new(window).facts()
    }
}

impl<'a, O: Op> Finder<'a, O> {
    /// Finds parameters, what replaces them, and what is made for that.
    pub(crate) fn new(window: &'a Window<O>) -> Self {
        let num_values = window.dies.len();
        let mut this = Self {
            window,
            ops: Vec::with_capacity(window.ops.len()),
            reshape_of: vec![None; num_values],
            root: (0..num_values as ValueIndex).collect(),
            tags: vec![None; num_values],
            view_of: vec![None; num_values],
            backward: vec![0; num_values],
            of_gradients: vec![false; num_values],
            alone: Vec::new(),
            alone_in_update: Vec::new(),
            update_of: Vec::new(),
            updates_outside: HashMap::new(),
        };
        let mut pool = Pool::default();
        for op in &window.ops {
            this.operation(op, &mut pool);
        }
        this.evidence();
        this
    }

    /// Notes the next operation.
    fn operation(&mut self, op: &O, pool: &mut Pool<OpRule>) {
        let seen = Seen::new(op, pool.share(op.rule()));
        if let Some((from, _)) = seen.inputs.first().filter(|_| seen.traits.is_cast) {
            for out in seen.outputs() {
                self.root[out] = self.root(*from);
            }
        }
        if let Some(from) = seen.reshapes() {
            self.reshape_of[seen.out as usize] = Some(from);
        }
        self.ops.push(seen);
    }

    fn evidence(&mut self) {
        for input in &self.window.inputs {
            if let InputState::Placed { role, .. } = &input.state {
                self.tags[input.value as usize] = role.parameter().cloned();
                let of = role.belongs_to().filter(|_| role.parameter().is_none());
                self.updates_outside
                    .extend(of.map(|of| (input.value, of.clone())));
            }
        }
        for op in &self.window.ops {
            if let (Some(Mark::Param(spec)), Some(out)) = (op.mark(), op.outputs().next()) {
                self.tags[out.id as usize] = Some(spec.clone());
            }
        }
        self.follow_backward();
        if self.tags.iter().any(Option::is_some) {
            self.follow_parameters();
            self.cast_parameters();
            self.functions_of_parameters();
            self.cast_parameters();
            // What replaces a parameter is where a backward ends.
            self.follow_backward();
        }
        self.view_of = self.views();
        self.follow_updates();
    }

    fn follow_updates(&mut self) {
        (self.alone, self.alone_in_update) = self.used_on_pieces();
        self.update_of = self.updates();
    }

    pub(crate) fn window(&self) -> &'a Window<O> {
        self.window
    }

    /// Returns the products of two matrices, with their numbers.
    pub(crate) fn products(&self) -> impl Iterator<Item = (usize, &'a O)> {
        let ops = self.ops.iter().zip(&self.window.ops).enumerate();
        let products = ops.filter(|(_, (seen, _))| matches!(seen.traits.work, Work::Product));
        products.map(|(at, (_, op))| (at, op))
    }

    pub(crate) fn reshape_of(&self, value: ValueIndex) -> Option<ValueIndex> {
        self.reshape_of[value as usize]
    }

    pub(crate) fn is_backward(&self, value: ValueIndex) -> bool {
        self.backward[value as usize] > 0
    }

    pub(crate) fn parameter(&self, value: ValueIndex) -> Option<&Arc<ParamSpec>> {
        self.tags[value as usize].as_ref()
    }

    /// Returns whether a value is a parameter, or a view of one.
    pub(crate) fn is_of_parameter(&self, value: ValueIndex) -> bool {
        self.parameter(value).is_some() || self.view_of[value as usize].is_some()
    }

    /// Returns the parameter that a value is, or is to update.
    pub(crate) fn updated(&self, value: ValueIndex) -> Option<&Arc<ParamSpec>> {
        let of = self
            .parameter(value)
            .or(self.update_of[value as usize].as_ref());
        of.or_else(|| self.updates_outside.get(&value))
    }

    /// Goes on with a window in which layers stand for products, and for what was made for them.
    pub(crate) fn rewritten<'b>(mut self, window: &'b Window<O>, edits: &[Edit]) -> Finder<'b, O> {
        let mut is_made = vec![false; window.dies.len()];
        for out in window.ops.iter().flat_map(Op::outputs) {
            is_made[out.id as usize] = true;
        }
        let before = std::mem::take(&mut self.ops);
        for out in before.iter().flat_map(Seen::outputs) {
            if !is_made[out] {
                self.forget(out as ValueIndex, true);
            }
        }
        let mut before: Vec<Option<Seen>> = before.into_iter().map(Some).collect();
        let mut pool = Pool::default();
        let mut this = Finder { window, ..self };
        for (op, edit) in window.ops.iter().zip(edits) {
            let known = edit.before().and_then(|at| before[at].take());
            match (edit, known) {
                (Edit::Kept(_), Some(seen)) => this.ops.push(seen),
                _ => {
                    op.outputs().for_each(|out| this.forget(out.id, false));
                    this.operation(op, &mut pool);
                }
            }
        }
        this.follow_updates();
        this
    }

    /// Forgets what a value was made of; of one that is no more, all.
    fn forget(&mut self, value: ValueIndex, is_gone: bool) {
        let at = value as usize;
        self.root[at] = value;
        self.reshape_of[at] = None;
        self.view_of[at] = None;
        if is_gone {
            self.tags[at] = None;
            self.backward[at] = 0;
            self.of_gradients[at] = false;
        }
    }

    /// Returns what a value is, if it is no cast, or else what it is a cast of.
    pub(super) fn root(&self, value: ValueIndex) -> ValueIndex {
        self.root[value as usize]
    }

    /// Returns whose part in an update is that of a value: its own if it is a parameter, or else that of its class.
    fn of_class(&self, value: ValueIndex) -> ValueIndex {
        match self.tags[value as usize] {
            Some(_) => value,
            None => self.root(value),
        }
    }

    pub(super) fn survives(&self, value: ValueIndex) -> bool {
        !self.window.dies[value as usize]
    }

    /// Finds what comes from a loss.
    fn follow_backward(&mut self) {
        self.backward.fill(0);
        self.of_gradients.fill(false);
        for input in &self.window.inputs {
            if let InputState::Placed { role, .. } = &input.state {
                let is_gradient = matches!(role, Role::Gradient(_));
                let is_backward = is_gradient || matches!(role, Role::State(_));
                self.backward[input.value as usize] = is_backward.into();
                self.of_gradients[input.value as usize] = is_gradient;
            }
        }
        let mut losses = 0;
        for op in &self.ops {
            let from = op.inputs().map(|input| self.backward[input]).max();
            let mut from = from.unwrap_or(0);
            let mut of_gradients = op.inputs().any(|input| self.of_gradients[input]);
            if op.begins_backward {
                losses += 1;
                from = losses;
                of_gradients = true;
            }
            for out in op.outputs() {
                let is_param = self.tags[out].is_some();
                self.backward[out] = if is_param { 0 } else { from };
                self.of_gradients[out] = of_gradients && !is_param;
            }
        }
    }

    /// Returns for each value whether it is made of nothing but constants.
    pub(super) fn constants(&self) -> Vec<bool> {
        let mut constant = vec![false; self.window.dies.len()];
        for input in &self.window.inputs {
            constant[input.value as usize] = match &input.state {
                InputState::Host { entry, .. } => *entry == Entry::Free(Origin::Constants),
                InputState::Placed { origin, role, .. } => {
                    *origin == Some(Origin::Constants)
                        && matches!(role, Role::Constant | Role::Unknown)
                }
            };
        }
        for op in &self.ops {
            if !op.is_mark && op.inputs().all(|input| constant[input]) {
                op.outputs().for_each(|out| constant[out] = true);
            }
        }
        constant
    }

    /// Returns for the first value of each class whether pieces are enough for every operation of the window that uses
    /// one of the class: elementwise ones with a result of its shape, and the sum of all elements; and whether they are
    /// for every one but those that [keep its dims](crate::rule::Rule::keeps_dims). A cast uses none, nor does what
    /// measures for one.
    fn used_on_pieces(&self) -> (Vec<bool>, Vec<bool>) {
        let mut alone = vec![true; self.window.dies.len()];
        let mut alone_in_update = alone.clone();
        for op in &self.ops {
            if op.traits.is_cast || op.traits.measures {
                continue;
            }
            let on_pieces = match op.rule.as_ref() {
                OpRule::Factors(rule) => rule.on_pieces().then_some(rule.elementwise),
                _ => None,
            };
            let keeps_dims = keeps_dims(&op.traits, &op.rule);
            for &(input, is_alike) in &op.inputs {
                let enough = on_pieces.is_some_and(|elementwise| !elementwise || is_alike);
                let root = self.root(input) as usize;
                alone[root] &= enough;
                alone_in_update[root] &= enough || keeps_dims;
            }
        }
        (alone, alone_in_update)
    }

    /// Returns for each value the parameter in whose update it has its only use. Elementwise operations are followed
    /// back from the new parameter, through values that nothing else uses: a gradient that other gradients are computed
    /// from is also an activation's. So are those that stretch an operand, and sums along a dim: factors of the update.
    /// A cast of a parameter is part of an update only if it leads there itself: others are made to compute with.
    fn updates(&self) -> Vec<Option<Arc<ParamSpec>>> {
        let mut found: Vec<Option<Arc<ParamSpec>>> = vec![None; self.window.dies.len()];
        // True of a class of which one is needed whole, for what keeps its dims and is of no update.
        let mut elsewhere = vec![false; self.window.dies.len()];
        for (op, seen) in self.window.ops.iter().zip(&self.ops).rev() {
            // All that use a result come after it.
            for out in seen.outputs().filter(|out| self.tags[*out].is_none()) {
                let root = self.root(out as ValueIndex) as usize;
                if elsewhere[root] {
                    found[root] = None;
                }
            }
            let is_alone = |input: ValueIndex, elsewhere: &[bool]| {
                let root = self.root(input) as usize;
                self.tags[input as usize].is_some()
                    || (self.alone_in_update[root] && !elsewhere[root])
            };
            if seen.elementwise().is_some() {
                let out = self.of_class(seen.out) as usize;
                if found[out].is_none() && self.survives(seen.out) {
                    found[out] = self.tags[out].clone();
                }
                let Some(param) = found[out].clone() else {
                    continue;
                };
                for input in seen.alike().filter(|input| is_alone(*input, &elsewhere)) {
                    self.note_update(&mut found, input, &param);
                }
            } else if keeps_dims(&seen.traits, &seen.rule) {
                let param = found[self.of_class(seen.out) as usize].clone();
                for input in op.inputs() {
                    let param = param.as_ref();
                    match param.filter(|param| param.layout.spans(input.shape)) {
                        Some(param) if is_alone(input.id, &elsewhere) => {
                            self.note_update(&mut found, input.id, param);
                        }
                        Some(_) => {}
                        None => elsewhere[self.root(input.id) as usize] = true,
                    }
                }
            }
        }
        for value in 0..found.len() {
            let of = self.of_class(value as ValueIndex) as usize;
            if elsewhere[of] && self.tags[of].is_none() {
                found[of] = None;
            }
            if of != value {
                found[value] = found[of].clone();
            }
        }
        found
    }

    /// Notes that a value is of the update of a parameter, or of itself if it is one, unless it is known of which.
    fn note_update(
        &self,
        found: &mut [Option<Arc<ParamSpec>>],
        value: ValueIndex,
        param: &Arc<ParamSpec>,
    ) {
        let found = &mut found[self.of_class(value) as usize];
        if found.is_none() {
            let tag = self.tags[value as usize].as_ref();
            *found = Some(tag.unwrap_or(param).clone());
        }
    }

    /// See [`Facts::tied_to`].
    fn tied_to(&self) -> Vec<ValueIndex> {
        let mut first: Vec<ValueIndex> = (0..self.window.dies.len() as ValueIndex).collect();
        fn find(first: &mut [ValueIndex], value: ValueIndex) -> ValueIndex {
            let (mut root, mut at) = (value, value);
            while first[root as usize] != root {
                root = first[root as usize];
            }
            while at != root {
                at = std::mem::replace(&mut first[at as usize], root);
            }
            root
        }
        for op in self.ops.iter().filter(|op| op.elementwise().is_some()) {
            for input in op.alike() {
                let roots = [op.out, input].map(|value| find(&mut first, value));
                first[roots[0].max(roots[1]) as usize] = roots[0].min(roots[1]);
            }
        }
        for value in 0..first.len() as ValueIndex {
            find(&mut first, value);
        }
        first
    }

    /// Returns for each value whether it is the gradient of what a layer is linear in, or computed elementwise of such
    /// gradients alone, and of use in pieces.
    fn of_layer(&self) -> Vec<bool> {
        let mut found = vec![false; self.window.dies.len()];
        let is_found = |found: &[bool], input| found[self.root(input as ValueIndex) as usize];
        for op in &self.ops {
            let is_gradient = match op.elementwise() {
                Some(_) => {
                    !op.inputs.is_empty() && op.inputs().all(|input| is_found(&found, input))
                }
                None => op.traits.makes_weight_gradient,
            };
            for out in op.outputs().filter(|_| is_gradient) {
                let root = self.root(out as ValueIndex) as usize;
                found[root] = self.alone[root];
            }
        }
        self.of_classes(found)
    }

    /// Returns for each value what is `found` of the first of its class.
    pub(super) fn of_classes<T: Clone>(&self, mut found: Vec<T>) -> Vec<T> {
        for (value, root) in self.root.iter().enumerate() {
            if *root as usize != value {
                found[value] = found[*root as usize].clone();
            }
        }
        found
    }

    /// See [`Facts::updating`].
    fn updating(&self, roles: &[Role]) -> Vec<bool> {
        let mut found = vec![false; roles.len()];
        for (value, role) in roles.iter().enumerate() {
            let of = self.of_class(value as ValueIndex) as usize;
            let is_of_update = self.update_of[value].is_some();
            found[of] |= is_of_update || matches!(role, Role::Gradient(_) | Role::State(_));
        }
        for op in self.ops.iter().rev() {
            let from = op.reshapes();
            if let Some(from) = from.filter(|_| found[self.of_class(op.out) as usize]) {
                found[self.of_class(from) as usize] = true;
                found[self.root(from) as usize] = true;
            }
        }
        for value in 0..found.len() {
            found[value] = found[self.of_class(value as ValueIndex) as usize];
        }
        found
    }

    /// Returns what each value was outside of the window, if it was there.
    fn outside(&self) -> HashMap<ValueIndex, Role> {
        let role = |state: &InputState| match state {
            InputState::Placed { role, .. } => role.clone(),
            InputState::Host { .. } => Role::Input,
        };
        let inputs = self.window.inputs.iter();
        inputs
            .map(|input| (input.value, role(&input.state)))
            .collect()
    }

    fn roles(&self, of_layer: &[bool]) -> Vec<Role> {
        let (constant, matched, outside) = (self.constants(), self.matched(), self.outside());
        let mut survives = vec![false; self.window.dies.len()];
        for value in 0..self.window.dies.len() as ValueIndex {
            survives[self.root(value) as usize] |= self.survives(value);
        }
        let roles = (0..self.window.dies.len()).map(|value| {
            let number = value as ValueIndex;
            let known = outside.get(&number);
            let root = self.root(number) as usize;
            let (backward, survives) = (self.backward[value] > 0, survives[root]);
            match (&self.tags[value], &self.update_of[value]) {
                (Some(spec), _) => Role::Parameter(spec.clone()),
                (None, None) if constant[value] => Role::Constant,
                (None, Some(spec)) if known.is_some_and(Role::may_be_state) => {
                    Role::State(spec.clone())
                }
                (None, _) if known.is_some() => known.cloned().unwrap_or_default(),
                (None, Some(spec)) if survives => Role::State(spec.clone()),
                // Moments that decay are moments.
                (None, Some(spec)) if backward && !self.of_gradients[value] => {
                    Role::State(spec.clone())
                }
                (None, Some(spec)) if backward => Role::Gradient(Some(spec.clone())),
                (None, _) if matched[root].is_some() || of_layer[value] => {
                    Role::Gradient(matched[root].clone())
                }
                (None, None) if backward && self.survives(number) => Role::Gradient(None),
                _ => Role::Activation,
            }
        });
        roles.collect()
    }

    /// Finds the rest.
    pub(crate) fn facts(self) -> Facts {
        let of_layer = self.of_layer();
        let roles = self.roles(&of_layer);
        let updating = self.updating(&roles);
        let mut lasting = updating.clone();
        for (value, lasts) in lasting.iter_mut().enumerate() {
            *lasts |= self.survives(value as ValueIndex);
        }
        for read in &self.window.reads {
            lasting[*read as usize] = true;
        }
        let mut facts = Facts {
            backward: self.backward.iter().map(|from| *from > 0).collect(),
            of_layer,
            lasting,
            gradient_of: self.gradient_of(),
            tied_to: self.tied_to(),
            view_of: self.view_of,
            reshape_of: self.reshape_of,
            ..Facts::default()
        };
        let mut walk = Walk {
            roles: &roles,
            update_of: &self.update_of,
            updating: &updating,
            losses: 0,
            late: vec![false; roles.len()],
        };
        for (index, op) in self.ops.into_iter().enumerate() {
            if op.begins_backward {
                facts.ones.push(index as u32);
            }
            let of_op = walk.operation(&op, &self.backward);
            facts.phases.push(of_op.phase);
            facts.microbatches.push(of_op.microbatch);
            facts.after_backward.push(of_op.is_late);
            facts.rules.push(op.rule);
        }
        Facts {
            roles,
            update_of: self.update_of,
            updating,
            ..facts
        }
    }
}
