//! What the values and operations of a window are to training: found once, from definition and use, and read by every
//! pass.
//!
//! - A **parameter** is what a program marks as one. What *replaces* it is that parameter too: of the values that
//!   outlive the window and of which it is a term (by elementwise operations that add to it, or scale it by what is no
//!   gradient), the one it takes the fewest operations to get to, if it was made of gradients, or if the parameter
//!   itself dies. So are casts of a parameter, and what is made of parameters and constants alone and lives on (an
//!   average of weights). An activation that a parameter is added to is none: it does not outlive the step.
//! - A **backward** begins at the one that is made for the loss. What is computed of it is backward, until it is part
//!   of a parameter.
//! - What an update is made of by elementwise operations, of values of which pieces are enough for all who use them,
//!   belongs to that update: **gradients**, and **state** of the optimizer, which outlives the window.
//! - A gradient that no update uses is matched with its parameter through the operation that made it: it shares the
//!   gradient of the layer's result with the gradient of the layer's input, which names the weight, or the indices with
//!   the read of a table. So is the gradient of a layer's input with that input: it names the weight.
//!
//! Where evidence does not decide, a value is an activation, or unknown if it comes from outside, and passes do what is
//! safe. A wrong fact may cost speed or memory, never a value: layouts, order and recomputation change none.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::ir::{Entry, InputState, Mark, Op, Origin, ParamSpec, Phase, Role, ValueIndex, Window};
use crate::policy::Policy;
use crate::pool::Pool;
use crate::rule::{OpRule, PartialRule};

mod adjoint;
pub(crate) mod flow;
pub(crate) mod stages;
#[cfg(test)]
mod tests;
pub(crate) mod visits;

pub(crate) use visits::Visits;

/// What the values and operations of a window are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Of each value.
    pub roles: Vec<Role>,
    /// The parameter that each value is a view of, or a cast of a view, itself left out.
    pub view_of: Vec<Option<Arc<ParamSpec>>>,
    /// The parameter in whose update each value has its only use, the new parameter included.
    pub update_of: Vec<Option<Arc<ParamSpec>>>,
    /// Whether each value comes from the one that is made for a loss, and is not part of a parameter.
    pub backward: Vec<bool>,
    /// Whether each value is the gradient of what a layer is linear in, or a sum of such, and of use in pieces.
    pub of_layer: Vec<bool>,
    /// Whether each value is a gradient of a parameter, a state, or made for the update of a parameter; so is what such
    /// a value is a reshape of.
    pub updating: Vec<bool>,
    /// Whether each value is updating, outlives the window or is read.
    pub lasting: Vec<bool>,
    /// The activation that each value is the gradient of, if that is the input or the result of a layer.
    pub gradient_of: Vec<Option<ValueIndex>>,
    /// What each value is a reshape of.
    pub reshape_of: Vec<Option<ValueIndex>>,
    /// The first of the values of its shape that each value is tied to: one is made of the other elementwise, or they
    /// meet so, or both are tied to a third.
    pub tied_to: Vec<ValueIndex>,
    /// The rule of each operation.
    pub rules: Vec<Arc<OpRule>>,
    /// Of each operation.
    pub phases: Vec<Phase>,
    /// Number of the microbatch that each operation works on: of the loss it leads to, or comes from.
    pub microbatches: Vec<u32>,
    /// The operation that makes the one for each loss: its backward is recorded from there on.
    pub ones: Vec<u32>,
    /// Whether each operation of the backward comes after it: it needs the gradients of parameters, and makes none, or
    /// what is made of them so. Norms of gradients do, what is read with them, and gradients that are scaled by them.
    pub after_backward: Vec<bool>,
}

impl Facts {
    /// Finds what is known.
    pub fn new<O: Op>(window: &Window<O>) -> Self {
        Finder::new(window).find()
    }

    /// Returns what is known of a value as a parameter.
    pub fn parameter(&self, value: ValueIndex) -> Option<&Arc<ParamSpec>> {
        self.roles[value as usize].parameter()
    }

