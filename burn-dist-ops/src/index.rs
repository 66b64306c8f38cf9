//! Operations that read or write at indices, some of which may be of other ranks.
//!
//! `v` is the dim that the indices point into. Reads from a split `v` mask what lies on other ranks and give a partial
//! sum; writes into a split `v` mask likewise and leave the result split. `n` is the dim of the indices. Writes that
//! add may split `n`: then the first member of the group adds its terms to the tensor, the others to zeros. Bools have
//! no sum, so they take neither.
//!
//! Where an index repeats, `Assign` keeps one of the values, as the backend does.

use std::ops::Range;

use burn_backend::tensor::{IndexingUpdateOp, IntTensor};
use burn_backend::{DType, TensorMetadata};
use burn_dist_plan::op::{self, Indexed, LocalView};

use super::convert::{bool_of_int, int_of_bool};
use super::dtype::to_burn;
use super::family::Family;
use super::family::prelude::*;
use super::formula::{formula, is_last};
use super::kinds::{Arithmetics, Bool, Float, Int};
use super::name;
use super::places::{WRITES_IN_PLACE, written};
use super::table::family_of;
use burn_dist_plan::layout::DimLayout;

family! {
    Index |cx, op| by_kind(K: Updates) {
        Gather(GatherOpIr) K = K::gather(op.dim, cx.take::<K>(&op.tensor), cx.int(&op.indices)),
        Select(SelectOpIr) K = K::select(cx.take::<K>(&op.tensor), op.dim, cx.int(&op.indices)),
        GatherNd(GatherNdOpIr) K = K::read_nd(cx.take::<K>(&op.data), cx.int(&op.indices)),
        Scatter(ScatterOpIr) K = {
            let (tensor, indices) = (cx.take::<K>(&op.tensor), cx.int(&op.indices));
            K::write(tensor, At::Elements(op.dim), indices, cx.take::<K>(&op.value), op.update)
        },
        SelectAssign(SelectAssignOpIr) K = {
            let (tensor, indices) = (cx.take::<K>(&op.tensor), cx.int(&op.indices));
            K::write(tensor, At::Rows(op.dim), indices, cx.take::<K>(&op.value), op.update)
        },
        ScatterNd(ScatterNdOpIr) K = {
            let (data, indices) = (cx.take::<K>(&op.data), cx.int(&op.indices));
            K::write(data, At::Places, indices, cx.take::<K>(&op.values), op.reduction)
        },
    }
}

