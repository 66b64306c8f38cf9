//! What is a gradient of what, told by the operations of layers and of their gradients.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Finder, first_shape};
use crate::op::{Adjoint, Op};
use crate::param::ParamSpec;
use crate::window::ValueIndex;

impl<O: Op> Finder<'_, O> {
    /// Returns the parameters of gradients that are known by the operation that made them, and of their sums.
    pub(super) fn matched(&self) -> Vec<Option<Arc<ParamSpec>>> {
        let mut found: Vec<Option<Arc<ParamSpec>>> = vec![None; self.window.dies.len()];
        // The weight of the layer whose result has a gradient; the weights that are applied to an input; the tables
        // that are read at indices.
        let mut by_gradient: HashMap<ValueIndex, ValueIndex> = HashMap::new();
        let mut by_input: HashMap<ValueIndex, Vec<ValueIndex>> = HashMap::new();
        let mut by_indices: HashMap<ValueIndex, Vec<ValueIndex>> = HashMap::new();
        for op in &self.window.ops {
            let inputs: Vec<ValueIndex> = op.inputs().map(|input| input.id).collect();
            match op.traits().adjoint {
                Some(Adjoint::Forward { x, weight }) => {
                    by_input.entry(inputs[x]).or_default().push(inputs[weight]);
                }
                Some(Adjoint::Input { weight, gradient }) => {
                    by_gradient.insert(inputs[gradient], inputs[weight]);
                }
                Some(Adjoint::Read { table, indices }) => {
                    let tables = by_indices
                        .entry(first_shape(&self.reshape_of, inputs[indices]))
                        .or_default();
                    tables.push(inputs[table]);
                }
                _ => {}
            }
        }
        let one = |values: Option<&Vec<ValueIndex>>| match values.map(Vec::as_slice) {
            Some([value]) => Some(*value),
            _ => None,
        };
        for (op, elementwise) in self.window.ops.iter().zip(&self.elementwise) {
            let inputs: Vec<ValueIndex> = op.inputs().map(|input| input.id).collect();
            let weight = match op.traits().adjoint {
                Some(Adjoint::Weight { x, gradient }) => by_gradient
                    .get(&inputs[gradient])
                    .copied()
                    .or_else(|| one(by_input.get(&inputs[x]))),
                Some(Adjoint::Named { weight }) => Some(inputs[weight]),
                Some(Adjoint::Written { indices }) => {
                    one(by_indices.get(&first_shape(&self.reshape_of, inputs[indices])))
                }
                _ => None,
            };
            let spec = weight.and_then(|weight| self.tags[weight as usize].clone());
            let sum = || {
                let op = elementwise.as_ref()?;
                let mut specs = op.inputs.iter().map(|(input, _)| &found[*input as usize]);
                let first = specs.next()?.clone()?;
                specs
                    .all(|spec| spec.as_ref() == Some(&first))
                    .then_some(first)
            };
            let spec = spec.or_else(sum);
            // Indices may be used with several tables: a gradient has the shape of its parameter.
            if let (Some(spec), Some(out)) = (spec, op.outputs().next())
                && spec.layout.shape() == out.shape
            {
                found[out.id as usize] = Some(spec);
            }
        }
        found
    }

    /// Returns for each value the layer's input that it is the gradient of, for sums of such too, and for reshapes what
    /// that input is a reshape of: the gradient names the weight, and a backward goes through the uses of a weight from
    /// the last to the first.
    pub(super) fn gradient_of(&self) -> Vec<Option<ValueIndex>> {
        let mut found: Vec<Option<ValueIndex>> = vec![None; self.window.dies.len()];
        let mut by_weight: HashMap<&str, Vec<ValueIndex>> = HashMap::new();
        for (op, elementwise) in self.window.ops.iter().zip(&self.elementwise) {
            let input = |position| op.inputs().nth(position).map(|input| input.id);
            let path =
                |value: Option<ValueIndex>| Some(&*self.tags[value? as usize].as_ref()?.path);
            let out = op.outputs().next().map(|out| out.id as usize);
            let of = match (op.traits().adjoint, elementwise) {
                (Some(Adjoint::Forward { x, weight }), _) => {
                    if let (Some(x), Some(path)) = (input(x), path(input(weight))) {
                        by_weight.entry(path).or_default().push(x);
                    }
                    continue;
                }
                (Some(Adjoint::Input { weight, .. }), _) => {
                    path(input(weight)).and_then(|path| by_weight.get_mut(path)?.pop())
                }
                (None, Some(op)) => {
                    let mut terms = op.inputs.iter().map(|(input, _)| found[*input as usize]);
                    let first = terms.next().flatten();
                    first.filter(|_| terms.all(|term| term == first))
                }
                (None, None) => {
                    let from = out.and_then(|out| self.reshape_of[out]);
                    from.and_then(|from| self.reshape_of[found[from as usize]? as usize])
                }
                _ => None,
            };
            if let Some(out) = out {
                found[out] = of;
            }
        }
        found
    }
}
