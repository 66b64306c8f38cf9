//! The window with its casts.
//!
//! Types flow forward from parameters, so nothing has to be known about where a forward ends and a backward starts: a
//! gradient that comes through a product of 16-bit operands is itself in 16 bits, and the optimizer, which combines f32
//! with f32, stays in f32.

use std::collections::HashMap;

use crate::ir::{FloatClass, NewTensor, Op, Side, ValueIndex, Window};
use crate::mesh::DType;
use crate::passes::rewriting::{Rewriting, Rewritten};

use crate::facts::{Edit, Facts, Visits};
use crate::rule::OpRule;
use crate::{Float, Precision};
use crate::{PlanError, PlanOptions};

/// Puts casts into a window where the units of its parameters ask for them; `None` if none does.
///
/// # Errors
/// [`PlanError::Float`] if the backend lacks a type that a unit asks for.
pub(crate) fn precise<O: Op>(
    window: &Window<O>,
    facts: &Facts,
    visits: &Visits,
    options: &PlanOptions,
) -> Result<Option<Rewritten<O>>, PlanError> {
    let mut policies: HashMap<ValueIndex, Precision> = HashMap::new();
    for (value, role) in facts.roles.iter().enumerate() {
        let Some(spec) = role.parameter() else {
            continue;
        };
        let policy = spec.policy.precision;
        let floats = [Some(policy.param), Some(policy.reduce), policy.output];
        let missing = |float: &Float| options.floats_missing.contains(float);
        if let Some(float) = floats.into_iter().flatten().find(missing) {
            return Err(PlanError::Float {
                path: spec.path.clone(),
                float,
                others: [Float::F32, Float::F16, Float::BF16]
                    .iter()
                    .filter(|float| !missing(float))
                    .map(Float::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
            });
        }
        if policy.param != Float::F32 || policy.output.is_some() {
            policies.insert(value as ValueIndex, policy);
        }
    }
    if policies.is_empty() {
        return Ok(None);
    }
    let mut rewrite = Rewrite::new(window, facts, visits, policies);
    for input in &window.inputs {
        rewrite.made(input.value, 0);
    }
    for (index, op) in window.ops.iter().enumerate() {
        rewrite.operation(index, op);
    }
    Ok(Some(rewrite.made.finish(rewrite.values.len())))
}

/// The claim of a value on the operations that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Its type counts.
    Typed,
    /// A parameter, or combined from parameters and constants alone: in f32, and used in the type of its unit where
    /// others are in 16 bits.
    Parameter(DType),
    /// Made from nothing: used in the type of the others.
    Constant,
}

#[derive(Clone, Debug)]
struct Value {
    /// The recorded value that it is, in another type maybe.
    of: ValueIndex,
    shape: Vec<usize>,
    /// The type it was recorded with.
    recorded: DType,
    /// The type it has.
    dtype: DType,
    role: Role,
    /// True if it must have the type it was recorded with: see [`Facts::lasting`].
    is_master: bool,
    is_maximum: bool,
    /// True if it comes, in the forward or backward, from products in 16 bits.
    is_low_born: bool,
    /// True if it is a parameter that is multiplied or moved.
    is_computed_with: bool,
    /// The unit in whose visit it is made.
    unit: Option<u32>,
}

impl Value {
    /// Returns whether it belongs to the forward or backward of 16-bit products, not to what an optimizer makes of
    /// them.
    fn is_from_products(&self) -> bool {
        self.is_low_born && !self.is_master
    }
}

struct Rewrite<'a, O> {
    window: &'a Window<O>,
    facts: &'a Facts,
    visits: &'a Visits,
    /// The precision that each parameter asks for.
    of_param: HashMap<ValueIndex, Precision>,
    /// The precision that each unit asks for.
    of_unit: HashMap<u32, Precision>,
    values: Vec<Value>,
    /// The operations that use each recorded value.
    uses: Vec<Vec<u32>>,
    made: Rewriting<'a, O>,
    /// Casts already there, with their visit.
    casts: HashMap<(ValueIndex, DType), (u32, ValueIndex)>,
    /// See [`Self::users`].
    users: HashMap<(ValueIndex, DType), Users>,
}

/// In which visits there are users of a recorded value that are no products in some type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    Nowhere,
    In(u32),
    InSeveral,
}

/// Returns what an operation is computed in. What a maximum is taken from is about to be exponentiated.
fn class<O: Op>(op: &O, is_maximum: impl Fn(ValueIndex) -> bool) -> FloatClass {
    let traits = op.traits();
    match op.inputs().nth(1) {
        Some(taken) if traits.is_difference && is_maximum(taken.id) => FloatClass::Single,
        _ => traits.float_class,
    }
}