    /// Returns the value that holds the same elements in the same order, and is no reshape.
    pub fn first_shape(&self, value: ValueIndex) -> ValueIndex {
        first_shape(&self.reshape_of, value)
    }

    /// Returns the policies of the parameters that values are, or are to update, each once, in the order of values.
    pub fn policies(&self) -> Vec<Arc<Policy>> {
        let mut policies: Vec<Arc<Policy>> = Vec::new();
        let mut known: HashSet<&Policy> = HashSet::new();
        // Parameters share theirs: most are known by where they are.
        let mut seen: HashSet<*const Policy> = HashSet::new();
        for spec in self.roles.iter().filter_map(Role::belongs_to) {
            if seen.insert(Arc::as_ptr(&spec.policy)) && known.insert(&spec.policy) {
                policies.push(spec.policy.clone());
            }
        }
        policies
    }
}

fn first_shape(reshape_of: &[Option<ValueIndex>], mut value: ValueIndex) -> ValueIndex {
    while let Some(from) = reshape_of[value as usize] {
        value = from;
    }
    value
}

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

/// An elementwise operation with one result.
struct Elementwise {
    out: ValueIndex,
    /// All inputs; whether each has the shape of the result.
    inputs: Vec<(ValueIndex, bool)>,
    /// Whether it adds its inputs up: each is a term of the result, whatever the others are.
    adds: bool,
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

struct Finder<'a, O> {
    window: &'a Window<O>,
    /// For each operation, if it is elementwise.
    elementwise: Vec<Option<Elementwise>>,
    /// The rule of each operation.
    rules: Vec<Arc<OpRule>>,
    /// What each value is a reshape of.
    reshape_of: Vec<Option<ValueIndex>>,
    /// What each cast is a cast of.
    cast_of: HashMap<ValueIndex, ValueIndex>,
    /// What each value is in 8 bits.
    quantized: HashMap<ValueIndex, ValueIndex>,
    /// What is a parameter.
    tags: Vec<Option<Arc<ParamSpec>>>,
    /// Number of the loss that each value comes from, from 1; 0 of what comes from none.
    backward: Vec<u32>,
    /// Whether each value comes from a loss or from a gradient that came from outside: what is made of the state of an
    /// optimizer alone does not.
    of_gradients: Vec<bool>,
}

impl<'a, O: Op> Finder<'a, O> {
    fn new(window: &'a Window<O>) -> Self {
        let num_values = window.dies.len();
        let mut this = Self {
            window,
            elementwise: Vec::with_capacity(window.ops.len()),
            rules: Vec::with_capacity(window.ops.len()),
            reshape_of: vec![None; num_values],
            cast_of: HashMap::new(),
            quantized: HashMap::new(),
            tags: vec![None; num_values],
            backward: vec![0; num_values],
            of_gradients: vec![false; num_values],
        };
        let mut pool = Pool::default();
        for op in &window.ops {
            let traits = op.traits();
            for (is_of, found) in [
                (traits.is_cast, &mut this.cast_of),
                (traits.quantizes, &mut this.quantized),
            ] {
                if let Some(from) = op.inputs().next().filter(|_| is_of) {
                    found.extend(op.outputs().map(|out| (out.id, from.id)));
                }
            }
            let rule = pool.share(op.rule());
            let mut outputs = op.outputs();
            let first = outputs.next().filter(|_| outputs.next().is_none());
            this.elementwise.push(match (rule.as_ref(), first) {
                (OpRule::Factors(rule), Some(out)) if rule.elementwise => Some(Elementwise {
                    out: out.id,
                    inputs: op
                        .inputs()
                        .map(|input| (input.id, input.shape == out.shape))
                        .collect(),
                    adds: rule.partial == PartialRule::JointLinear,
                }),
                (OpRule::Reshape, Some(out)) => {
                    this.reshape_of[out.id as usize] = op.inputs().next().map(|input| input.id);
                    None
                }
                _ => None,
            });
            this.rules.push(rule);
        }
        this
    }

