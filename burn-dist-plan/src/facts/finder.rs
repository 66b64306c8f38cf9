//! Finds the facts of a window: first what tells which products are layers, then the rest.
//!
//! A cast makes no value of another kind: what a value is, who uses it, and how far it is from another, is asked of it
//! and its casts together, of the *class* that they are.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Edit, Facts};
use crate::ir::{
    Entry, InputState, Mark, Op, Origin, ParamSpec, Phase, Role, ValueIndex, Window, Work,
};
use crate::pool::Pool;
use crate::rule::{OpRule, PartialRule};

/// Which part of a step operations are.
#[derive(Clone, Debug, Default)]
struct Phases {
    phases: Vec<Phase>,
    microbatches: Vec<u32>,
    ones: Vec<u32>,
    after_backward: Vec<bool>,
}

/// Whether an operation makes the one for a loss.
fn begins_backward<O: Op>(op: &O) -> bool {
    op.traits().makes_ones && op.outputs().all(|out| out.numel() == 1)
}

/// Returns whether an operation that is none on pieces is one on those of what it updates, if it is of an update.
pub(super) fn keeps_dims<O: Op>(op: &O, rule: &OpRule) -> bool {
    let traits = op.traits();
    let keeps = matches!(rule, OpRule::Factors(rule) if !rule.on_pieces() && rule.keeps_dims());
    keeps && !traits.is_cast && !traits.measures
}

/// An elementwise operation with one result.
pub(super) struct Elementwise {
    out: ValueIndex,
    /// All inputs; whether each has the shape of the result.
    pub(super) inputs: Vec<(ValueIndex, bool)>,
    /// Whether it adds its inputs up: each is a term of the result, whatever the others are.
    adds: bool,
    is_cast: bool,
}

/// Of how many parameters, at most, a value may be what replaces them: the nearest. An average has two or three terms.
const WAYS_MAX: usize = 8;

/// A way from a parameter to a value of which it is a term.
#[derive(Clone, Copy)]
struct Way {
    from: ValueIndex,
    length: u32,
    /// The operand through which it comes.
    through: ValueIndex,
}

/// What is known of a window while its facts are found.
pub(crate) struct Finder<'a, O> {
    pub(super) window: &'a Window<O>,
    /// For each operation, if it is elementwise.
    pub(super) elementwise: Vec<Option<Elementwise>>,
    /// The rule of each operation.
    rules: Vec<Arc<OpRule>>,
    /// What each value is a reshape of.
    pub(super) reshape_of: Vec<Option<ValueIndex>>,
    /// The first of the class of each value: what it is a cast of, or a cast of a cast.
    root: Vec<ValueIndex>,
    /// What is a parameter.
    pub(super) tags: Vec<Option<Arc<ParamSpec>>>,
    /// The parameter that each value is a view of.
    view_of: Vec<Option<Arc<ParamSpec>>>,
    /// Number of the loss that each value comes from, from 1; 0 of what comes from none.
    backward: Vec<u32>,
    /// Whether each value comes from a loss or from a gradient that came from outside: what is made of the state of an
    /// optimizer alone does not.
    of_gradients: Vec<bool>,
    /// Whether each value is enough in pieces, by the first of its class.
    alone: Vec<bool>,
    /// Whether each value is enough in pieces for all but what keeps its dims: that, too, if it is of an update.
    alone_in_update: Vec<bool>,
    update_of: Vec<Option<Arc<ParamSpec>>>,
    /// What values from outside are to update, as far as the window knew that made them.
    updates_outside: HashMap<ValueIndex, Arc<ParamSpec>>,
    /// The operations that are products of two matrices.
    products: Vec<usize>,
}