/// The type that all have, if there is one.
fn common(mut dtypes: impl Iterator<Item = DType>) -> Option<DType> {
    let first = dtypes.next()?;
    dtypes.all(|dtype| dtype == first).then_some(first)
}

impl<'a, O: Op> Rewrite<'a, O> {
    fn new(
        window: &'a Window<O>,
        facts: &'a Facts,
        visits: &'a Visits,
        of_param: HashMap<ValueIndex, Precision>,
    ) -> Self {
        let unknown = Value {
            of: 0,
            shape: Vec::new(),
            recorded: DType::F32,
            dtype: DType::F32,
            role: Role::Typed,
            is_master: false,
            is_maximum: false,
            is_low_born: false,
            is_computed_with: false,
            unit: None,
        };
        let mut values = vec![unknown; window.dies.len()];
        for (number, value) in values.iter_mut().enumerate() {
            value.of = number as ValueIndex;
        }
        let mut uses = vec![Vec::new(); window.dies.len()];
        let mut of_unit = HashMap::new();
        for input in &window.inputs {
            let value = &mut values[input.value as usize];
            value.shape = input.shape.clone();
            value.recorded = input.dtype;
            value.dtype = input.dtype;
        }
        for (value, policy) in &of_param {
            values[*value as usize].role = Role::Parameter(policy.param.dtype());
        }
        for (index, op) in window.ops.iter().enumerate() {
            for input in op.inputs() {
                uses[input.id as usize].push(index as u32);
            }
            for out in op.outputs() {
                let value = &mut values[out.id as usize];
                value.shape = out.shape.to_vec();
                value.recorded = out.dtype;
                value.dtype = out.dtype;
                value.unit = visits.unit(index as u32);
                value.is_maximum = op.traits().is_maximum;
            }
            if matches!(
                op.traits().float_class,
                FloatClass::Compute | FloatClass::Move
            ) {
                for input in op.inputs() {
                    let is_param = of_param.contains_key(&input.id);
                    values[input.id as usize].is_computed_with |= is_param;
                }
            }
            let policy = op.inputs().find_map(|input| of_param.get(&input.id));
            if let (Some(unit), Some(policy)) = (visits.unit(index as u32), policy) {
                of_unit.entry(unit).or_insert(*policy);
            }
        }
        for (value, lasts) in values.iter_mut().zip(&facts.lasting) {
            value.is_master = *lasts;
        }
        Self {
            window,
            facts,
            visits,
            of_param,
            of_unit,
            values,
            uses,
            made: Rewriting::new(window),
            casts: HashMap::new(),
            users: HashMap::new(),
        }
    }

    fn value(&self, value: ValueIndex) -> &Value {
        &self.values[value as usize]
    }

    /// Returns whether the result of an operation has the elements of its operands at the same places.
    fn is_elementwise(&self, index: usize) -> bool {
        let is_cast = self.window.ops[index].traits().is_cast;
        let rule = self.facts.rules[index].as_ref();
        !is_cast && matches!(rule, OpRule::Factors(rule) if rule.elementwise)
    }

    fn add(&mut self, like: ValueIndex, dtype: DType) -> ValueIndex {
        let value = self.values.len() as ValueIndex;
        self.values.push(Value {
            dtype,
            role: Role::Typed,
            ..self.value(like).clone()
        });
        value
    }

    /// Returns the operation that casts one value to another.
    fn cast_op(&self, from: ValueIndex, to: ValueIndex) -> O {
        let tensor = |value: ValueIndex| NewTensor {
            id: value,
            shape: self.value(value).shape.clone(),
            dtype: self.value(value).dtype,
        };
        O::cast(tensor(from), tensor(to))
    }

    /// Returns whether a cast made in a visit is all that others need of `value`: kept for them, it takes no more
    /// memory than the value would, and whoever has gathered it has it for them too. Any other cast is made again in
    /// another visit: keeping it from forward to backward would cost its memory.
    fn stands_for(&mut self, value: ValueIndex, dtype: DType, made: u32) -> bool {
        let info = self.value(value);
        let (of, is_smaller) = (info.of, dtype.size() <= info.dtype.size());
        is_smaller
            && self.window.dies[of as usize]
            && match self.users(of, dtype) {
                Users::Nowhere => true,
                Users::In(visit) => visit == made,
                Users::InSeveral => false,
            }
    }

