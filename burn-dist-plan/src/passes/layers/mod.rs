//! Linear layers that were recorded as products of matrices, as layers.
//!
//! A line of Burn records `y = x W` as a product of `x` and a view of `W`, and what its autodiff makes of that: the
//! product of a gradient with the turned `W`, that of the turned `x` with the gradient, and the sum of the latter over
//! the batch. All of that is found here by what it is made of, and becomes what passes know as a layer: the weight is an
//! operand as it is, so whoever gathers, splits, quantises or recomputes finds it, and the operands of a product are
//! the values themselves, in any layout that they have, not views that follow one of them.
//!
//! ```text
//! layer      a product of what is no parameter with a parameter of two dims that is not turned
//! gradient   of x: a product of a gradient with such a parameter, turned
//!            of W: a product of a layer's x, turned, with a gradient, of a shape with W
//! ```
//!
//! Where evidence does not decide, a product stays one. No value changes: see [`Op::layer`]. A layer is where its product
//! was: a gradient of `W` is there when the backward comes past, though Burn's autodiff adds up its batch at the end.

use std::borrow::Cow;
use std::collections::HashMap;

use super::rewriting::{Rewriting, Rewritten};
use super::{Context, Report, State};
use crate::error::PlanError;
use crate::facts::{Edit, Finder};
use crate::ir::{NewTensor, Op, Product, ValueIndex, Window};

#[cfg(test)]
mod tests;

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(state: &mut State<'_, O>, _: &Context<'_>) -> Result<Report, PlanError> {
    let known = Finder::new(&state.window);
    let layers = match asks_for_layers(&known) {
        true => Search::new(&known).find(),
        false => Vec::new(),
    };
    let facts = match rewrite(&state.window, layers) {
        None => known.facts(),
        Some(made) => {
            let facts = known.rewritten(&made.window, &made.edits).facts();
            state.window = Cow::Owned(made.window);
            facts
        }
    };
    state.found(facts);
    Ok(Report::default())
}

/// A product of a layer.
struct Layer {
    product: Product,
    /// In the order of [`Product`].
    operands: [ValueIndex; 2],
    /// The operations that it stands for: a product, and those that add up its matrices, the last of which makes the
    /// result.
    parts: Vec<usize>,
}

/// Returns whether there is a product of what belongs to a layer: of a parameter, or of a gradient with what is none. A
/// line of Burn that records layers as such has no others than those of attention.
fn asks_for_layers<O: Op>(known: &Finder<'_, O>) -> bool {
    known.products().any(|(_, op)| {
        let mut operands = op.inputs().map(|input| input.id);
        let (Some(left), Some(right)) = (operands.next(), operands.next()) else {
            return false;
        };
        known.is_of_parameter(right) || (known.is_backward(right) && !known.is_backward(left))
    })
}

struct Search<'a, O> {
    window: &'a Window<O>,
    known: &'a Finder<'a, O>,
    shapes: Vec<&'a [usize]>,
    /// The operation that makes each value; of what comes from outside, none.
    made_by: Vec<Option<usize>>,
    /// The first operation that reads each value, and how many do.
    readers: Vec<(usize, u32)>,
    /// True for a value that lives on after the window, or that the host reads.
    is_kept: Vec<bool>,
    /// The first of the reshapes of one value to one shape.
    first: Vec<ValueIndex>,
}

impl<'a, O: Op> Search<'a, O> {
    fn new(known: &'a Finder<'a, O>) -> Self {
        let window = known.window();
        let num_values = window.dies.len();
        let mut this = Self {
            window,
            known,
            shapes: vec![&[]; num_values],
            made_by: vec![None; num_values],
            readers: vec![(usize::MAX, 0); num_values],
            is_kept: window.dies.iter().map(|dies| !dies).collect(),
            first: (0..num_values as ValueIndex).collect(),
        };
        for read in &window.reads {
            this.is_kept[*read as usize] = true;
        }
        for input in &window.inputs {
            this.shapes[input.value as usize] = &input.shape;
        }
        let mut reshapes: HashMap<(ValueIndex, &[usize]), ValueIndex> = HashMap::new();
        for (index, op) in window.ops.iter().enumerate() {
            for input in op.inputs() {
                let (first, count) = &mut this.readers[input.id as usize];
                *first = index.min(*first);
                *count += 1;
            }
            for out in op.outputs() {
                this.shapes[out.id as usize] = out.shape;
                this.made_by[out.id as usize] = Some(index);
                if let Some(of) = known.reshape_of(out.id) {
                    let first = reshapes.entry((this.first(of), out.shape));
                    this.first[out.id as usize] = *first.or_insert(out.id);
                }
            }
        }
        this
    }