impl Operation for Index<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self {
            // `out[i, n] = tensor[i, indices[i, n]]`. The other dims line up only if the indices cover them.
            Self::Gather(op) => {
                let indices = dims_but(&op.indices, op.dim, 'n');
                let inputs = vec![dims_but(&op.tensor, op.dim, 'v'), indices.clone()];
                read_rule(shapes, &op.tensor, inputs, indices)
            }
            // `out[i, n] = tensor[i, indices[n]]`.
            Self::Select(op) => {
                let inputs = vec![dims_but(&op.tensor, op.dim, 'v'), vec!['n'.into()]];
                read_rule(shapes, &op.tensor, inputs, dims_but(&op.out, op.dim, 'n'))
            }
            // `out[i, indices[i, n]] += value[i, n]`.
            Self::Scatter(op) => {
                let indices = dims_but(&op.indices, op.dim, 'n');
                let value = indices.clone();
                write_rule(shapes, &op.tensor, op.dim, op.update, indices, value)
            }
            // `out[i, indices[n]] += value[i, n]`.
            Self::SelectAssign(op) => {
                let value = dims_but(&op.value, op.dim, 'n');
                write_rule(
                    shapes,
                    &op.tensor,
                    op.dim,
                    op.update,
                    vec!['n'.into()],
                    value,
                )
            }
            Self::GatherNd(op) => {
                let [data, indices, values] = places(&op.data, &op.indices);
                let rule = RuleBuilder::named(shapes, vec![data, indices], vec![values]);
                rule.linear().build()
            }
            Self::ScatterNd(op) => {
                let [data, indices, values] = places(&op.data, &op.indices);
                let inputs = vec![data.clone(), indices, values];
                let mut rule = RuleBuilder::named(shapes, inputs, vec![data]);
                let (_, n, terms) = write_kinds(&op.data, op.reduction);
                for dim in dims(&op.indices).into_iter().rev().skip(1) {
                    rule = rule.kind(dim, n);
                }
                rule.joint_linear(terms).lowering(Lowering::Special).build()
            }
        }
    }

    fn lower(&self, local: &Local<'_>, rule: &Rule, emit: &mut Emit<'_>) {
        match *self {
            Self::Gather(&GatherOpIr { dim, .. }) => {
                read_here(local, rule, dim, emit, same, |tensor, indices, out| {
                    let op = |out| GatherOpIr {
                        tensor,
                        dim,
                        indices,
                        out,
                    };
                    base(out.dtype, BaseOperationIr::Gather(op(out)))
                })
            }
            Self::Select(&SelectOpIr { dim, .. }) => {
                read_here(local, rule, dim, emit, rows(dim), |tensor, indices, out| {
                    let op = |out| SelectOpIr {
                        tensor,
                        dim,
                        indices,
                        out,
                    };
                    base(out.dtype, BaseOperationIr::Select(op(out)))
                })
            }
            Self::Scatter(&ScatterOpIr { dim, update, .. }) => {
                let [tensor, indices, value, out] = write_here(local, rule, dim, emit, same);
                let op = |out| ScatterOpIr {
                    tensor,
                    dim,
                    indices,
                    value,
                    update,
                    out,
                };
                emit.push(base(out.dtype, BaseOperationIr::Scatter(op(out))));
            }
            Self::SelectAssign(&SelectAssignOpIr { dim, update, .. }) => {
                let [tensor, indices, value, out] = write_here(local, rule, dim, emit, rows(dim));
                let op = |out| SelectAssignOpIr {
                    tensor,
                    dim,
                    indices,
                    value,
                    update,
                    out,
                };
                emit.push(base(out.dtype, BaseOperationIr::SelectAssign(op(out))));
            }
            Self::ScatterNd(op) => {
                let scatter = ScatterNdOpIr {
                    data: target(local, emit),
                    indices: local.local_input(1),
                    values: local.local_input(2),
                    reduction: op.reduction,
                    out: local.local_outputs().remove(0),
                };
                emit.push(base(op.out.dtype, BaseOperationIr::ScatterNd(scatter)));
            }
            Self::GatherNd(_) => local.same(emit),
        }
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Move
    }

    /// A formula for writes that add one number to each row.
    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::Scatter(op) if adds_to_rows(op) => {
                let operands = [&op.tensor, &op.indices, &op.value];
                formula(operands, &op.out, |_, [x, index, value]| {
                    x.add_at(index, value)
                })
            }
            _ => None,
        }
    }

    fn traits(&self) -> Traits {
        let (table, indices) = (0, 1);
        Traits {
            indexing: match self {
                Self::Gather(op) => Some((op::Indexing::Read, op.dim)),
                Self::Select(op) => Some((op::Indexing::Read, op.dim)),
                Self::Scatter(op) => Some((op::Indexing::Write, op.dim)),
                Self::SelectAssign(op) => Some((op::Indexing::Write, op.dim)),
                Self::GatherNd(_) | Self::ScatterNd(_) => None,
            },
            // burn-router records an embedding as a select on its weights.
            layer: matches!(self, Self::Select(_)).then_some(Layer::Lookup),
            adjoint: match self {
                Self::Select(_) | Self::Gather(_) => Some(Adjoint::Read { table, indices }),
                Self::SelectAssign(_) | Self::Scatter(_) => Some(Adjoint::Written { indices }),
                Self::GatherNd(_) | Self::ScatterNd(_) => None,
            },
            ..Traits::default()
        }
    }

    /// Nothing is written into a tensor; of an empty one, nothing can be read.
    fn of_nothing(&self) -> Option<OfNothing> {
        let values = 2;
        match self {
            Self::Scatter(_) | Self::SelectAssign(_) | Self::ScatterNd(_) => {
                OfNothing::from(values, Nothing::First)
            }
            Self::Gather(_) | Self::Select(_) | Self::GatherNd(_) => None,
        }
    }

    fn makes(&self) -> bool {
        match self {
            Self::Gather(_) | Self::Select(_) => true,
            Self::Scatter(_) | Self::SelectAssign(_) => !WRITES_IN_PLACE,
            Self::GatherNd(_) | Self::ScatterNd(_) => false,
        }
    }

    fn place(&self, kind: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match (self, kind) {
            // A scatter of bools makes a new tensor.
            (Self::Scatter(_), Kind::Float | Kind::Int) | (Self::SelectAssign(_), _) => {
                written(inputs, shape)
            }
            _ => Place::New(Strided::contiguous(shape)),
        }
    }
}

