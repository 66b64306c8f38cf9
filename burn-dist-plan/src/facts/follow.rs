//! Facts that follow a window through a rewriting, instead of being found anew.
//!
//! A rewriting puts casts between operations, and operations in the place of others that make the same. What it keeps
//! is what it was. Of what it adds:
//!
//! - a **cast** is what it is a cast of, and what became the operand of a cast is what that makes: they are of one
//!   class. But what comes from outside is that itself, and a cast of a parameter is part of no update, unless the
//!   update is made of the cast;
//! - anything else is **found from its operands**, as the first time.
//!
//! Nothing is known of what is gone.

use std::collections::HashMap;
use std::sync::Arc;

use super::seen::{Seen, keeps_dims};
use super::walk::Walk;
use super::{Edit, Facts};
use crate::ir::{InputState, Op, ParamSpec, Phase, Role, Tensor, ValueIndex, Window};
use crate::pool::Pool;
use crate::rule::OpRule;

impl Facts {
    /// Goes on with a window that was rewritten, of whose operations `edits` says what they were.
    pub(crate) fn follow<O: Op>(&mut self, before: &Window<O>, after: &Window<O>, edits: &[Edit]) {
        self.forget_gone(before, edits);
        self.make_room(after.dies.len());
        let rules = rules(std::mem::take(&mut self.rules), after, edits);
        self.rules = rules;
        self.note_reshapes(after);
        self.note_added(after, edits, before.dies.len());
        self.note_updates(after, before.dies.len());
        self.note_phases(after, edits);
    }

    /// Forgets what the values were that nothing makes any more.
    fn forget_gone<O: Op>(&mut self, before: &Window<O>, edits: &[Edit]) {
        let mut is_gone = vec![true; before.ops.len()];
        for at in edits.iter().filter_map(|edit| edit.before()) {
            is_gone[at] = false;
        }
        let gone = before.ops.iter().zip(is_gone).filter(|(_, gone)| *gone);
        for value in gone.flat_map(|(op, _)| op.outputs()) {
            let at = value.id as usize;
            self.roles[at] = Role::Activation;
            self.view_of[at] = None;
            self.update_of[at] = None;
            self.gradient_of[at] = None;
            self.tied_to[at] = value.id;
            for flags in self.flags() {
                flags[at] = false;
            }
        }
    }

    /// Returns the facts that hold of a value or do not.
    fn flags(&mut self) -> [&mut Vec<bool>; 4] {
        [
            &mut self.backward,
            &mut self.of_layer,
            &mut self.updating,
            &mut self.lasting,
        ]
    }

    /// Makes room for values that were added, of which nothing is known yet.
    fn make_room(&mut self, count: usize) {
        self.roles.resize(count, Role::Activation);
        self.view_of.resize(count, None);
        self.update_of.resize(count, None);
        self.gradient_of.resize(count, None);
        self.tied_to
            .extend(self.tied_to.len() as ValueIndex..count as ValueIndex);
        for flags in self.flags() {
            flags.resize(count, false);
        }
        self.reshape_of = vec![None; count];
    }

    fn note_reshapes<O: Op>(&mut self, window: &Window<O>) {
        for (op, rule) in window.ops.iter().zip(&self.rules) {
            if let (OpRule::Reshape, Some(out)) = (rule.as_ref(), op.outputs().next()) {
                self.reshape_of[out.id as usize] = op.inputs().next().map(|input| input.id);
            }
        }
    }

    /// Notes what the values are that were added.
    fn note_added<O: Op>(&mut self, window: &Window<O>, edits: &[Edit], num_known: usize) {
        let inputs = window.inputs.iter();
        let outside: HashMap<ValueIndex, &InputState> =
            inputs.map(|input| (input.value, &input.state)).collect();
        let is_known = |value: ValueIndex| (value as usize) < num_known;
        let ops = window.ops.iter().zip(edits).enumerate();
        for (index, (op, _)) in ops.filter(|(_, (_, edit))| edit.before().is_none()) {
            let traits = op.traits();
            let is_elementwise = self.is_elementwise(index);
            let first = op.inputs().next().map(|input| input.id);
            if let Some(first) = first.filter(|_| traits.is_cast) {
                for Tensor { id: out, shape, .. } in op.outputs() {
                    // The operand of a cast to what was there is new.
                    let (new, of) = match is_known(out) {
                        true => (first, out),
                        false => (out, first),
                    };
                    let survives = !window.dies[of as usize];
                    self.note_same(new, of, outside.get(&of).copied(), survives);
                    if let Role::Parameter(spec) = &mut self.roles[new as usize]
                        && traits.unpacks
                    {
                        *spec = ParamSpec::of_cast(spec, shape);
                    }
                    if is_elementwise {
                        self.tied_to[new as usize] = self.tied_to[of as usize];
                    }
                }
                continue;
            }
            let inputs = || op.inputs().map(|input| input.id as usize);
            let backward = inputs().any(|input| self.backward[input]);
            let constant = inputs().all(|input| self.roles[input] == Role::Constant);
            for out in op.outputs().map(|out| out.id as usize) {
                self.backward[out] = backward;
                if constant {
                    self.roles[out] = Role::Constant;
                }
                let tie = first.filter(|_| is_elementwise);
                if let Some(tie) = tie {
                    self.tied_to[out] = self.tied_to[tie as usize];
                }
            }
        }
    }