    fn first(&self, value: ValueIndex) -> ValueIndex {
        self.first[value as usize]
    }

    fn shape(&self, value: ValueIndex) -> &'a [usize] {
        self.shapes[value as usize]
    }

    /// Returns what a view is of, and whether it is that turned: a view that keeps all else as it is, but for dims of
    /// size one before the last two.
    fn view(&self, value: ValueIndex) -> Option<(ValueIndex, bool)> {
        let op = &self.window.ops[self.made_by[value as usize]?];
        let from = op.inputs().next()?.id;
        if op.traits().turns {
            return Some((from, true));
        }
        let is_reshape = self.known.reshape_of(value) == Some(from);
        let matrices = [from, value].map(|value| as_matrix(self.shape(value)));
        (is_reshape && matrices[0].is_some() && matrices[0] == matrices[1]).then_some((from, false))
    }

    /// Returns the parameter of two dims that a value is a view of, and whether that is turned.
    fn weight(&self, value: ValueIndex) -> Option<(ValueIndex, bool)> {
        let (mut at, mut turned) = (value, false);
        while self.shape(at).len() != 2 || self.known.parameter(at).is_none() {
            let (from, turns) = self.view(at)?;
            (at, turned) = (from, turned != turns);
        }
        Some((at, turned))
    }

    /// Returns true for a gradient that is not that of a parameter.
    fn is_gradient(&self, value: ValueIndex) -> bool {
        self.known.is_backward(value) && self.known.updated(value).is_none()
    }

    /// Returns the products of layers.
    fn find(&self) -> Vec<Layer> {
        let mut found: Vec<Layer> = Vec::new();
        let mut open: Vec<(usize, [ValueIndex; 2], ValueIndex)> = Vec::new();
        // The weight whose layer's result has a gradient, and those that are applied to a value.
        let mut by_gradient: HashMap<ValueIndex, ValueIndex> = HashMap::new();
        let mut by_input: HashMap<ValueIndex, Vec<ValueIndex>> = HashMap::new();
        for (index, op) in self.known.products() {
            let mut operands = op.inputs().map(|input| input.id);
            let (Some(left), Some(right)) = (operands.next(), operands.next()) else {
                continue;
            };
            let Some(out) = op.outputs().next() else {
                continue;
            };
            // A product of operands of several types casts them.
            let is_of_one = op.inputs().all(|input| input.dtype == out.dtype);
            if self.known.is_of_parameter(left) || !is_of_one {
                continue;
            }
            let Some((weight, turned)) = self.weight(right) else {
                open.push((index, [left, right], out.id));
                continue;
            };
            let left_first = self.first(left);
            let product = match (turned, self.known.is_backward(left)) {
                (false, false) => Product::Forward,
                (true, true) if self.is_gradient(left) => Product::Input,
                _ => continue,
            };
            let shape = self.shape(weight);
            let width = if product == Product::Forward {
                shape[1]
            } else {
                shape[0]
            };
            let rows = self.shape(left).split_last().map(|(_, rows)| rows);
            if out.shape.split_last() != rows.map(|rows| (&width, rows)) {
                continue;
            }
            let operands = match product {
                Product::Forward => {
                    by_input.entry(left_first).or_default().push(weight);
                    [left_first, weight]
                }
                _ => {
                    by_gradient.insert(left_first, weight);
                    [weight, left_first]
                }
            };
            found.push(Layer {
                product,
                operands,
                parts: vec![index],
            });
        }
        for (index, [turned, gradient], out) in open {
            let Some((x, true)) = self.view(turned) else {
                continue;
            };
            // No parameter: what is turned is a view of `x`.
            if self.known.is_backward(x) || !self.is_gradient(gradient) {
                continue;
            }
            let Some((out, parts)) = self.summed(index, out) else {
                continue;
            };
            let (x, gradient) = (self.first(x), self.first(gradient));
            let applied = by_input.get(&x).into_iter().flatten();
            let mut weights = by_gradient.get(&gradient).into_iter().chain(applied);
            let updated = self.known.updated(out);
            let is_of_layer = weights.any(|weight| self.shape(*weight) == self.shape(out));
            if is_of_layer || updated.is_some_and(|of| of.layout.shape() == self.shape(out)) {
                found.push(Layer {
                    product: Product::Weight,
                    operands: [x, gradient],
                    parts,
                });
            }
        }
        found
    }

    /// Returns the sum of a product's matrices, as a matrix, with the operations that make it.
    fn summed(&self, index: usize, out: ValueIndex) -> Option<(ValueIndex, Vec<usize>)> {
        let (mut at, mut parts) = (out, vec![index]);
        while self.shape(at).len() > 2 {
            let (reader, count) = self.readers[at as usize];
            if count != 1 || self.is_kept[at as usize] {
                return None;
            }
            let op = &self.window.ops[reader];
            let next = op.outputs().next()?.id;
            let (from, to) = (self.shape(at), self.shape(next));
            let batch = |shape: &[usize]| shape.len() - 2;
            let adds_up = op.traits().adds_up
                && from.len() == to.len()
                && from[batch(from)..] == to[batch(to)..];
            if !adds_up && self.view(next) != Some((at, false)) {
                return None;
            }
            parts.push(reader);
            at = next;
        }
        Some((at, parts))
    }
}

