//! Gradients of what, by the operations of layers and of their gradients.

use std::collections::HashMap;
use std::sync::Arc;

use super::finder::Finder;
use super::first_shape;
use super::seen::Seen;
use crate::ir::{Adjoint, Op, ParamSpec, ValueIndex};

impl<O: Op> Finder<'_, O> {
    /// Returns what is `found` of the class of every operand of an elementwise operation, if it is the same of all.
    fn common<T: Clone + PartialEq>(&self, op: &Seen, found: &[Option<T>]) -> Option<T> {
        op.elementwise()?;
        let mut terms = op.inputs().map(|input| &found[self.root[input] as usize]);
        let first = terms.next()?;
        terms.all(|term| term == first).then(|| first.clone())?
    }

    /// Returns the operand of a layer at a position that its [`Adjoint`] names; of a cast, what it was before.
    fn operand(&self, op: &Seen, position: usize) -> ValueIndex {
        let operand = op.inputs.get(position);
        self.root(operand.expect("an operation has the operands it names").0)
    }

    /// Returns the parameters of gradients that are known by the operation that made them, and of their sums, by the
    /// first of their class.
    pub(super) fn matched(&self) -> Vec<Option<Arc<ParamSpec>>> {
        let mut found: Vec<Option<Arc<ParamSpec>>> = vec![None; self.window.dies.len()];
        // The weight of the layer whose result has a gradient; the weights that are applied to an input; the tables
        // that are read at indices.
        let mut by_gradient: HashMap<ValueIndex, ValueIndex> = HashMap::new();
        let mut by_input: HashMap<ValueIndex, Vec<ValueIndex>> = HashMap::new();
        let mut by_indices: HashMap<ValueIndex, Vec<ValueIndex>> = HashMap::new();
        let flat = |op: &Seen, indices| first_shape(&self.reshape_of, self.operand(op, indices));
        for op in &self.ops {
            match op.traits.adjoint {
                Some(Adjoint::Forward { x, weight }) => {
                    let weights = by_input.entry(self.operand(op, x)).or_default();
                    weights.push(self.operand(op, weight));
                }
                Some(Adjoint::Input { weight, gradient }) => {
                    by_gradient.insert(self.operand(op, gradient), self.operand(op, weight));
                }
                Some(Adjoint::Read { table, indices }) => {
                    let tables = by_indices.entry(flat(op, indices)).or_default();
                    tables.push(self.operand(op, table));
                }
                _ => {}
            }
        }
        let one = |values: Option<&Vec<ValueIndex>>| match values.map(Vec::as_slice) {
            Some([value]) => Some(*value),
            _ => None,
        };
        for (op, of_window) in self.ops.iter().zip(&self.window.ops) {
            let weight = match op.traits.adjoint {
                Some(Adjoint::Weight { x, gradient }) => by_gradient
                    .get(&self.operand(op, gradient))
                    .copied()
                    .or_else(|| one(by_input.get(&self.operand(op, x)))),
                Some(Adjoint::Named { weight }) => Some(self.operand(op, weight)),
                Some(Adjoint::Written { indices }) => one(by_indices.get(&flat(op, indices))),
                _ => None,
            };
            let spec = weight.and_then(|weight| self.tags[weight as usize].clone());
            let spec = spec.or_else(|| self.common(op, &found));
            // Indices may be used with several tables: a gradient has the shape of its parameter.
            if let (Some(spec), Some(out)) = (spec, of_window.outputs().next())
                && spec.layout.shape() == out.shape
            {
                found[self.root(out.id) as usize] = Some(spec);
            }
        }
        found
    }

    /// Returns for each value the input or result of a layer that it is the gradient of, for sums of such too, and for
    /// reshapes what that is a reshape of: the gradient of an input names the weight and the gradient of the result, and
    /// a backward goes through the uses of a weight from the last to the first.
    pub(super) fn gradient_of(&self) -> Vec<Option<ValueIndex>> {
        let mut found: Vec<Option<ValueIndex>> = vec![None; self.window.dies.len()];
        let mut by_weight: HashMap<&str, Vec<(ValueIndex, ValueIndex)>> = HashMap::new();
        for op in &self.ops {
            let path =
                |weight: usize| Some(&*self.tags[self.operand(op, weight) as usize].as_ref()?.path);
            let out = op.out;
            if out == ValueIndex::MAX || self.root(out) != out {
                continue;
            }
            let of = match (op.traits.adjoint, op.elementwise()) {
                (Some(Adjoint::Forward { x, weight }), _) => {
                    if let Some(path) = path(weight) {
                        let layer = (self.operand(op, x), out);
                        by_weight.entry(path).or_default().push(layer);
                    }
                    continue;
                }
                (Some(Adjoint::Input { weight, gradient }), _) => {
                    let layer = path(weight).and_then(|path| by_weight.get_mut(path)?.pop());
                    if let Some((_, result)) = layer {
                        found[self.operand(op, gradient) as usize].get_or_insert(result);
                    }
                    layer.map(|(x, _)| x)
                }
                (None, Some(_)) => self.common(op, &found),
                (None, None) => {
                    let from = self.reshape_of[out as usize];
                    let of = from.and_then(|from| found[self.root(from) as usize]);
                    of.and_then(|of| self.reshape_of[of as usize].map(|from| self.root(from)))
                }
                _ => None,
            };
            found[out as usize] = of;
        }
        self.of_classes(found)
    }
}
