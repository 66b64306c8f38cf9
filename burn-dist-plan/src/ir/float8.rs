//! What float8 training computes beside what a program records.

use std::ops::Range;

use super::traits::{Adjoint, FloatClass, Layer, Traits, Work};
use crate::mesh::{DType, ReduceOp};
use crate::policy::Fp8;
use crate::rule::{Lowering, OpRule, RuleBuilder, Shapes};

/// The sides of the blocks, and the length of the tiles, whose elements share a scale (DeepSeek-V3).
pub const BLOCK: usize = 128;

/// Which elements of a tensor share a scale. Blocks and tiles are counted from the first element of the global tensor;
/// the last of a dim may have fewer elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleOf {
    /// All: the scale is one element.
    Tensor,
    /// Those along the last dim, which has size one in the scale.
    Row,
    /// Those along all dims but the last, which is the only one of the scale.
    Column,
    /// Every [`BLOCK`] neighbours along the last dim.
    RowTile,
    /// Every [`BLOCK`] neighbours along the last dim but one.
    ColumnTile,
    /// Every [`BLOCK`] x [`BLOCK`] elements of the last two dims.
    Block,
}

/// How the bytes of a tensor in 8 bits lie on a device. No value depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ways {
    /// By rows.
    #[default]
    AsIs,
    /// By columns: what is along the last dim is far apart.
    Turned,
    /// Both, as two results: by rows, and by columns.
    Both,
}

/// A product of a linear layer `y = x W (+ b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// The result, of `x`, `W` and perhaps `b`.
    Forward,
    /// The gradient of `x`, of `W` and that of the result.
    Input,
    /// The gradient of `W`, of `x` and that of the result.
    Weight,
}

/// How the inner backend stores values of float8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float8Store {
    /// As bytes, or as f32 where it has no tensors of bytes.
    pub dtype: DType,
    /// True if its products want operands by rows and by columns.
    pub turns: bool,
}

/// One operation. Tensors in float8 travel as bytes, each with the scale that its values were multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float8Op {
    /// The largest absolute value, in f32; NaN if any is. Of a tensor without elements, zero.
    Amax(ScaleOf),
    /// Absolute maxima of whole tensors in one tensor.
    Stack,
    /// `max / clamp(amax, 1e-12)`, elementwise and in f32: what brings the largest value to the largest of the format.
    Scale {
        /// The format.
        format: Fp8,
        /// True if it is rounded down to a power of two.
        power_of_two: bool,
    },
    /// `x * scale` in 8 bits: to nearest, even of two, and no further than the largest finite value.
    Quantize {
        /// Which elements share a scale.
        of: ScaleOf,
        /// The format.
        format: Fp8,
        /// True if a tensor at rest is quantised where it rests.
        at_rest: bool,
        /// How bytes lie, on devices where products want them so.
        ways: Ways,
    },
    /// A product of two tensors in 8 bits: inputs are the two, their scales, and perhaps a bias. Added up in f32, and
    /// divided by the scales.
    Product {
        /// Which.
        product: Product,
        /// What shares a scale, of each operand.
        scales: [ScaleOf; 2],
        /// The format of each operand.
        formats: [Fp8; 2],
    },
    /// The same product of two tensors that are not in 8 bits, and perhaps a bias: each rank finds scales of what it
    /// holds and casts before it multiplies.
    ProductOfRank {
        /// Which.
        product: Product,
        /// What shares a scale, of each operand.
        scales: [ScaleOf; 2],
        /// The format of each operand.
        formats: [Fp8; 2],
        /// True if scales are rounded down to powers of two.
        power_of_two: bool,
    },
}

