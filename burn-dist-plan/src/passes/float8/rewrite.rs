//! A window with its products in float8.
//!
//! What is quantised is quantised once and serves every product that takes it in this form: `q`, `k` and `v` share an
//! `x`, the forward and the backward a weight and an `x`, which takes less memory in 8 bits than any cast of it.
//! Weights that rest are quantised where they rest and gathered as bytes; tensorwise, their absolute maxima are reduced
//! together.
//!
//! Products of a tensor core add up along rows. For devices that have them, what is quantised is written by rows and by
//! columns as the products of the window want it, in one operation.

use std::collections::{HashMap, HashSet};

use super::layers::{LayerProduct, Layers};
use crate::facts::{Edit, Visits};
use crate::ir::{
    Float8Op, Float8Store, NewTensor, Op, Product, ScaleOf, Stage, ValueIndex, Ways, Window,
};
use crate::mesh::DType;
use crate::passes::rewriting::{Rewriting, Rewritten};
use crate::policy::{Fp8, Scaling, Scope};

/// A tensor in 8 bits by rows and by columns, or the same one twice, and its scale.
#[derive(Clone, Copy, Debug)]
struct Quantized {
    values: ValueIndex,
    turned: ValueIndex,
    scale: ValueIndex,
}

/// What is quantised, how, and the visit in which it is of use.
type Key = (ValueIndex, Form, Option<u32>);

/// How a tensor is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    of: ScaleOf,
    format: Fp8,
    power_of_two: bool,
}

/// A weight that is gathered in 8 bits.
struct Weight {
    value: ValueIndex,
    form: Form,
    /// How many operations come before it is there.
    made: usize,
    /// The first operation that uses it in 8 bits.
    used: usize,
    stage: Option<Stage>,
}

/// Weights whose maxima are reduced together, as soon as all are there.
struct Group {
    /// How many operations come before.
    at: usize,
    /// The first operation that uses one in 8 bits.
    used: usize,
    weights: Vec<Weight>,
}

struct Rewrite<'a, O> {
    visits: &'a Visits,
    /// The type of tensors in 8 bits.
    store: DType,
    /// Which of them are wanted by columns, and which in both ways.
    ways: HashMap<Key, Ways>,
    values: Vec<(Vec<usize>, DType)>,
    made: Rewriting<'a, O>,
    /// Of casts of one value to one type, the first: in another visit a cast is made again.
    first_cast: HashMap<ValueIndex, ValueIndex>,
    /// Tensors in 8 bits, by the visit in which they are of use; that of activations and of what is gathered in 8 bits
    /// is none: they are of use as long as they are there.
    quantized: HashMap<Key, Quantized>,
}

/// Puts scaled products in 8 bits in the place of `layers`.
pub(crate) fn rewrite<O: Op>(
    window: &Window<O>,
    reduces_first: &[bool],
    visits: &Visits,
    layers: &Layers,
    store: Float8Store,
) -> Rewritten<O> {
    let mut rewrite = Rewrite {
        visits,
        store: store.dtype,
        ways: HashMap::new(),
        values: vec![(Vec::new(), DType::F32); window.dies.len()],
        made: Rewriting::new(window),
        first_cast: first_casts(window),
        quantized: HashMap::new(),
    };
    for input in &window.inputs {
        rewrite.values[input.value as usize] = (input.shape.clone(), input.dtype);
    }
    for out in window.ops.iter().flat_map(Op::outputs) {
        rewrite.values[out.id as usize] = (out.shape.to_vec(), out.dtype);
    }
    if store.turns {
        rewrite.ways = rewrite.ways(window, layers);
    }
    let mut groups = groups(rewrite.weights(window, layers))
        .into_iter()
        .peekable();
    for (index, op) in window.ops.iter().enumerate() {
        while let Some(group) = groups.next_if(|group| group.at <= index) {
            rewrite.group(&group.weights);
        }
        let reduces_first = reduces_first.get(index) == Some(&true);
        match &layers.products[index] {
            Some(product) => rewrite.product(index as u32, op, product, reduces_first),
            None => rewrite
                .made
                .write(op.clone(), Edit::Kept(index as u32), reduces_first),
        }
    }
    let (mut made, num_values) = (rewrite.made, rewrite.values.len());
    made.drop_unread(num_values);
    made.finish(num_values)
}