    /// Finds out once where a recorded value has users that are no products in a type.
    fn users(&mut self, of: ValueIndex, dtype: DType) -> Users {
        if let Some(known) = self.users.get(&(of, dtype)) {
            return *known;
        }
        let mut found = Users::Nowhere;
        for &user in &self.uses[of as usize] {
            let unit = self.visits.unit(user);
            let policy = unit.and_then(|unit| self.of_unit.get(&unit));
            let traits = self.window.ops[user as usize].traits();
            if traits.float_class == FloatClass::Compute
                && policy.is_some_and(|policy| policy.param.dtype() == dtype)
            {
                continue;
            }
            let visit = self.visits.of(user);
            found = match found {
                Users::Nowhere => Users::In(visit),
                Users::In(known) if known == visit => found,
                Users::In(_) | Users::InSeveral => Users::InSeveral,
            };
        }
        self.users.insert((of, dtype), found);
        found
    }

    /// Returns `value` in another type, for the visit `visit`.
    fn cast(&mut self, value: ValueIndex, dtype: DType, visit: u32) -> ValueIndex {
        if self.value(value).dtype == dtype {
            return value;
        }
        let is_param = self.of_param.contains_key(&value);
        if let Some(&(made, cast)) = self.casts.get(&(value, dtype))
            && (is_param || made == visit || self.stands_for(value, dtype, made))
        {
            return cast;
        }
        let cast = self.add(value, dtype);
        let op = self.cast_op(value, cast);
        self.made.write(op, Edit::Added, true);
        let info = &mut self.values[cast as usize];
        info.is_master = false;
        info.is_low_born |= dtype != DType::F32;
        self.casts.insert((value, dtype), (visit, cast));
        cast
    }

    /// Returns the type in which a parameter is unpacked that rests in 8 bits: the one that it is computed with.
    fn unpacked_as(&self, value: ValueIndex) -> Option<DType> {
        let info = self.value(value);
        let policy = self.of_param.get(&value)?;
        let is_free = info.is_computed_with && !info.is_master && info.recorded == DType::F32;
        is_free.then(|| policy.param.dtype())
    }

    /// Notes a cast that was recorded of a parameter that rests in 16 bits: whoever computes in these reads it as it
    /// rests, for casts there and back change nothing.
    fn widened(&mut self, from: ValueIndex, to: ValueIndex, visit: u32) {
        let (dtype, is_wider) = {
            let (from, to) = (self.value(from), self.value(to));
            (
                from.dtype,
                to.dtype == DType::F32 && from.dtype.is_float() && from.dtype.size() == 2,
            )
        };
        if is_wider && self.of_param.contains_key(&to) {
            self.casts.insert((to, dtype), (visit, from));
        }
    }

    /// Casts a parameter as soon as it is there: the 16-bit one rests like the other, and is gathered in its stead,
    /// ahead of its use.
    fn made(&mut self, value: ValueIndex, visit: u32) {
        let info = self.value(value);
        if let (Some(policy), true) = (self.of_param.get(&value), info.is_computed_with) {
            let dtype = policy.param.dtype();
            self.cast(value, dtype, visit);
        }
    }

    /// Returns a value as it is seen from another unit than that which made it.
    fn seen_from(&mut self, value: ValueIndex, unit: Option<u32>, visit: u32) -> ValueIndex {
        let info = self.value(value);
        let output = info
            .unit
            .filter(|made| Some(*made) != unit)
            .and_then(|made| self.of_unit.get(&made))
            .and_then(|policy| policy.output);
        match output {
            Some(output) if info.role == Role::Typed && !info.is_master => {
                self.cast(value, output.dtype(), visit)
            }
            _ => value,
        }
    }

    /// Returns the type in which an operation on `floats` is computed.
    fn target(&self, class: FloatClass, floats: &[ValueIndex], unit: Option<u32>) -> DType {
        let values = || floats.iter().map(|value| self.value(*value));
        let typed = || values().filter(|v| v.role == Role::Typed).map(|v| v.dtype);
        let params = || {
            values().filter_map(|v| match v.role {
                Role::Parameter(dtype) => Some(dtype),
                _ => None,
            })
        };
        let of_unit = unit.and_then(|unit| self.of_unit.get(&unit));
        let target = match class {
            FloatClass::Compute => of_unit.map(|policy| policy.param.dtype()).filter(|_| {
                // Products of an optimizer (Muon's) are nobody's business.
                values().any(|v| v.is_from_products() || matches!(v.role, Role::Parameter(_)))
            }),
            FloatClass::Move if typed().next().is_none() => common(params()),
            FloatClass::Move | FloatClass::Follow => common(typed()),
            FloatClass::Single | FloatClass::Create | FloatClass::Recorded => None,
        };
        target.unwrap_or(DType::F32)
    }