impl<'a> Index<'a> {
    /// Returns what it reads or writes along one dim.
    fn indexing(&self) -> Option<Indexing<'a>> {
        Some(match self {
            Self::Gather(op) => Indexing::new(&op.tensor, op.dim, &op.indices, &op.out),
            Self::Scatter(op) => Indexing::new(&op.tensor, op.dim, &op.indices, &op.out),
            Self::Select(op) => Indexing::new(&op.tensor, op.dim, &op.indices, &op.out),
            Self::SelectAssign(op) => Indexing::new(&op.tensor, op.dim, &op.indices, &op.out),
            Self::GatherNd(_) | Self::ScatterNd(_) => return None,
        })
    }
}

/// Returns whether a write adds one number to each row, along the last dim, of more than one element.
fn adds_to_rows(op: &ScatterOpIr) -> bool {
    let is_one = |of: &TensorIr| of.shape[op.dim] == 1;
    is_last(&op.tensor, op.dim)
        && op.update == IndexingUpdateOp::Add
        && !matches!(op.tensor.dtype, DType::Bool(_))
        && is_one(&op.indices)
        && !is_one(&op.tensor)
        && op.indices.shape[..op.dim] == op.tensor.shape[..op.dim]
}

/// A read or a write at indices along one dim.
pub struct Indexing<'a> {
    /// The tensor that is read or written.
    pub tensor: &'a TensorIr,
    /// The dim that indices are of.
    pub dim: usize,
    /// The indices.
    pub indices: &'a TensorIr,
    /// The result.
    pub out: &'a TensorIr,
}

impl<'a> Indexing<'a> {
    pub(super) fn new(
        tensor: &'a TensorIr,
        dim: usize,
        indices: &'a TensorIr,
        out: &'a TensorIr,
    ) -> Self {
        Self {
            tensor,
            dim,
            indices,
            out,
        }
    }
}

/// Returns what an operation reads or writes at indices along one dim, if it does.
pub fn indexing(op: &OperationIr) -> Option<Indexing<'_>> {
    match family_of(op).1 {
        Family::Index(op) => op.indexing(),
        Family::Embedding(op) => Some(op.indexing()),
        _ => None,
    }
}

/// Returns what an operation does globally, if it reads or writes at indices along one dim.
pub(super) fn indexed(op: &OperationIr, view: &LocalView<'_>) -> Option<Indexed> {
    let Indexing { tensor, dim, .. } = indexing(op)?;
    let split = match view.rule {
        OpRule::Factors(rule) => {
            // Of a table that is there for its shape, the result is split.
            let operand = match rule.inputs[0].shape_only {
                true => &rule.outputs[0],
                false => &rule.inputs[0],
            };
            view.split(&operand.dims, dim)
        }
        _ => None,
    };
    let inputs = op
        .inputs()
        .map(|t| format!("{} {:?}", t.dtype.name(), t.shape.to_vec()));
    Some(Indexed {
        op: format!("{}({})", name(op), inputs.collect::<Vec<_>>().join(", ")),
        shape: tensor.shape.to_vec(),
        dim,
        start: split.map_or(0, |split| view.range(split).start),
    })
}