impl Float8Op {
    /// Returns its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Amax(_) => "f8_amax",
            Self::Stack => "f8_stack",
            Self::Scale { .. } => "f8_scale",
            Self::Quantize { .. } => "f8_quantize",
            Self::Product { product, .. } => match product {
                Product::Forward => "f8_linear",
                Product::Input => "f8_linear_x_backward",
                Product::Weight => "f8_linear_weight_backward",
            },
            Self::ProductOfRank { product, .. } => match product {
                Product::Forward => "f8_linear_of_rank",
                Product::Input => "f8_linear_x_backward_of_rank",
                Product::Weight => "f8_linear_weight_backward_of_rank",
            },
        }
    }

    /// Returns what of it may be split over ranks.
    pub fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            Self::Amax(of) => {
                let notation = match of.in_blocks() {
                    Some((dims, _)) => format!("{dims} -> {dims}"),
                    None => match of {
                        ScaleOf::Row => "... i -> ... -".into(),
                        ScaleOf::Column => "... i -> i".into(),
                        _ => "... -> -".into(),
                    },
                };
                let rule = RuleBuilder::notation(shapes, &notation);
                of.cut(rule).contract(ReduceOp::Max).build()
            }
            Self::Stack => {
                let inputs: Vec<usize> = (0..shapes.inputs.len()).collect();
                RuleBuilder::uniform(shapes, "-")
                    .joint_moves(&inputs)
                    .build()
            }
            Self::Scale { .. } => RuleBuilder::uniform(shapes, "...").elementwise().build(),
            Self::Quantize { of, at_rest, .. } => {
                let (values, scale) = match of.in_blocks() {
                    Some((dims, _)) => (dims, dims),
                    None => match of {
                        ScaleOf::Row => ("... i", "... -"),
                        ScaleOf::Column => ("... i", "i"),
                        _ => ("...", "-"),
                    },
                };
                let made = vec![values; shapes.outputs.len()].join(", ");
                let notation = format!("{values}, {scale} -> {made}");
                let rule = of.cut(RuleBuilder::notation(shapes, &notation));
                match at_rest {
                    true => rule.elementwise().build(),
                    false => rule.build(),
                }
            }
            Self::ProductOfRank { product, .. } => {
                let has_bias = shapes.inputs.len() > 2;
                let notation = match (product, has_bias) {
                    (Product::Forward, false) => "... i, i o -> ... o",
                    (Product::Forward, true) => "... i, i o, o -> ... o",
                    (Product::Input, _) => "i o, ... o -> ... i",
                    (Product::Weight, _) => "... i, ... o -> i o",
                };
                let rule = RuleBuilder::notation(shapes, notation);
                product_rule(rule, has_bias)
            }
            Self::Product {
                product, scales, ..
            } => {
                let in_tiles = scales.contains(&ScaleOf::ColumnTile);
                let [first, second] = match product {
                    Product::Forward => ["... i", "i o"],
                    Product::Input => ["i o", "... o"],
                    Product::Weight if in_tiles => ["... t i", "... t o"],
                    Product::Weight => ["... i", "... o"],
                };
                let scale = |operand: &str, of: ScaleOf| match (of, operand.rsplit_once(' ')) {
                    (ScaleOf::Row, Some((rows, _))) => format!("{rows} -"),
                    (ScaleOf::Column, Some((_, columns))) => columns.to_string(),
                    (ScaleOf::RowTile | ScaleOf::ColumnTile | ScaleOf::Block, _) => operand.into(),
                    _ => "-".to_string(),
                };
                let (s1, s2) = (scale(first, scales[0]), scale(second, scales[1]));
                let has_bias = shapes.inputs.len() > 4;
                let bias = if has_bias { ", o" } else { "" };
                let out = match product {
                    Product::Forward => "... o",
                    Product::Input => "... i",
                    Product::Weight => "i o",
                };
                let notation = format!("{first}, {second}, {s1}, {s2}{bias} -> {out}");
                let rule = RuleBuilder::notation(shapes, &notation);
                let cut = match (product, scales) {
                    (_, [ScaleOf::ColumnTile, _]) => "t",
                    (_, [ScaleOf::Block, _] | [_, ScaleOf::Block]) => "io",
                    _ => "",
                };
                product_rule(in_blocks(rule, cut), has_bias)
            }
        }
    }

    /// Returns what is known of it besides.
    pub fn traits(&self) -> Traits {
        let (weight, gradient) = (0, 1);
        let traits = Traits {
            float_class: FloatClass::Recorded,
            ..Traits::default()
        };
        match self {
            Self::Amax(_) => Traits {
                measures: true,
                ..traits
            },
            Self::Quantize { .. } => Traits {
                is_cast: true,
                quantizes: true,
                ..traits
            },
            Self::Product { product, .. } | Self::ProductOfRank { product, .. } => match product {
                Product::Forward => Traits {
                    layer: Some(Layer::Linear),
                    work: Work::Layer,
                    adjoint: Some(Adjoint::Forward { x: 0, weight: 1 }),
                    ..traits
                },
                Product::Input => Traits {
                    adjoint: Some(Adjoint::Input { weight, gradient }),
                    ..traits
                },
                Product::Weight => Traits {
                    adjoint: Some(Adjoint::Weight { x: 0, gradient }),
                    makes_weight_gradient: true,
                    ..traits
                },
            },
            Self::Stack | Self::Scale { .. } => traits,
        }
    }

    /// Returns how many inputs a product has besides a bias.
    pub fn num_operands(&self) -> Option<usize> {
        match self {
            Self::Product { .. } => Some(4),
            Self::ProductOfRank { .. } => Some(2),
            _ => None,
        }
    }

    /// Returns whether it is a product of operands in 8 bits.
    pub fn is_product(&self) -> bool {
        matches!(self, Self::Product { .. } | Self::ProductOfRank { .. })
    }

    /// Returns the flops of a product.
    pub fn product_flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        let (Self::Product { product, .. } | Self::ProductOfRank { product, .. }) = self else {
            return None;
        };
        let numel = |shape: &[usize]| shape.iter().product::<usize>() as f64;
        let last = |input: usize| *shapes.inputs[input].last().unwrap_or(&1) as f64;
        Some(match product {
            Product::Forward | Product::Input => 2.0 * numel(shapes.outputs[0]) * last(0),
            Product::Weight => 2.0 * numel(shapes.inputs[0]) * last(1),
        })
    }
}

