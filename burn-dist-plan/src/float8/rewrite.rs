//! A window with its products in float8.
//!
//! What is quantised is quantised once and serves every product that takes it in this form: `q`, `k` and `v` share an
//! `x`, the forward and the backward a weight and an `x`, which takes less memory in 8 bits than any cast of it. Weights that rest are quantised where they rest and gathered as bytes;
//! their absolute maxima are reduced together.

use std::collections::HashMap;

use super::layers::{LayerProduct, Layers};
use super::op::{Float8Op, Product, ScaleOf};
use crate::mesh::DType;
use crate::op::{NewTensor, Op};
use crate::policy::{Fp8, Scaling};
use crate::precision::Precise;
use crate::units::Visits;
use crate::window::{ValueIndex, Window};

/// A tensor in 8 bits, and its scale.
#[derive(Clone, Copy, Debug)]
struct Quantized {
    values: ValueIndex,
    scale: ValueIndex,
}

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
    product: LayerProduct,
}

struct Rewrite<'a, O> {
    visits: &'a Visits,
    values: Vec<(Vec<usize>, DType)>,
    ops: Vec<(O, bool)>,
    /// Weights that are gathered in 8 bits and have no scale yet.
    weights: Vec<Weight>,
    /// Which values are made so far.
    made: Vec<bool>,
    /// Of casts of one value to one type, the first: in another visit a cast is made again.
    first_cast: HashMap<ValueIndex, ValueIndex>,
    /// Tensors in 8 bits, by the visit in which they are of use; that of activations and of what is gathered in 8 bits
    /// is none: they are of use as long as they are there.
    quantized: HashMap<(ValueIndex, Form, Option<u32>), Quantized>,
}

/// Puts scaled products in 8 bits in the place of `layers`.
pub(crate) fn rewrite<O: Op>(
    window: &Window<O>,
    reduces_first: &[bool],
    visits: &Visits,
    layers: &Layers,
) -> Precise<O> {
    let mut rewrite = Rewrite {
        visits,
        values: vec![(Vec::new(), DType::F32); window.dies.len()],
        ops: Vec::with_capacity(window.ops.len()),
        weights: Vec::new(),
        made: vec![false; window.dies.len()],
        first_cast: first_casts(window),
        quantized: HashMap::new(),
    };
    for input in &window.inputs {
        rewrite.values[input.value as usize] = (input.shape.clone(), input.dtype);
        rewrite.made[input.value as usize] = true;
    }
    for out in window.ops.iter().flat_map(Op::outputs) {
        rewrite.values[out.id as usize] = (out.shape.to_vec(), out.dtype);
    }
    for (op, product) in window.ops.iter().zip(&layers.products) {
        if let Some(product) = product {
            rewrite.note_weight(op, product);
        }
    }
    for (index, op) in window.ops.iter().enumerate() {
        let reduces_first = reduces_first.get(index) == Some(&true);
        match &layers.products[index] {
            Some(product) => rewrite.product(index as u32, op, product, reduces_first),
            None => rewrite.ops.push((op.clone(), reduces_first)),
        }
        for out in op.outputs() {
            rewrite.made[out.id as usize] = true;
        }
    }
    let mut dies = window.dies.clone();
    dies.resize(rewrite.values.len(), true);
    let (ops, reduces_first) = rewrite.ops.into_iter().unzip();
    Precise {
        window: Window {
            ops,
            inputs: window.inputs.clone(),
            dies,
            reads: window.reads.clone(),
            hash: window.hash,
        },
        reduces_first,
    }
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

/// What shares a scale, of each operand of a product: along what is added up.
fn scales(product: Product, scaling: Scaling) -> [ScaleOf; 2] {
    match (scaling, product) {
        (Scaling::Tensorwise, _) => [ScaleOf::Tensor, ScaleOf::Tensor],
        (Scaling::Rowwise, Product::Forward) => [ScaleOf::Row, ScaleOf::Column],
        (Scaling::Rowwise, Product::Input) => [ScaleOf::Row, ScaleOf::Row],
        (Scaling::Rowwise, Product::Weight) => [ScaleOf::Column, ScaleOf::Column],
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

    /// Whether its weight is quantised where it rests.
    fn gathers(&self) -> bool {
        let float8 = self.float8();
        float8.gather && float8.scaling == Scaling::Tensorwise && self.spec.at_rest
    }
}

impl<O: Op> Rewrite<'_, O> {
    fn note_weight(&mut self, op: &O, product: &LayerProduct) {
        let Some(operand) = weight_of(product.product).filter(|_| product.gathers()) else {
            return;
        };
        let weight = op.inputs().nth(operand);
        let value = self.first(weight.expect("a product has two operands").id);
        let form = product.form(operand);
        let is_known = |known: &Weight| (known.value, known.form) == (value, form);
        if !self.weights.iter().any(is_known) {
            self.weights.push(Weight {
                value,
                form,
                product: product.clone(),
            });
        }
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
        let inputs = inputs.iter().map(|input| self.tensor(*input)).collect();
        self.ops
            .push((O::float8(op, inputs, self.tensor(out)), false));
        out
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
    ) -> Quantized {
        let quantize = Float8Op::Quantize {
            of: form.of,
            format: form.format,
            at_rest,
        };
        let shape = self.values[value as usize].0.clone();
        let values = self.op(quantize, &[value, scale], shape, DType::U8);
        Quantized { values, scale }
    }

    /// Quantises the weights that are there where they rest, those of one stage and format together.
    fn weights_like(&mut self, value: ValueIndex, form: Form) {
        let at = |weight: &Weight| weight.value == value && weight.form == form;
        let Some(first) = self.weights.iter().position(at) else {
            return;
        };
        let stage = self.weights[first].product.spec.stage.clone();
        let made = &self.made;
        let (group, rest): (Vec<Weight>, Vec<Weight>) =
            self.weights.drain(..).partition(|weight| {
                made[weight.value as usize]
                    && weight.form == form
                    && weight.product.spec.stage == stage
            });
        self.weights = rest;
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
                    self.ops.push((slice, false));
                    scale
                }
            };
            let quantized = self.quantize(weight.value, scale, form, true);
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
        if is_weight {
            self.weights_like(value, form);
        }
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
        let quantized = self.quantize(value, scale, form, false);
        self.quantized.insert((value, form, visit), quantized);
        quantized
    }

    fn product(&mut self, index: u32, op: &O, product: &LayerProduct, reduces_first: bool) {
        let inputs: Vec<ValueIndex> = op.inputs().map(|input| input.id).collect();
        let weight = weight_of(product.product);
        let [first, second] = [0, 1].map(|operand| {
            let form = product.form(operand);
            self.quantized(index, inputs[operand], form, weight == Some(operand))
        });
        let mut operands = vec![first.values, second.values, first.scale, second.scale];
        operands.extend(inputs.get(2));
        let operands = operands.into_iter().map(|id| self.tensor(id)).collect();
        let scaled = Float8Op::Product {
            product: product.product,
            scales: scales(product.product, product.float8().scaling),
            formats: product.formats(),
        };
        let out = op.outputs().next().expect("a product has a result");
        self.ops.push((
            O::float8(scaled, operands, NewTensor::from(out)),
            reduces_first,
        ));
    }
}