fn read_rule(
    shapes: &Shapes<'_>,
    tensor: &TensorIr,
    inputs: Vec<Vec<Name>>,
    out: Vec<Name>,
) -> OpRule {
    let v = match tensor.dtype.is_bool() {
        true => FactorKind::Whole,
        false => FactorKind::Index,
    };
    RuleBuilder::named(shapes, inputs, vec![out])
        .kind('v', v)
        .linear()
        .lowering(Lowering::Special)
        .build()
}

fn write_rule(
    shapes: &Shapes<'_>,
    tensor: &TensorIr,
    dim: usize,
    update: IndexingUpdateOp,
    indices: Vec<Name>,
    value: Vec<Name>,
) -> OpRule {
    let (v, n, terms) = write_kinds(tensor, update);
    let names = dims_but(tensor, dim, 'v');
    RuleBuilder::named(shapes, vec![names.clone(), indices, value], vec![names])
        .kind('v', v)
        .kind('n', n)
        .joint_linear(terms)
        .lowering(Lowering::Special)
        .build()
}

/// The kinds of `v` and `n` in a write, and the inputs that it is linear in together: the terms of a sum may be added
/// on different ranks.
fn write_kinds(
    tensor: &TensorIr,
    update: IndexingUpdateOp,
) -> (FactorKind, FactorKind, &'static [usize]) {
    match update == IndexingUpdateOp::Add && !tensor.dtype.is_bool() {
        true => (
            FactorKind::Index,
            FactorKind::Reduce(ReduceOp::Sum),
            &[0, 2],
        ),
        false => (FactorKind::Whole, FactorKind::Whole, &[]),
    }
}

/// The names of `data`, `indices` and `values` of the n-dimensional ops: the last dim of the indices is a place in the
/// first dims of the data, the others number the places; the remaining dims of the data come along.
fn places(data: &TensorIr, indices: &TensorIr) -> [Vec<Name>; 3] {
    let lead = indices.shape.num_dims() - 1;
    let depth = indices.shape[lead];
    let rest = (depth..data.shape.num_dims()).map(|dim| Name::Dim(lead + dim));
    let numbered: Vec<Name> = (0..lead).map(Name::Dim).collect();
    let data = vec![Name::Whole; depth].into_iter().chain(rest.clone());
    [
        data.collect(),
        numbered.iter().copied().chain([Name::Whole]).collect(),
        numbered.iter().copied().chain(rest).collect(),
    ]
}

/// Indices into the range of this rank, and where they would have pointed elsewhere (there they point to the first
/// element instead).
pub(super) struct Here {
    pub indices: TensorIr,
    pub elsewhere: TensorIr,
}

/// Finds the indices into `split` that fall into the range of the rank.
pub(super) fn here(local: &Local, split: &DimLayout, indices: TensorIr, emit: &mut Emit) -> Here {
    let Range { start, end } = local.range(split);
    let indices = wide(indices, emit);
    let shape = indices.shape.to_vec();
    let bool = to_burn(burn_dist_mesh::DType::Bool(local.bool_store));
    let compare = |op: fn(ScalarOpIr) -> NumericOperationIr, bound, emit: &mut Emit| {
        let out = emit.tensor(shape.clone(), bool);
        with_int(emit, op, &indices, bound, &out);
        out
    };
    let below = (start > 0).then(|| compare(NumericOperationIr::LowerElem, start, emit));
    let above =
        (end < split.size()).then(|| compare(NumericOperationIr::GreaterEqualElem, end, emit));
    let elsewhere = match (below, above) {
        (Some(below), Some(above)) => {
            let out = emit.temp(&below, shape.clone());
            emit.push(OperationIr::Bool(BoolOperationIr::Or(BinaryOpIr {
                lhs: read(&below),
                rhs: read(&above),
                out: out.clone(),
            })));
            out
        }
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => unreachable!("a split range lacks something, or the rank holds nothing"),
    };
    // Mask before shifting, so that unsigned indices do not wrap.
    let safe = emit.temp(&indices, shape.clone());
    let first = ScalarIr::Int(start as i64);
    emit.mask_fill(&indices, &elsewhere, first, safe.clone());
    let shifted = match start {
        0 => safe,
        _ => {
            let out = emit.temp(&safe, shape);
            with_int(emit, NumericOperationIr::SubScalar, &safe, start, &out);
            out
        }
    };
    Here {
        indices: read(&shifted),
        elsewhere: read(&elsewhere),
    }
}