impl<'a, O: Op> Finder<'a, O> {
    /// Finds parameters, what replaces them, and what is made for that.
    pub(crate) fn new(window: &'a Window<O>) -> Self {
        let num_values = window.dies.len();
        let mut this = Self {
            window,
            elementwise: Vec::with_capacity(window.ops.len()),
            rules: Vec::with_capacity(window.ops.len()),
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
            products: Vec::new(),
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
        let traits = op.traits();
        let is_cast = traits.is_cast;
        if traits.work == Work::Product {
            self.products.push(self.rules.len());
        }
        if let Some(from) = op.inputs().next().filter(|_| is_cast) {
            for out in op.outputs() {
                self.root[out.id as usize] = self.root(from.id);
            }
        }
        let rule = pool.share(op.rule());
        let mut outputs = op.outputs();
        let first = outputs.next().filter(|_| outputs.next().is_none());
        self.elementwise.push(match (rule.as_ref(), first) {
            (OpRule::Factors(rule), Some(out)) if rule.elementwise => Some(Elementwise {
                out: out.id,
                inputs: op
                    .inputs()
                    .map(|input| (input.id, input.shape == out.shape))
                    .collect(),
                adds: rule.partial == PartialRule::JointLinear,
                is_cast,
            }),
            (OpRule::Reshape, Some(out)) => {
                self.reshape_of[out.id as usize] = op.inputs().next().map(|input| input.id);
                None
            }
            _ => None,
        });
        self.rules.push(rule);
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
        self.products.iter().map(|at| (*at, &self.window.ops[*at]))
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

    /// Goes on with a window in which layers stand for products, and for what was made on the way to them.
    pub(crate) fn rewritten<'b>(mut self, window: &'b Window<O>, edits: &[Edit]) -> Finder<'b, O> {
        let (of_window, elementwise) = (self.window, std::mem::take(&mut self.elementwise));
        let rules = std::mem::take(&mut self.rules);
        let mut before: Vec<_> = elementwise.into_iter().zip(rules).map(Some).collect();
        let mut pool = Pool::default();
        self.products.clear();
        let mut this = Finder { window, ..self };
        for (op, edit) in window.ops.iter().zip(edits) {
            let known = edit.before().and_then(|at| before[at].take());
            match (edit, known) {
                (Edit::Kept(_), Some((elementwise, rule))) => {
                    this.elementwise.push(elementwise);
                    this.rules.push(rule);
                }
                _ => {
                    op.outputs().for_each(|out| this.forget(out.id, false));
                    this.operation(op, &mut pool);
                }
            }
        }
        for (op, before) in of_window.ops.iter().zip(before) {
            if before.is_some() {
                op.outputs().for_each(|out| this.forget(out.id, true));
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

    fn survives(&self, value: ValueIndex) -> bool {
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
        for op in &self.window.ops {
            let from = op.inputs().map(|input| self.backward[input.id as usize]);
            let mut from = from.max().unwrap_or(0);
            let mut inputs = op.inputs();
            let mut of_gradients = inputs.any(|input| self.of_gradients[input.id as usize]);
            if begins_backward(op) {
                losses += 1;
                from = losses;
                of_gradients = true;
            }
            for out in op.outputs() {
                let is_param = self.tags[out.id as usize].is_some();
                self.backward[out.id as usize] = if is_param { 0 } else { from };
                self.of_gradients[out.id as usize] = of_gradients && !is_param;
            }
        }
    }

    /// Finds what replaces each parameter, and what is on the way there.
    fn follow_parameters(&mut self) {
        // The shortest to each value, at most `WAYS_MAX`, in order.
        let mut ways: Vec<Vec<Way>> = vec![Vec::new(); self.window.dies.len()];
        for (value, tag) in self.tags.iter().enumerate() {
            if tag.is_some() {
                let from = value as ValueIndex;
                ways[value].push(Way {
                    from,
                    length: 0,
                    through: from,
                });
            }
        }
        let is_backward = |value: ValueIndex| self.backward[value as usize] > 0;
        for op in self.elementwise.iter().flatten() {
            let made_of = op.inputs.iter().filter(|(input, _)| is_backward(*input));
            let gradients = made_of.count();
            for &(input, is_alike) in &op.inputs {
                let scaled = gradients > usize::from(is_backward(input));
                if !is_alike || (scaled && !op.adds) {
                    continue;
                }
                for way in ways[input as usize].clone() {
                    let longer = Way {
                        from: way.from,
                        length: way.length + u32::from(!op.is_cast),
                        through: input,
                    };
                    let known = &mut ways[op.out as usize];
                    match known.iter_mut().find(|known| known.from == way.from) {
                        Some(known) if known.length <= longer.length => {}
                        Some(known) => *known = longer,
                        None => known.push(longer),
                    }
                }
            }
            let known = &mut ways[op.out as usize];
            known.sort_by_key(|way| (way.length, way.from));
            known.truncate(WAYS_MAX);
        }
        // Of all pairs of a parameter and a value that lives on: those made of gradients first, then those whose
        // parameter dies, then the nearest.
        let mut pairs: Vec<(bool, bool, u32, ValueIndex, ValueIndex)> = Vec::new();
        for (value, ways) in ways.iter().enumerate() {
            let value = value as ValueIndex;
            if !self.survives(value) || self.tags[value as usize].is_some() {
                continue;
            }
            for way in ways {
                let (made, replaced) = (is_backward(value), !self.survives(way.from));
                if made || replaced {
                    pairs.push((!made, !replaced, way.length, way.from, value));
                }
            }
        }
        pairs.sort_unstable();
        let mut is_replaced = vec![false; self.window.dies.len()];
        for (.., from, value) in pairs {
            if is_replaced[from as usize] || self.tags[value as usize].is_some() {
                continue;
            }
            is_replaced[from as usize] = true;
            let spec = self.tags[from as usize].clone();
            let mut at = value;
            while at != from {
                self.tags[at as usize] = spec.clone();
                let way = ways[at as usize].iter().find(|way| way.from == from);
                at = way.map_or(from, |way| way.through);
            }
        }
    }

    fn cast_parameters(&mut self) {
        for op in self.window.ops.iter().filter(|op| op.traits().is_cast) {
            let of = op.inputs().next().map(|input| input.id as usize);
            let spec = of.and_then(|of| self.tags[of].clone());
            for out in op.outputs() {
                let tag = &mut self.tags[out.id as usize];
                *tag = tag.take().or_else(|| spec.clone());
            }
        }
    }

    /// Finds the views of parameters: a transposed matrix, say.
    fn views(&self) -> Vec<Option<Arc<ParamSpec>>> {
        let mut views: Vec<Option<Arc<ParamSpec>>> = vec![None; self.tags.len()];
        for op in &self.window.ops {
            let traits = op.traits();
            let from = op.inputs().next();
            let Some(from) = from.filter(|_| traits.is_view || traits.is_cast) else {
                continue;
            };
            let of = self.tags[from.id as usize].as_ref();
            let of = of.or(views[from.id as usize].as_ref()).cloned();
            for out in op.outputs() {
                if self.tags[out.id as usize].is_none() {
                    views[out.id as usize] = of.clone();
                }
            }
        }
        views
    }

    /// What is made of parameters and constants alone, and lives on.
    fn functions_of_parameters(&mut self) {
        let constant = self.constants();
        let mut of: Vec<Option<Arc<ParamSpec>>> = self.tags.clone();
        for op in self.elementwise.iter().flatten() {
            let known = |(input, _): &(ValueIndex, bool)| {
                of[*input as usize].is_some() || constant[*input as usize]
            };
            if of[op.out as usize].is_none() && op.inputs.iter().all(known) {
                let alike = op.inputs.iter().rev().filter(|(_, is_alike)| *is_alike);
                let mut specs = alike.filter_map(|(input, _)| of[*input as usize].clone());
                of[op.out as usize] = specs.next();
            }
        }
        for (value, spec) in of.into_iter().enumerate() {
            if self.tags[value].is_none() && self.survives(value as ValueIndex) {
                self.tags[value] = spec;
            }
        }
    }

    /// Returns for each value whether it is made of nothing but constants.
    fn constants(&self) -> Vec<bool> {
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
        for op in &self.window.ops {
            let mut inputs = op.inputs();
            if op.mark().is_none() && inputs.all(|input| constant[input.id as usize]) {
                for out in op.outputs() {
                    constant[out.id as usize] = true;
                }
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
        for (op, rule) in self.window.ops.iter().zip(&self.rules) {
            let traits = op.traits();
            if traits.is_cast || traits.measures {
                continue;
            }
            let on_pieces = match rule.as_ref() {
                OpRule::Factors(rule) => rule.on_pieces().then_some(rule.elementwise),
                _ => None,
            };
            let keeps_dims = keeps_dims(op, rule);
            for input in op.inputs() {
                let enough = match on_pieces {
                    None => false,
                    Some(false) => true,
                    Some(true) => op.outputs().all(|out| out.shape == input.shape),
                };
                let root = self.root(input.id) as usize;
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
        // Whether one of each class is needed whole, for what keeps its dims and is of no update.
        let mut elsewhere = vec![false; self.window.dies.len()];
        let ops = self.window.ops.iter().zip(&self.rules);
        for ((op, rule), elementwise) in ops.zip(&self.elementwise).rev() {
            // All that use a result come after it.
            for out in op.outputs().map(|out| out.id) {
                if self.tags[out as usize].is_none() && elsewhere[self.root(out) as usize] {
                    found[self.root(out) as usize] = None;
                }
            }
            let is_alone = |input: ValueIndex, elsewhere: &[bool]| {
                let root = self.root(input) as usize;
                self.tags[input as usize].is_some()
                    || (self.alone_in_update[root] && !elsewhere[root])
            };
            if let Some(op) = elementwise {
                let out = self.of_class(op.out) as usize;
                if found[out].is_none() && self.survives(op.out) {
                    found[out] = self.tags[out].clone();
                }
                let Some(param) = found[out].clone() else {
                    continue;
                };
                for &(input, _) in op.inputs.iter().filter(|(_, is_alike)| *is_alike) {
                    if is_alone(input, &elsewhere) {
                        self.note_update(&mut found, input, &param);
                    }
                }
            } else if keeps_dims(op, rule) {
                let mut outputs = op.outputs().map(|out| self.of_class(out.id) as usize);
                let param = outputs.next().and_then(|out| found[out].clone());
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
            let is_tagged = self.tags[of].is_some();
            if !is_tagged && elsewhere[of] {
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
        for op in self.elementwise.iter().flatten() {
            for (input, _) in op.inputs.iter().filter(|(_, is_alike)| *is_alike) {
                let roots = [op.out, *input].map(|value| find(&mut first, value));
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
        for (op, elementwise) in self.window.ops.iter().zip(&self.elementwise) {
            let is_gradient = match elementwise {
                Some(op) => {
                    let mut inputs = op.inputs.iter();
                    !op.inputs.is_empty()
                        && inputs.all(|(value, _)| found[self.root(*value) as usize])
                }
                None => op.traits().makes_weight_gradient,
            };
            for out in op.outputs().filter(|_| is_gradient) {
                let root = self.root(out.id) as usize;
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
        for op in self.window.ops.iter().rev() {
            let Some(out) = op.outputs().next().map(|out| out.id) else {
                continue;
            };
            let from = self.reshape_of[out as usize];
            if let Some(from) = from.filter(|_| found[self.of_class(out) as usize]) {
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
        let phases = self.phases(&roles, &updating);
        Facts {
            roles,
            backward: self.backward.iter().map(|from| *from > 0).collect(),
            of_layer,
            updating,
            lasting,
            gradient_of: self.gradient_of(),
            tied_to: self.tied_to(),
            view_of: self.view_of,
            update_of: self.update_of,
            reshape_of: self.reshape_of,
            rules: self.rules,
            phases: phases.phases,
            microbatches: phases.microbatches,
            ones: phases.ones,
            after_backward: phases.after_backward,
        }
    }

    /// Returns which part of a step each operation is.
    fn phases(&self, roles: &[Role], updating: &[bool]) -> Phases {
        let mut found = Phases::default();
        let mut walk = Walk {
            roles,
            update_of: &self.update_of,
            updating,
            losses: 0,
            late: vec![false; roles.len()],
        };
        for (index, op) in self.window.ops.iter().enumerate() {
            if begins_backward(op) {
                found.ones.push(index as u32);
            }
            let is_cast = op
                .outputs()
                .next()
                .is_some_and(|out| self.root(out.id) != out.id);
            let of_op = walk.operation(op, is_cast, &self.backward);
            found.phases.push(of_op.phase);
            found.after_backward.push(of_op.is_late);
            found.microbatches.push(of_op.microbatch);
        }
        found
    }
}

/// What an operation is to a step.
pub(super) struct OfOp {
    pub phase: Phase,
    pub microbatch: u32,
    /// See [`Facts::after_backward`].
    pub is_late: bool,
}

/// A walk over the operations of a window that tells what each is to a step.
pub(super) struct Walk<'a> {
    pub roles: &'a [Role],
    pub update_of: &'a [Option<Arc<ParamSpec>>],
    pub updating: &'a [bool],
    /// How many losses there were so far.
    pub losses: u32,
    /// Whether each value is made after a backward.
    pub late: Vec<bool>,
}

impl Walk<'_> {
    /// Tells what the next operation is. `backward` has the number of the loss that each value comes from.
    pub(super) fn operation<O: Op>(&mut self, op: &O, is_cast: bool, backward: &[u32]) -> OfOp {
        let outputs = || op.outputs().map(|out| out.id as usize);
        let inputs = || op.inputs().map(|input| input.id as usize);
        let updates = outputs().any(|out| {
            let is_new = matches!(self.roles[out], Role::Parameter(_) | Role::State(_));
            is_new && self.update_of[out].is_some()
        });
        let tensors = inputs().filter(|_| updates).chain(outputs());
        let from = tensors.map(|tensor| backward[tensor]).max().unwrap_or(0);
        let phase = match from {
            _ if updates => Phase::Update,
            0 => Phase::Forward,
            _ => Phase::Backward,
        };
        let makes_gradients = outputs().all(|out| self.updating[out]);
        // A parameter of which gradients are taken anew is none of them.
        let needs_gradients = |input: usize| {
            let is_needed = self.late[input] || (self.updating[input] && !makes_gradients);
            is_needed && backward[input] > 0
        };
        let (is_late, comes_after) = match is_cast {
            true => {
                let late = inputs().next().is_some_and(|from| self.late[from]);
                (late && phase == Phase::Backward, late)
            }
            false => {
                let is_late = phase == Phase::Backward && inputs().any(needs_gradients);
                (is_late, is_late || phase == Phase::Update)
            }
        };
        outputs().for_each(|out| self.late[out] = comes_after);
        self.losses = self.losses.max(from);
        OfOp {
            phase,
            microbatch: match from {
                0 => self.losses,
                from => from - 1,
            },
            is_late,
        }
    }
}
