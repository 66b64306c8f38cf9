//! Which parameter a gradient, an update or a state of the optimizer belongs to, as far as that matters: the strategy
//! its unit has of its own, and where it rests.

use std::sync::Arc;

use super::operands::{Tensors, tensors};
use crate::ShardStrategy;
use crate::op::{Mark, Op};
use crate::param::ParamSpec;
use crate::rule::OpRule;
use crate::units::{Tags, Visits};
use crate::window::{InputState, ValueIndex, Window};

/// What the parameter that a value belongs to says itself.
type Owner = Option<ShardStrategy>;

/// Returns for each value the strategy of its unit: of the parameter it is or goes into by elementwise operations (the
/// optimizer), else of the unit whose visit makes it (a gradient that no optimizer uses in this window).
pub(super) fn strategies<O: Op>(window: &Window<O>, visits: &Visits) -> Vec<Option<ShardStrategy>> {
    let mut found = vec![None; window.dies.len()];
    let mut owner: Vec<Option<Owner>> = vec![None; window.dies.len()];
    for input in &window.inputs {
        if let InputState::Placed { tag: Some(tag), .. } = &input.state {
            owner[input.value as usize] = Some(tag.own_strategy());
        }
    }
    for op in &window.ops {
        if let (Some(Mark::Param(spec)), Some(out)) = (op.mark(), op.outputs().next()) {
            owner[out.id as usize] = Some(spec.own_strategy());
        }
    }
    if owner.iter().flatten().all(Option::is_none) {
        return found;
    }
    let elementwise: Vec<Option<Tensors>> = window.ops.iter().map(elementwise).collect();
    let as_the_result = |op: &Tensors| {
        let (out, shape, _) = op.outputs[0].clone();
        let inputs = op.inputs.iter().filter(move |input| input.1 == shape);
        let inputs: Vec<usize> = inputs.map(|input| input.0 as usize).collect();
        (out as usize, inputs)
    };
    // An updated parameter is that parameter, and what it is updated with belongs to it.
    for op in elementwise.iter().flatten() {
        let (out, inputs) = as_the_result(op);
        owner[out] = inputs.iter().find_map(|&input| owner[input]);
    }
    for op in elementwise.iter().flatten().rev() {
        let (out, inputs) = as_the_result(op);
        for input in inputs {
            owner[input] = owner[input].or(owner[out]);
        }
    }
    for (index, op) in window.ops.iter().enumerate() {
        for (value, ..) in tensors(op).outputs {
            found[value as usize] = visits.strategy(index as u32);
        }
    }
    for (found, owner) in found.iter_mut().zip(owner) {
        if let Some(owner) = owner {
            *found = owner;
        }
    }
    found
}

/// Returns for each value the parameter with which it rests: what updates a parameter (gradient, moments, the new
/// parameter).
///
/// An update is what a parameter goes into by elementwise operations and what outlives the window. Elementwise
/// operations are followed back from it, through values that nothing else uses: a gradient that other gradients are
/// computed from is also an activation's. What is updated but not by this window is not found.
pub(super) fn updated<O: Op>(window: &Window<O>) -> Vec<Option<Arc<ParamSpec>>> {
    let tags = Tags::new(window);
    let mut found: Vec<Option<Arc<ParamSpec>>> = vec![None; window.dies.len()];
    if tags.iter().next().is_none() {
        return found;
    }
    let alone = used_on_pieces(window);
    for op in window.ops.iter().rev() {
        let Some(op) = elementwise(op) else { continue };
        let (out, shape, _) = &op.outputs[0];
        let out = *out as usize;
        if found[out].is_none() && !window.dies[out] {
            found[out] = tags.get(out as ValueIndex).cloned();
        }
        let Some(param) = found[out].clone() else {
            continue;
        };
        for (input, ..) in op.inputs.iter().filter(|input| &input.1 == shape) {
            let tag = tags.get(*input);
            let input = *input as usize;
            if found[input].is_none() && (alone[input] || tag.is_some()) {
                found[input] = Some(tag.unwrap_or(&param).clone());
            }
        }
    }
    found
}

/// Returns for each value whether pieces of it are enough for every operation of the window that uses it: elementwise
/// ones with a result of its shape, and the sum of all elements.
fn used_on_pieces<O: Op>(window: &Window<O>) -> Vec<bool> {
    let mut alone = vec![true; window.dies.len()];
    for op in &window.ops {
        let tensors = tensors(op);
        let on_pieces = match op.rule() {
            OpRule::Factors(rule) => rule.on_pieces().then_some(rule.elementwise),
            _ => None,
        };
        for (value, shape, _) in &tensors.inputs {
            let enough = match on_pieces {
                None => false,
                Some(false) => true,
                Some(true) => tensors.outputs.iter().all(|out| &out.1 == shape),
            };
            alone[*value as usize] &= enough;
        }
    }
    alone
}

/// Returns for each value whether it is the gradient of what a layer is linear in, or computed elementwise of such
/// gradients alone, and of use in pieces.
pub(super) fn gradients<O: Op>(window: &Window<O>) -> Vec<bool> {
    let on_pieces = used_on_pieces(window);
    let mut found = vec![false; window.dies.len()];
    for op in &window.ops {
        let is_gradient = match elementwise(op) {
            Some(op) => {
                let mut inputs = op.inputs.iter();
                !op.inputs.is_empty() && inputs.all(|(value, ..)| found[*value as usize])
            }
            None => op.traits().makes_weight_gradient,
        };
        for out in op.outputs().filter(|_| is_gradient) {
            let value = out.id as usize;
            found[value] = on_pieces[value];
        }
    }
    found
}

/// Returns the tensors of an elementwise operation with one result.
fn elementwise<O: Op>(op: &O) -> Option<Tensors> {
    let tensors = tensors(op);
    match (op.rule(), tensors.outputs.len()) {
        (OpRule::Factors(rule), 1) if rule.elementwise => Some(tensors),
        _ => None,
    }
}