/// Emits an operation of ints and a number.
fn with_int(
    emit: &mut Emit,
    op: fn(ScalarOpIr) -> NumericOperationIr,
    lhs: &TensorIr,
    number: usize,
    out: &TensorIr,
) {
    let (lhs, rhs, out) = (read(lhs), ScalarIr::Int(number as i64), out.clone());
    let dtype = lhs.dtype;
    emit.push(OperationIr::NumericInt(
        dtype,
        op(ScalarOpIr { lhs, rhs, out }),
    ));
}

/// Widens small indices: bounds of the dim may not fit their type.
fn wide(indices: TensorIr, emit: &mut Emit) -> TensorIr {
    if indices.dtype.size() >= 4 {
        return indices;
    }
    let out = emit.tensor(indices.shape.to_vec(), DType::I32);
    let cast = CastOpIr {
        input: read(&indices),
        out: out.clone(),
    };
    emit.push(OperationIr::BaseInt(BaseOperationIr::Cast(cast)));
    read(&out)
}

/// Stretches a mask over the indices of dim `dim` to the shape of `of`.
pub(super) fn along(mask: &TensorIr, dim: usize, of: &TensorIr, emit: &mut Emit) -> TensorIr {
    let mut column = vec![1; of.shape.num_dims()];
    column[dim] = of.shape[dim];
    let mask = emit.reshape(mask, column);
    emit.expand(&mask, of.shape.to_vec())
}

/// A mask of indices that are as many as the elements.
fn same(mask: &TensorIr, _: &TensorIr, _: &mut Emit) -> TensorIr {
    read(mask)
}

/// A mask of the indices of the rows of dim `dim`.
fn rows(dim: usize) -> impl FnOnce(&TensorIr, &TensorIr, &mut Emit) -> TensorIr {
    move |mask, of, emit| along(mask, dim, of, emit)
}

/// Emits the read of input 0 at the indices of input 1 along dim `dim`: what is on other ranks reads as zero. `stretch`
/// brings a mask of the indices to the shape of the result.
pub(super) fn read_here(
    local: &Local,
    rule: &Rule,
    dim: usize,
    emit: &mut Emit,
    stretch: impl FnOnce(&TensorIr, &TensorIr, &mut Emit) -> TensorIr,
    make: impl FnOnce(TensorIr, TensorIr, TensorIr) -> OperationIr,
) {
    let Some(split) = local.split(&rule.inputs[0].dims, dim) else {
        return local.same(emit);
    };
    let here = here(local, split, local.local_input(1), emit);
    let out = local.local_outputs().remove(0);
    let found = emit.temp(&out, out.shape.to_vec());
    emit.push(make(local.local_input(0), here.indices, found.clone()));
    let elsewhere = stretch(&here.elsewhere, &out, emit);
    emit.mask_into(&found, &elsewhere, out);
}

/// Returns tensor, indices, value and result of a write along dim `dim`: values for other ranks are zero. `stretch`
/// brings a mask of the indices to the shape of the value.
fn write_here(
    local: &Local,
    rule: &Rule,
    dim: usize,
    emit: &mut Emit,
    stretch: impl FnOnce(&TensorIr, &TensorIr, &mut Emit) -> TensorIr,
) -> [TensorIr; 4] {
    let tensor = target(local, emit);
    let (mut indices, mut value) = (local.local_input(1), local.local_input(2));
    if let Some(split) = local.split(&rule.inputs[0].dims, dim) {
        let here = here(local, split, indices, emit);
        let elsewhere = stretch(&here.elsewhere, &value, emit);
        value = emit.masked(&value, &elsewhere);
        indices = here.indices;
    }
    [tensor, indices, value, local.local_outputs().remove(0)]
}