impl Product {
    /// Returns whether a device whose products add up along rows wants an operand by columns.
    pub fn is_turned(self, operand: usize) -> bool {
        match self {
            Self::Forward => operand == 1,
            Self::Input => false,
            Self::Weight => true,
        }
    }
}

impl ScaleOf {
    /// Returns the shape of the scales of a tensor.
    pub fn shape(self, shape: &[usize]) -> Vec<usize> {
        match (self, shape.split_last()) {
            (Self::Row, Some((_, rows))) => rows.iter().copied().chain([1]).collect(),
            (Self::Column, Some((columns, _))) => vec![*columns],
            (Self::RowTile | Self::ColumnTile | Self::Block, _) => {
                let from_last = |dim: usize| shape.len() - dim;
                let sizes = shape.iter().enumerate();
                let blocks = sizes.map(|(dim, &size)| match (self, from_last(dim)) {
                    (Self::RowTile | Self::Block, 1) | (Self::ColumnTile | Self::Block, 2) => {
                        size.div_ceil(BLOCK)
                    }
                    _ => size,
                });
                blocks.collect()
            }
            _ => vec![1],
        }
    }

    /// Returns which scale an element of a tensor of this shape has.
    pub fn index(self, shape: &[usize], element: usize) -> usize {
        let width = shape.last().map_or(1, |&size| size.max(1));
        let (first, neighbours) = self.of_row(shape, element / width);
        first + element % width / neighbours
    }

    /// Returns neighbours among the elements of a tensor of this shape that have one scale, and which, in order.
    pub fn runs(self, shape: &[usize]) -> impl Iterator<Item = (Range<usize>, usize)> {
        let width = shape.last().map_or(1, |&size| size);
        let rows = shape.iter().product::<usize>() / width.max(1);
        (0..rows).flat_map(move |row| {
            let (first, neighbours) = self.of_row(shape, row);
            let (start, end) = (row * width, (row + 1) * width);
            let starts = (start..end).step_by(neighbours).zip(first..);
            starts.map(move |(at, scale)| (at..(at + neighbours).min(end), scale))
        })
    }

    /// Returns which scale the first element of a row has, and how many neighbours share it, and each one after it.
    fn of_row(self, shape: &[usize], row: usize) -> (usize, usize) {
        let (width, rows) = match shape {
            [.., rows, width] => ((*width).max(1), (*rows).max(1)),
            [width] => ((*width).max(1), 1),
            [] => (1, 1),
        };
        // The rows of the matrices before, in blocks.
        let row_of_blocks = row / rows * rows.div_ceil(BLOCK) + row % rows / BLOCK;
        match self {
            Self::Tensor => (0, width),
            Self::Row => (row, width),
            Self::Column => (0, 1),
            Self::RowTile => (row * width.div_ceil(BLOCK), BLOCK),
            Self::ColumnTile => (row_of_blocks * width, 1),
            Self::Block => (row_of_blocks * width.div_ceil(BLOCK), BLOCK),
        }
    }

    /// Returns the names of the dims of a tensor that is quantised in blocks, and of those that are cut into blocks.
    fn in_blocks(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::RowTile => Some(("... i", "i")),
            Self::ColumnTile => Some(("... t i", "t")),
            Self::Block => Some(("... i o", "io")),
            Self::Tensor | Self::Row | Self::Column => None,
        }
    }

    /// Lets no split cut a block.
    fn cut(self, rule: RuleBuilder) -> RuleBuilder {
        in_blocks(rule, self.in_blocks().map_or("", |(_, names)| names))
    }
}

/// Lets no split cut a block along the dims of these names.
fn in_blocks(rule: RuleBuilder, names: &str) -> RuleBuilder {
    let names = names.chars();
    names.fold(rule, |rule, name| rule.blocks(name, BLOCK))
}

/// Returns the rule of a product: of one with a bias, one rank alone adds it.
fn product_rule(rule: RuleBuilder, has_bias: bool) -> OpRule {
    let rule = rule.contract(ReduceOp::Sum);
    match has_bias {
        true => rule.lowering(Lowering::Special).build(),
        false => rule.build(),
    }
}

#[cfg(test)]
mod tests;