    /// Notes that a value is the same as another in another type.
    fn note_same(
        &mut self,
        new: ValueIndex,
        of: ValueIndex,
        outside: Option<&InputState>,
        survives: bool,
    ) {
        let (new, of) = (new as usize, of as usize);
        let spec = self.update_of[of].clone();
        self.roles[new] = match (&self.roles[of], outside) {
            (role @ (Role::Parameter(_) | Role::Constant), _) => role.clone(),
            (_, Some(state)) => match (spec, state) {
                (Some(spec), _) if survives => Role::State(spec),
                (Some(spec), InputState::Placed { role, .. }) => match role {
                    Role::Gradient(_) => Role::Gradient(Some(spec)),
                    Role::State(_) => Role::State(spec),
                    _ => Role::Activation,
                },
                _ => Role::Activation,
            },
            // As what lives on beyond the window.
            (Role::Gradient(None), None) if !self.of_layer[of] => Role::Activation,
            (role, None) => role.clone(),
        };
        self.view_of[new] = self.view_of[of].clone();
        self.gradient_of[new] = self.gradient_of[of];
        self.backward[new] = self.backward[of];
        self.of_layer[new] = self.of_layer[of];
        if self.roles[new].parameter().is_none() {
            self.update_of[new] = self.update_of[of].clone();
            self.updating[new] = self.updating[of];
            self.lasting[new] = self.updating[of];
        }
    }

    fn is_elementwise(&self, index: usize) -> bool {
        matches!(self.rules[index].as_ref(), OpRule::Factors(rule) if rule.elementwise)
    }

    /// Notes which casts of parameters are part of an update.
    fn note_updates<O: Op>(&mut self, window: &Window<O>, num_known: usize) {
        for (index, op) in window.ops.iter().enumerate().rev() {
            let rule = self.rules[index].clone();
            let is_elementwise = self.is_elementwise(index);
            let is_reshape = *rule == OpRule::Reshape;
            if !is_elementwise && !is_reshape && !keeps_dims(&op.traits(), &rule) {
                continue;
            }
            let mut outputs = op.outputs();
            let (Some(out), None) = (outputs.next(), outputs.next()) else {
                continue;
            };
            let at = out.id as usize;
            let of_out = self.update_of[at].clone();
            let leads = match is_reshape {
                false => of_out.is_some(),
                true => self.updating[at],
            };
            for input in op.inputs().filter(|_| leads) {
                let from = input.id as usize;
                let Some(spec) = self.roles[from].parameter().cloned() else {
                    continue;
                };
                let is_of_update = match &of_out {
                    _ if is_reshape => true,
                    _ if is_elementwise => input.shape == out.shape,
                    Some(of) => of.layout.spans(input.shape),
                    None => false,
                };
                if from < num_known || !is_of_update {
                    continue;
                }
                if !is_reshape {
                    self.update_of[from] = Some(spec);
                }
                self.updating[from] = true;
                self.lasting[from] = true;
            }
        }
    }

    /// Notes which part of a step the operations are.
    fn note_phases<O: Op>(&mut self, window: &Window<O>, edits: &[Edit]) {
        let phases = std::mem::take(&mut self.phases);
        let microbatches = std::mem::take(&mut self.microbatches);
        let after_backward = std::mem::take(&mut self.after_backward);
        let mut is_one = vec![false; phases.len()];
        for one in std::mem::take(&mut self.ones) {
            is_one[one as usize] = true;
        }
        let mut walk = Walk {
            roles: &self.roles,
            update_of: &self.update_of,
            updating: &self.updating,
            losses: 0,
            late: vec![false; self.roles.len()],
        };
        let mut loss = vec![0; self.roles.len()];
        for input in &window.inputs {
            loss[input.value as usize] = self.backward[input.value as usize].into();
        }
        for (index, (op, edit)) in window.ops.iter().zip(edits).enumerate() {
            let from = match edit.before() {
                Some(before) => microbatches[before] + 1,
                None => {
                    let from = op.inputs().map(|input| loss[input.id as usize]);
                    from.max().unwrap_or(0)
                }
            };
            for out in op.outputs().map(|out| out.id as usize) {
                loss[out] = if self.backward[out] { from } else { 0 };
            }
            if let Edit::For(of) = edit {
                let of = *of as usize;
                self.phases.push(phases[of]);
                self.microbatches.push(microbatches[of]);
                self.after_backward.push(after_backward[of]);
                continue;
            }
            let Some(before) = edit.before() else {
                let seen = Seen::new(op, self.rules[index].clone());
                let of_op = walk.operation(&seen, &loss);
                self.phases.push(of_op.phase);
                self.microbatches.push(of_op.microbatch);
                self.after_backward.push(of_op.is_late);
                continue;
            };
            if is_one[before] {
                self.ones.push(index as u32);
            }
            let phase = phases[before];
            let comes_after = after_backward[before] || phase == Phase::Update;
            let mut is_backward = false;
            for out in op.outputs().map(|out| out.id as usize) {
                walk.late[out] = comes_after;
                is_backward |= self.backward[out];
            }
            if phase == Phase::Update {
                is_backward |= op.inputs().any(|input| self.backward[input.id as usize]);
            }
            if is_backward {
                walk.losses = walk.losses.max(from);
            }
            self.phases.push(phase);
            self.microbatches.push(microbatches[before]);
            self.after_backward.push(after_backward[before]);
        }
    }
}

/// Returns the rules of the operations that a window has now.
fn rules<O: Op>(known: Vec<Arc<OpRule>>, window: &Window<O>, edits: &[Edit]) -> Vec<Arc<OpRule>> {
    let mut pool = Pool::default();
    let rules = window.ops.iter().zip(edits).map(|(op, edit)| match edit {
        Edit::Kept(before) => known[*before as usize].clone(),
        Edit::Replaced(_) | Edit::Added | Edit::For(_) => pool.share(op.rule()),
    });
    rules.collect()
}