/// Returns for each cast the first one of its operand to its type.
fn first_casts<O: Op>(window: &Window<O>) -> HashMap<ValueIndex, ValueIndex> {
    let mut first: HashMap<(ValueIndex, DType), ValueIndex> = HashMap::new();
    let casts = window.ops.iter().filter(|op| op.traits().is_cast);
    let casts = casts.filter_map(|op| Some((op.inputs().next()?.id, op.outputs().next()?)));
    casts
        .map(|(of, out)| (out.id, *first.entry((of, out.dtype)).or_insert(out.id)))
        .collect()
}

/// Puts together the weights of one stage and form that are there before the first of them is used: of parameters that
/// were there before the window, all.
fn groups(mut weights: Vec<Weight>) -> Vec<Group> {
    weights.sort_by_key(|weight| weight.used);
    // In order of first use; the weights of each kind in order of use.
    let mut kinds: Vec<Vec<Weight>> = Vec::new();
    let mut known: HashMap<(Form, Option<Stage>), usize> = HashMap::new();
    for weight in weights {
        let kind = *known
            .entry((weight.form, weight.stage.clone()))
            .or_insert(kinds.len());
        if kind == kinds.len() {
            kinds.push(Vec::new());
        }
        kinds[kind].push(weight);
    }
    let mut groups: Vec<Group> = kinds.into_iter().flat_map(groups_of_kind).collect();
    groups.sort_by_key(|group| (group.at, group.used));
    groups
}

/// Puts weights of one kind together, in order of use, as [`groups`] does.
fn groups_of_kind(weights: Vec<Weight>) -> Vec<Group> {
    let mut by_made: Vec<usize> = (0..weights.len()).collect();
    by_made.sort_by_key(|index| weights[*index].made);
    let mut by_made = by_made.into_iter().peekable();
    let mut weights: Vec<Option<Weight>> = weights.into_iter().map(Some).collect();
    let mut groups = Vec::new();
    for first in 0..weights.len() {
        let Some(used) = weights[first].as_ref().map(|weight| weight.used) else {
            continue;
        };
        let mut together: Vec<usize> = Vec::new();
        let is_there = |index: &usize| {
            let weight = weights[*index].as_ref();
            weight.is_some_and(|weight| weight.made <= used)
        };
        while let Some(index) = by_made.next_if(is_there) {
            together.push(index);
        }
        together.sort_unstable();
        let together = together
            .into_iter()
            .filter_map(|index| weights[index].take());
        let together: Vec<Weight> = together.collect();
        let at = together.iter().map(|weight| weight.made).max();
        groups.push(Group {
            at: at.unwrap_or(0),
            used,
            weights: together,
        });
    }
    groups
}

/// What shares a scale, of each operand of a product: along what is added up.
fn scales(product: Product, scaling: Scaling) -> [ScaleOf; 2] {
    match (scaling, product) {
        (Scaling::Tensorwise, _) => [ScaleOf::Tensor, ScaleOf::Tensor],
        (Scaling::Rowwise, Product::Forward) => [ScaleOf::Row, ScaleOf::Column],
        (Scaling::Rowwise, Product::Input) => [ScaleOf::Row, ScaleOf::Row],
        (Scaling::Rowwise, Product::Weight) => [ScaleOf::Column, ScaleOf::Column],
        (Scaling::Blockwise128, Product::Forward) => [ScaleOf::RowTile, ScaleOf::Block],
        (Scaling::Blockwise128, Product::Input) => [ScaleOf::Block, ScaleOf::RowTile],
        (Scaling::Blockwise128, Product::Weight) => [ScaleOf::ColumnTile, ScaleOf::ColumnTile],
    }
}

/// The number of the weight among the operands of a product.
fn weight_of(product: Product) -> Option<usize> {
    match product {
        Product::Forward => Some(1),
        Product::Input => Some(0),
        Product::Weight => None,
    }
}

impl LayerProduct {
    fn formats(&self) -> [Fp8; 2] {
        let float8 = self.float8();
        match self.product {
            Product::Forward => [float8.forward, float8.forward],
            Product::Input | Product::Weight => [float8.forward, float8.gradients],
        }
    }