/// Returns the last two dims of a shape whose other dims have size one.
fn as_matrix(shape: &[usize]) -> Option<&[usize]> {
    let (batch, matrix) = shape.split_at_checked(shape.len().checked_sub(2)?)?;
    batch.iter().all(|size| *size == 1).then_some(matrix)
}

/// Puts layers in the place of what stands for them; `None` where there are none, or the language has no such
/// operations.
fn rewrite<O: Op>(window: &Window<O>, layers: Vec<Layer>) -> Option<Rewritten<O>> {
    if layers.is_empty() {
        return None;
    }
    let mut wanted = vec![false; window.dies.len()];
    for operand in layers.iter().flat_map(|layer| layer.operands) {
        wanted[operand as usize] = true;
    }
    let is_wanted = |value: ValueIndex| wanted[value as usize];
    let inputs = window.inputs.iter().filter(|input| is_wanted(input.value));
    let inputs = inputs.map(|input| NewTensor {
        id: input.value,
        shape: input.shape.clone(),
        dtype: input.dtype,
    });
    let made = window.ops.iter().flat_map(Op::outputs);
    let made = made.filter(|out| is_wanted(out.id)).map(NewTensor::from);
    let tensors: HashMap<ValueIndex, NewTensor> = inputs
        .chain(made)
        .map(|tensor| (tensor.id, tensor))
        .collect();
    let mut instead: Vec<Option<Option<O>>> = vec![None; window.ops.len()];
    for layer in layers {
        let tensor = |value: ValueIndex| tensors.get(&value).cloned();
        let (product, sums) = layer.parts.split_first()?;
        let [first, second] = layer.operands.map(tensor);
        let last = sums.last().unwrap_or(product);
        let out = window.ops[*last].outputs().next().map(NewTensor::from);
        let made = O::layer(layer.product, [first?, second?], out?)?;
        for part in sums {
            instead[*part] = Some(None);
        }
        // Its operands are there. Autodiff adds up at the end of a backward, and until then both would be kept.
        instead[*product] = Some(Some(made));
    }
    let mut made = Rewriting::new(window);
    for ((op, instead), at) in window.ops.iter().zip(instead).zip(0..) {
        match instead {
            None => made.write(op.clone(), Edit::Kept(at), false),
            Some(Some(layer)) => made.write(layer, Edit::Replaced(at), false),
            Some(None) => {}
        }
    }
    let num_values = window.dies.len();
    made.drop_unread(num_values);
    Some(made.finish(num_values))
}