    fn operation(&mut self, index: usize, op: &O) {
        let (visit, unit) = (self.visits.of(index as u32), self.visits.unit(index as u32));
        let op_inputs: Vec<ValueIndex> = op.inputs().map(|input| input.id).collect();
        let mut inputs = op_inputs.clone();
        let mut outputs: Vec<NewTensor> = op.outputs().map(NewTensor::from).collect();
        let class = class(op, |id| self.values[id as usize].is_maximum);
        let is_float = |value: &Value| value.recorded == DType::F32;
        // A cast that was recorded takes its operand as it comes.
        let traits = op.traits();
        let is_cast = traits.is_cast;
        let mut floats = Vec::new();
        for (index, input) in inputs.iter_mut().enumerate() {
            let is_typed = !is_cast && traits.statistic_input != Some(index);
            if is_float(self.value(*input)) && is_typed {
                *input = self.seen_from(*input, unit, visit);
                floats.push(*input);
            }
        }
        let is_master = outputs.iter().any(|out| self.value(out.id).is_master);
        let target = match class == FloatClass::Follow && is_master && self.is_elementwise(index) {
            true => DType::F32,
            false => self.target(class, &floats, unit),
        };
        let is_low_born =
            target != DType::F32 || floats.iter().any(|v| self.value(*v).is_from_products());
        let roles: Vec<Role> = floats.iter().map(|v| self.value(*v).role).collect();
        let role = match class {
            FloatClass::Create => Role::Constant,
            FloatClass::Compute | FloatClass::Recorded => Role::Typed,
            _ if target != DType::F32 || roles.is_empty() => Role::Typed,
            _ if roles.contains(&Role::Typed) => Role::Typed,
            _ => roles
                .into_iter()
                .find(|role| *role != Role::Constant)
                .unwrap_or(Role::Constant),
        };
        if !is_cast {
            for (index, input) in inputs.iter_mut().enumerate() {
                if is_float(self.value(*input)) {
                    let is_statistic = traits.statistic_input == Some(index);
                    let dtype = if is_statistic { DType::F32 } else { target };
                    *input = self.cast(*input, dtype, visit);
                }
            }
        }
        let mut leaving = Vec::new();
        for (index, out) in outputs.iter_mut().enumerate() {
            let value = out.id;
            if let (true, Some(dtype)) = (traits.unpacks, self.unpacked_as(value)) {
                self.values[value as usize].dtype = dtype;
                out.dtype = dtype;
            }
            if !is_float(self.value(value)) || is_cast {
                continue;
            }
            let is_statistic = traits.statistic_output == Some(index);
            let target = if is_statistic { DType::F32 } else { target };
            let info = &mut self.values[value as usize];
            info.is_low_born = is_low_born;
            // What was combined into a parameter is one.
            if !self.of_param.contains_key(&value) {
                info.role = role;
            }
            if target != DType::F32 && self.value(value).is_master {
                let low = self.add(value, target);
                out.id = low;
                leaving.push((low, value));
            } else {
                self.values[value as usize].dtype = target;
            }
            out.dtype = target;
        }
        let mut computed = op.clone();
        if target != DType::F32 {
            computed.compute_in(target);
        }
        let (mut inputs, mut outputs) = (inputs.iter(), outputs.iter());
        computed.rewire(|side, wire| match side {
            Side::Input => {
                let value = *inputs.next().expect("as many as were read");
                wire.id = value;
                wire.dtype = self.values[value as usize].dtype;
            }
            Side::Output => {
                let out = outputs.next().expect("as many as were read");
                wire.id = out.id;
                wire.dtype = out.dtype;
            }
        });
        self.made.write(computed, Edit::Kept(index as u32), false);
        if let (true, &[from], Some(to)) = (is_cast, op_inputs.as_slice(), op.outputs().next()) {
            self.widened(from, to.id, visit);
        }
        let policy = unit.and_then(|unit| self.of_unit.get(&unit));
        let reduces_first = policy.is_some_and(|policy| policy.reduce != Float::F32);
        for (low, value) in leaving {
            let cast = self.cast_op(low, value);
            self.made.write(cast, Edit::Added, reduces_first);
        }
        for out in op.outputs() {
            self.made(out.id, visit);
        }
    }
}