    /// Returns how an operand is quantised.
    fn form(&self, operand: usize) -> Form {
        let float8 = self.float8();
        Form {
            of: scales(self.product, float8.scaling)[operand],
            format: self.formats()[operand],
            power_of_two: float8.has_powers_of_two(),
        }
    }
}

impl<O: Op> Rewrite<'_, O> {
    /// Returns the weights that are gathered in 8 bits.
    fn weights(&self, window: &Window<O>, layers: &Layers) -> Vec<Weight> {
        let mut made = vec![0; window.dies.len()];
        for (index, op) in window.ops.iter().enumerate() {
            for out in op.outputs() {
                made[out.id as usize] = index + 1;
            }
        }
        let mut weights: Vec<Weight> = Vec::new();
        let mut known: HashSet<(ValueIndex, Form)> = HashSet::new();
        for (used, (op, product)) in window.ops.iter().zip(&layers.products).enumerate() {
            let Some(product) = product.as_ref().filter(|product| product.gathers) else {
                continue;
            };
            let operand = weight_of(product.product);
            let Some((operand, weight)) = operand.and_then(|at| Some((at, op.inputs().nth(at)?)))
            else {
                continue;
            };
            let (value, form) = (self.first(weight.id), product.form(operand));
            if known.insert((value, form)) {
                weights.push(Weight {
                    value,
                    form,
                    made: made[value as usize],
                    used,
                    stage: product.spec.stage.clone(),
                });
            }
        }
        weights
    }

    /// Returns how the products of a window want what is quantised for them.
    fn ways(&self, window: &Window<O>, layers: &Layers) -> HashMap<Key, Ways> {
        let mut ways = HashMap::new();
        for (index, (op, product)) in window.ops.iter().zip(&layers.products).enumerate() {
            let Some(product) = product else {
                continue;
            };
            for (operand, input) in op.inputs().take(2).enumerate() {
                let is_weight = weight_of(product.product) == Some(operand);
                let visit = is_weight.then(|| self.visits.of(index as u32));
                let key = (self.first(input.id), product.form(operand), visit);
                let wanted = match product.product.is_turned(operand) {
                    true => Ways::Turned,
                    false => Ways::AsIs,
                };
                let known = ways.entry(key).or_insert(wanted);
                if *known != wanted {
                    *known = Ways::Both;
                }
            }
        }
        ways
    }

    /// Returns the first of the casts that are the same as this one.
    fn first(&self, value: ValueIndex) -> ValueIndex {
        self.first_cast.get(&value).copied().unwrap_or(value)
    }

    fn tensor(&self, value: ValueIndex) -> NewTensor {
        let (shape, dtype) = self.values[value as usize].clone();
        NewTensor {
            id: value,
            shape,
            dtype,
        }
    }

    /// Adds an operation and returns what it makes.
    fn op(
        &mut self,
        op: Float8Op,
        inputs: &[ValueIndex],
        shape: Vec<usize>,
        dtype: DType,
    ) -> ValueIndex {
        let out = self.value(shape, dtype);
        self.push(op, inputs, &[out]);
        out
    }

    fn push(&mut self, op: Float8Op, inputs: &[ValueIndex], outputs: &[ValueIndex]) {
        let [inputs, outputs] =
            [inputs, outputs].map(|ids| ids.iter().map(|id| self.tensor(*id)).collect());
        self.made
            .write(O::float8(op, inputs, outputs), Edit::Added, false);
    }

    fn value(&mut self, shape: Vec<usize>, dtype: DType) -> ValueIndex {
        self.values.push((shape, dtype));
        self.values.len() as ValueIndex - 1
    }

    fn amax(&mut self, value: ValueIndex, of: ScaleOf) -> ValueIndex {
        let shape = of.shape(&self.values[value as usize].0);
        self.op(Float8Op::Amax(of), &[value], shape, DType::F32)
    }

    fn scale(&mut self, amax: ValueIndex, form: Form) -> ValueIndex {
        let scale = Float8Op::Scale {
            format: form.format,
            power_of_two: form.power_of_two,
        };
        let shape = self.values[amax as usize].0.clone();
        self.op(scale, &[amax], shape, DType::F32)
    }

    fn quantize(
        &mut self,
        value: ValueIndex,
        scale: ValueIndex,
        form: Form,
        at_rest: bool,
        ways: Ways,
    ) -> Quantized {
        let quantize = Float8Op::Quantize {
            of: form.of,
            format: form.format,
            at_rest,
            ways,
        };
        let shape = self.values[value as usize].0.clone();
        let values = self.value(shape.clone(), self.store);
        let turned = match ways {
            Ways::Both => self.value(shape, self.store),
            Ways::AsIs | Ways::Turned => values,
        };
        let outputs = [values, turned];
        let count = if ways == Ways::Both { 2 } else { 1 };
        self.push(quantize, &[value, scale], &outputs[..count]);
        Quantized {
            values,
            turned,
            scale,
        }
    }

    /// Quantises weights where they rest. A gather brings them by rows.
    fn group(&mut self, group: &[Weight]) {
        let form = group[0].form;
        if form.of == ScaleOf::Block {
            // No rank has a part of a block: there is nothing to reduce.
            for weight in group {
                let amax = self.amax(weight.value, form.of);
                let scale = self.scale(amax, form);
                let quantized = self.quantize(weight.value, scale, form, true, Ways::AsIs);
                self.quantized.insert((weight.value, form, None), quantized);
            }
            return;
        }
        let maxima = group.iter().map(|weight| self.amax(weight.value, form.of));
        let maxima: Vec<ValueIndex> = maxima.collect();
        let all = match maxima[..] {
            [one] => one,
            _ => self.op(Float8Op::Stack, &maxima, vec![maxima.len()], DType::F32),
        };
        let scales = self.scale(all, form);
        for (index, weight) in group.iter().enumerate() {
            let scale = match group.len() {
                1 => scales,
                _ => {
                    let scale = self.value(vec![1], DType::F32);
                    let (from, to) = (self.tensor(scales), self.tensor(scale));
                    let slice = O::slice(from, 0, index..index + 1, to);
                    self.made.write(slice, Edit::Added, false);
                    scale
                }
            };
            let quantized = self.quantize(weight.value, scale, form, true, Ways::AsIs);
            self.quantized.insert((weight.value, form, None), quantized);
        }
    }

    /// Returns an operand in 8 bits.
    fn quantized(
        &mut self,
        index: u32,
        value: ValueIndex,
        form: Form,
        is_weight: bool,
    ) -> Quantized {
        let value = self.first(value);
        if let Some(known) = self.quantized.get(&(value, form, None)) {
            return *known;
        }
        // A weight that is gathered before is gathered again in the next visit: what is made of it goes with it.
        let visit = is_weight.then(|| self.visits.of(index));
        if let Some(known) = self.quantized.get(&(value, form, visit)) {
            return *known;
        }
        let amax = self.amax(value, form.of);
        let scale = self.scale(amax, form);
        let ways = self.ways.get(&(value, form, visit)).copied();
        let quantized = self.quantize(value, scale, form, false, ways.unwrap_or_default());
        self.quantized.insert((value, form, visit), quantized);
        quantized
    }

    fn product(&mut self, index: u32, op: &O, product: &LayerProduct, reduces_first: bool) {
        let mut operands: Vec<ValueIndex> = op.inputs().map(|input| input.id).collect();
        let which = product.product;
        let (float8, formats) = (product.float8(), product.formats());
        let scales = scales(which, float8.scaling);
        let scaled = match float8.scope {
            Scope::Rank => Float8Op::ProductOfRank {
                product: which,
                scales,
                formats,
                power_of_two: float8.has_powers_of_two(),
            },
            Scope::Global => {
                let [first, second] = [0, 1].map(|operand| {
                    let is_weight = weight_of(which) == Some(operand);
                    let form = product.form(operand);
                    let found = self.quantized(index, operands[operand], form, is_weight);
                    operands[operand] = match which.is_turned(operand) {
                        true => found.turned,
                        false => found.values,
                    };
                    found.scale
                });
                operands.splice(2..2, [first, second]);
                Float8Op::Product {
                    product: which,
                    scales,
                    formats,
                }
            }
        };
        let operands = operands.into_iter().map(|id| self.tensor(id)).collect();
        let out = op.outputs().next().expect("a product has a result");
        let made = O::float8(scaled, operands, vec![NewTensor::from(out)]);
        self.made.write(made, Edit::Replaced(index), reduces_first);
    }
}