    fn find(mut self) -> Facts {
        for input in &self.window.inputs {
            if let InputState::Placed { role, .. } = &input.state {
                self.tags[input.value as usize] = role.parameter().cloned();
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
            // What replaces a parameter is where a backward ends.
            self.follow_backward();
        }
        let alone = self.used_on_pieces();
        let update_of = self.updates(&alone);
        let of_layer = self.of_layer(&alone);
        let matched = self.matched();
        self.facts(update_of, of_layer, matched)
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
                        length: way.length + 1,
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

    /// Returns for each value whether pieces of it are enough for every operation of the window that uses it:
    /// elementwise ones with a result of its shape, and the sum of all elements.
    fn used_on_pieces(&self) -> Vec<bool> {
        let mut alone = vec![true; self.window.dies.len()];
        for (op, rule) in self.window.ops.iter().zip(&self.rules) {
            let on_pieces = match rule.as_ref() {
                OpRule::Factors(rule) => rule.on_pieces().then_some(rule.elementwise),
                _ => None,
            };
            for input in op.inputs() {
                let enough = match on_pieces {
                    None => false,
                    Some(false) => true,
                    Some(true) => op.outputs().all(|out| out.shape == input.shape),
                };
                alone[input.id as usize] &= enough;
            }
        }
        alone
    }

    /// Returns for each value the parameter in whose update it has its only use. Elementwise operations are followed
    /// back from the new parameter, through values that nothing else uses: a gradient that other gradients are computed
    /// from is also an activation's.
    fn updates(&self, alone: &[bool]) -> Vec<Option<Arc<ParamSpec>>> {
        let mut found: Vec<Option<Arc<ParamSpec>>> = vec![None; self.window.dies.len()];
        for op in self.elementwise.iter().flatten().rev() {
            let out = op.out as usize;
            if found[out].is_none() && self.survives(op.out) {
                found[out] = self.tags[out].clone();
            }
            let Some(param) = found[out].clone() else {
                continue;
            };
            for &(input, _) in op.inputs.iter().filter(|(_, is_alike)| *is_alike) {
                let input = input as usize;
                if found[input].is_none() && (alone[input] || self.tags[input].is_some()) {
                    found[input] = Some(self.tags[input].as_ref().unwrap_or(&param).clone());
                }
            }
        }
        found
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
    fn of_layer(&self, alone: &[bool]) -> Vec<bool> {
        let mut found = vec![false; self.window.dies.len()];
        for (op, elementwise) in self.window.ops.iter().zip(&self.elementwise) {
            let is_gradient = match elementwise {
                Some(op) => {
                    let mut inputs = op.inputs.iter();
                    !op.inputs.is_empty() && inputs.all(|(value, _)| found[*value as usize])
                }
                None => op.traits().makes_weight_gradient,
            };
            for out in op.outputs().filter(|_| is_gradient) {
                found[out.id as usize] = alone[out.id as usize];
            }
        }
        found
    }

    fn facts(
        self,
        update_of: Vec<Option<Arc<ParamSpec>>>,
        of_layer: Vec<bool>,
        matched: Vec<Option<Arc<ParamSpec>>>,
    ) -> Facts {
        let constant = self.constants();
        let mut outside: HashMap<ValueIndex, Role> = HashMap::new();
        for input in &self.window.inputs {
            let role = match &input.state {
                InputState::Placed { role, .. } => role.clone(),
                InputState::Host { .. } => Role::Input,
            };
            outside.insert(input.value, role);
        }
        let roles = (0..self.window.dies.len()).map(|value| {
            let number = value as ValueIndex;
            let known = outside.get(&number);
            let backward = self.backward[value] > 0;
            match (&self.tags[value], &update_of[value]) {
                (Some(spec), _) => Role::Parameter(spec.clone()),
                (None, None) if constant[value] => Role::Constant,
                (None, Some(spec)) if known.is_some_and(Role::may_be_state) => {
                    Role::State(spec.clone())
                }
                (None, _) if known.is_some() => known.cloned().unwrap_or_default(),
                (None, Some(spec)) if self.survives(number) => Role::State(spec.clone()),
                // Moments that decay are moments.
                (None, Some(spec)) if backward && !self.of_gradients[value] => {
                    Role::State(spec.clone())
                }
                (None, Some(spec)) if backward => Role::Gradient(Some(spec.clone())),
                (None, _) if matched[value].is_some() || of_layer[value] => {
                    Role::Gradient(matched[value].clone())
                }
                (None, None) if backward && self.survives(number) => Role::Gradient(None),
                _ => Role::Activation,
            }
        });
        let roles: Vec<Role> = roles.collect();
        let mut updating: Vec<bool> = roles
            .iter()
            .zip(&update_of)
            .map(|(role, of)| of.is_some() || matches!(role, Role::Gradient(_) | Role::State(_)))
            .collect();
        for (value, from) in self.reshape_of.iter().enumerate().rev() {
            if let Some(from) = from {
                updating[*from as usize] |= updating[value];
            }
        }
        let mut lasting = updating.clone();
        for (value, lasts) in lasting.iter_mut().enumerate() {
            *lasts |= self.survives(value as ValueIndex);
        }
        for read in &self.window.reads {
            lasting[*read as usize] = true;
        }
        let phases = self.phases(&roles, &update_of, &updating);
        Facts {
            roles,
            view_of: self.views(),
            update_of,
            backward: self.backward.iter().map(|from| *from > 0).collect(),
            of_layer,
            updating,
            lasting,
            gradient_of: self.gradient_of(),
            tied_to: self.tied_to(),
            reshape_of: self.reshape_of,
            rules: self.rules,
            phases: phases.phases,
            microbatches: phases.microbatches,
            ones: phases.ones,
            after_backward: phases.after_backward,
        }
    }

    /// Returns which part of a step each operation is.
    fn phases(
        &self,
        roles: &[Role],
        update_of: &[Option<Arc<ParamSpec>>],
        updating: &[bool],
    ) -> Phases {
        let mut found = Phases::default();
        let mut losses = 0;
        // Whether each value is made after a backward.
        let mut late = vec![false; self.window.dies.len()];
        for (index, op) in self.window.ops.iter().enumerate() {
            let outputs: Vec<usize> = op.outputs().map(|out| out.id as usize).collect();
            let updates = outputs.iter().any(|out| {
                let is_new = matches!(roles[*out], Role::Parameter(_) | Role::State(_));
                is_new && update_of[*out].is_some()
            });
            let inputs = op.inputs().map(|input| input.id as usize);
            let tensors = inputs.filter(|_| updates).chain(outputs.iter().copied());
            let from = tensors.map(|tensor| self.backward[tensor]).max();
            let from = from.unwrap_or(0);
            let phase = match from {
                _ if updates => Phase::Update,
                0 => Phase::Forward,
                _ => Phase::Backward,
            };
            let makes_gradients = outputs.iter().all(|out| updating[*out]);
            let mut inputs = op.inputs().map(|input| input.id as usize);
            // A parameter of which gradients are taken anew is none of them.
            let needs_gradients = inputs.any(|input| {
                let is_needed = late[input] || (updating[input] && !makes_gradients);
                is_needed && self.backward[input] > 0
            });
            let is_late = phase == Phase::Backward && needs_gradients;
            let comes_after = is_late || phase == Phase::Update;
            outputs.iter().for_each(|out| late[*out] = comes_after);
            if begins_backward(op) {
                found.ones.push(index as u32);
            }
            losses = losses.max(from);
            found.phases.push(phase);
            found.after_backward.push(is_late);
            found.microbatches.push(match from {
                0 => losses,
                from => from - 1,
            });
        }
        found
    }
}