/// Returns the tensor that a write adds to: one rank of those with different terms adds to the tensor, the others to
/// zeros.
fn target(local: &Local, emit: &mut Emit) -> TensorIr {
    let tensor = local.local_input(0);
    if local.holds_first_terms() {
        return tensor;
    }
    let zeros = emit.temp(&tensor, tensor.shape.to_vec());
    emit.zeros(zeros.clone());
    read(&zeros)
}

/// Where a write goes.
#[derive(Clone, Copy)]
enum At {
    /// To elements, each with an index along a dim.
    Elements(usize),
    /// To the rows of a dim.
    Rows(usize),
    /// To slices, whose places the last dim of the indices holds.
    Places,
}

/// A kind of tensors with every update.
trait Updates<B: BackendIr>: Tensors<B> {
    fn read_nd(data: Self::Tensor, indices: IntTensor<B>) -> Self::Tensor;

    fn write(
        data: Self::Tensor,
        at: At,
        indices: IntTensor<B>,
        values: Self::Tensor,
        update: IndexingUpdateOp,
    ) -> Self::Tensor;
}

/// Updates numbers.
fn write_numbers<B: BackendIr, K: Numbers<B>>(
    data: K::Tensor,
    at: At,
    indices: IntTensor<B>,
    values: K::Tensor,
    update: IndexingUpdateOp,
) -> K::Tensor {
    match at {
        At::Places => K::scatter_nd(data, indices, values, update),
        At::Elements(dim) => K::write(dim, data, indices, values, update),
        At::Rows(dim) => K::write_rows(data, dim, indices, values, update),
    }
}

/// Numbers have a kernel for each update.
macro_rules! number_updates {
    ($( $K:ident ),*) => {$(
        impl<B: BackendIr> Updates<B> for $K {
            fn read_nd(data: Self::Tensor, indices: IntTensor<B>) -> Self::Tensor {
                <Self as Arithmetics<B>>::gather_nd(data, indices)
            }

            fn write(
                data: Self::Tensor,
                at: At,
                indices: IntTensor<B>,
                values: Self::Tensor,
                update: IndexingUpdateOp,
            ) -> Self::Tensor {
                write_numbers::<B, Self>(data, at, indices, values, update)
            }
        }
    )*};
}

number_updates!(Float, Int);

/// `Add` and `Max` are or, `Mul` and `Min` are and; what backends lack is done on ints, where one update keeps 0 and 1
/// what they are.
impl<B: BackendIr> Updates<B> for Bool {
    fn read_nd(data: Self::Tensor, indices: IntTensor<B>) -> Self::Tensor {
        let dtype = data.dtype();
        bool_of_int::<B>(B::int_gather_nd(int_of_bool::<B>(data), indices), dtype)
    }

    fn write(
        data: Self::Tensor,
        at: At,
        indices: IntTensor<B>,
        values: Self::Tensor,
        update: IndexingUpdateOp,
    ) -> Self::Tensor {
        use IndexingUpdateOp::*;
        let update = match (at, update) {
            (At::Elements(dim), Add | Max) => {
                return B::bool_scatter_or(dim, data, indices, values);
            }
            (At::Rows(dim), Add | Max) => return B::bool_select_or(data, dim, indices, values),
            (_, Add | Max) => Max,
            (_, Mul | Min) => Min,
            (_, Assign) => Assign,
        };
        let dtype = data.dtype();
        let (data, values) = (int_of_bool::<B>(data), int_of_bool::<B>(values));
        bool_of_int::<B>(
            write_numbers::<B, Int>(data, at, indices, values, update),
            dtype,
        )
    }
}
