//! Which parameter a gradient, an update or a state of the optimizer belongs to, as far as that matters: the strategy its unit has of its own.

use burn_ir::OperationIr;

use super::operands::{Tensors, tensors};
use crate::mesh::MeshShape;
use crate::plan::custom::CustomOp;
use crate::plan::options::ShardStrategy;
use crate::plan::units::Visits;
use crate::plan::window::{InputState, Window};
use crate::rules::{self, OpRule};

/// What the parameter that a value belongs to says itself.
type Owner = Option<ShardStrategy>;

/// Returns for each value the strategy of its unit: of the parameter it is or goes into by elementwise operations (the optimizer), else of the
/// unit whose visit makes it (a gradient that no optimizer uses in this window).
pub(super) fn strategies(
    window: &Window,
    visits: &Visits,
    mesh: &MeshShape,
) -> Vec<Option<ShardStrategy>> {
    let mut found = vec![None; window.dies.len()];
    let mut owner: Vec<Option<Owner>> = vec![None; window.dies.len()];
    for input in &window.inputs {
        if let InputState::Placed { tag: Some(tag), .. } = &input.state {
            owner[input.value as usize] = Some(tag.own_strategy());
        }
    }
    for op in &window.ops {
        if let OperationIr::Custom(custom) = op
            && let Some((id, out)) = custom.inputs.first().zip(custom.outputs.first())
            && let Ok(CustomOp::Param(spec)) = CustomOp::parse(&custom.id, &id.shape, mesh)
        {
            owner[out.id.value() as usize] = Some(spec.own_strategy());
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

/// Returns the tensors of an elementwise operation with one result.
fn elementwise(op: &OperationIr) -> Option<Tensors> {
    if matches!(op, OperationIr::Init(_) | OperationIr::Drop(_)) {
        return None;
    }
    let tensors = tensors(op);
    match (rules::rule(op), tensors.outputs.len()) {
        (OpRule::Factors(rule), 1) if rule.elementwise => Some(tensors),
        _ => None,
    }
}
