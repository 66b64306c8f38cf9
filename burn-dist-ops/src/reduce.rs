//! Reductions of all dims (to shape `[1]`) and of one dim (which stays, with size one).

use burn_backend::Slice;

use super::family::prelude::*;
use super::formula::{Value, along_rows, formula, sums};
use burn_dist_plan::layout::DimLayout;

/// Runs a kernel that finds the largest or smallest element along a dim, and its index.
macro_rules! with_indices {
    ($cx:ident, $op:ident, $float:path, $int:path) => {
        match $cx.kind {
            Kind::Int => {
                let (value, indices) = $int($cx.int(&$op.tensor), $op.dim);
                $cx.put_int(&$op.out, value);
                $cx.put_int(&$op.out_indices, indices)
            }
            _ => {
                let dtype = $op.out_indices.dtype.into();
                let (value, indices) = $float($cx.float(&$op.tensor), $op.dim, dtype);
                $cx.put_float(&$op.out, value);
                $cx.put_int(&$op.out_indices, indices)
            }
        }
    };
}

family! {
    Reduce |cx, op| by_number(K: Numbers) {
        Sum(ReduceOpIr) K = K::sum(K::reducible(cx.take::<K>(&op.input), None)),
        SumDim(ReduceDimOpIr) K = K::sum_dim(K::reducible(cx.take::<K>(&op.input), Some(op.axis)), op.axis),
        Mean(ReduceOpIr) K = K::mean(K::reducible(cx.take::<K>(&op.input), None)),
        MeanDim(ReduceDimOpIr) K = K::mean_dim(K::reducible(cx.take::<K>(&op.input), Some(op.axis)), op.axis),
        Prod(ReduceOpIr) K = K::prod(cx.take::<K>(&op.input)),
        ProdDim(ReduceDimOpIr) K = K::prod_dim(cx.take::<K>(&op.input), op.axis),
        Max(ReduceOpIr) K = K::max(K::reducible(cx.take::<K>(&op.input), None)),
        MaxDim(ReduceDimOpIr) K = K::max_dim(cx.take::<K>(&op.input), op.axis),
        MaxAbs(ReduceOpIr) K = K::max_abs(K::reducible(cx.take::<K>(&op.input), None)),
        MaxAbsDim(ReduceDimOpIr) K = K::max_abs_dim(cx.take::<K>(&op.input), op.axis),
        Min(ReduceOpIr) K = K::min(K::reducible(cx.take::<K>(&op.input), None)),
        MinDim(ReduceDimOpIr) K = K::min_dim(cx.take::<K>(&op.input), op.axis),
        ArgMax(ReduceDimOpIr) int = match cx.kind {
            Kind::Int => B::int_argmax(cx.int(&op.input), op.axis),
            _ => B::float_argmax(cx.float(&op.input), op.axis, op.out.dtype.into()),
        },
        ArgMin(ReduceDimOpIr) int = match cx.kind {
            Kind::Int => B::int_argmin(cx.int(&op.input), op.axis),
            _ => B::float_argmin(cx.float(&op.input), op.axis, op.out.dtype.into()),
        },
        TopK(ReduceDimOpIr) K = K::topk(cx.take::<K>(&op.input), op.axis, op.accumulator_len),
        /// The first of a descending sort: the backends' own kernels for them exist on GPUs only.
        ArgTopK(ReduceDimOpIr) int = {
            let sorted = match cx.kind {
                Kind::Int => B::int_argsort(cx.int(&op.input), op.axis, true),
                _ => B::float_argsort(cx.float(&op.input), op.axis, true, op.out.dtype.into()),
            };
            let mut ranges = vec![Slice::full(); op.axis + 1];
            ranges[op.axis] = Slice::new(0, Some(op.accumulator_len as isize), 1);
            B::int_slice(sorted, &ranges)
        },
        MaxDimWithIndices(ReduceDimWithIndicesOpIr) _ =
            with_indices!(cx, op, B::float_max_dim_with_indices, B::int_max_dim_with_indices),
        MinDimWithIndices(ReduceDimWithIndicesOpIr) _ =
            with_indices!(cx, op, B::float_min_dim_with_indices, B::int_min_dim_with_indices),
    }
}

impl Operation for Reduce<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let all = |op: &ReduceOpIr, by| {
            RuleBuilder::named(shapes, vec![dims(&op.input)], vec![vec![Name::Whole]]).contract(by)
        };
        let one = |op: &ReduceDimOpIr, by| {
            let out = dims_but(&op.out, op.axis, Name::Whole);
            RuleBuilder::named(shapes, vec![dims(&op.input)], vec![out]).contract(by)
        };
        let whole = |op: &ReduceDimOpIr| {
            let names = |tensor| dims_but(tensor, op.axis, Name::Whole);
            RuleBuilder::named(shapes, vec![names(&op.input)], vec![names(&op.out)])
        };
        let rule = match self {
            Self::Sum(op) => all(op, ReduceOp::Sum).linear(),
            Self::SumDim(op) => one(op, ReduceOp::Sum).linear(),
            // Ints round towards zero, which a sum of shares does not.
            Self::Mean(op) if !op.input.dtype.is_float() => return replicated("mean"),
            Self::MeanDim(op) if !op.input.dtype.is_float() => whole(op),
            Self::Mean(op) => all(op, ReduceOp::Sum)
                .linear()
                .lowering(Lowering::MeanAsSum),
            Self::MeanDim(op) => one(op, ReduceOp::Sum)
                .linear()
                .lowering(Lowering::MeanAsSum),
            Self::Prod(op) => all(op, ReduceOp::Prod),
            Self::ProdDim(op) => one(op, ReduceOp::Prod),
            Self::Max(op) | Self::MaxAbs(op) => all(op, ReduceOp::Max),
            Self::MaxDim(op) | Self::MaxAbsDim(op) => one(op, ReduceOp::Max),
            Self::Min(op) => all(op, ReduceOp::Min),
            Self::MinDim(op) => one(op, ReduceOp::Min),
            Self::ArgMax(op) | Self::ArgMin(op) | Self::TopK(op) | Self::ArgTopK(op) => whole(op),
            Self::MaxDimWithIndices(op) | Self::MinDimWithIndices(op) => {
                let names = |tensor| dims_but(tensor, op.dim, Name::Whole);
                let outputs = vec![names(&op.out), names(&op.out_indices)];
                RuleBuilder::named(shapes, vec![names(&op.tensor)], outputs)
            }
        };
        rule.build()
    }

    fn lower(&self, local: &Local<'_>, _: &Rule, emit: &mut Emit<'_>) {
        mean(local, emit);
    }

    fn float_class(&self) -> FloatClass {
        use Reduce::*;
        match self {
            Sum(_) | SumDim(_) | Mean(_) | MeanDim(_) | Prod(_) | ProdDim(_) => FloatClass::Single,
            _ => FloatClass::Follow,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            is_maximum: matches!(self, Self::MaxDim(_) | Self::MaxDimWithIndices(_)),
            adds_up: matches!(self, Self::SumDim(_)),
            ..Traits::default()
        }
    }

    fn makes(&self) -> bool {
        use Reduce::*;
        matches!(self, Sum(_) | Mean(_) | Prod(_) | Max(_) | Min(_))
            || matches!(
                self,
                SumDim(_) | MeanDim(_) | ProdDim(_) | MaxDim(_) | MinDim(_)
            )
    }

    /// Values are Flex's, on one of Burn's lines at least; what Flex refuses is refused on all backends.
    fn of_nothing(&self) -> Option<OfNothing> {
        use Reduce::*;
        let of_floats = |input: &TensorIr, number| match input.dtype.is_float() {
            true => Nothing::Full(number),
            false => Nothing::Undefined,
        };
        let made = match self {
            Sum(_) | SumDim(_) => Nothing::Zeros,
            Prod(_) | ProdDim(_) => Nothing::Ones,
            Mean(op) => of_floats(&op.input, f64::NAN),
            MeanDim(op) => of_floats(&op.input, f64::NAN),
            Max(op) | MaxAbs(op) => of_floats(&op.input, f64::NEG_INFINITY),
            Min(op) => of_floats(&op.input, f64::INFINITY),
            MaxDim(_) | MaxAbsDim(_) | MinDim(_) | MaxDimWithIndices(_) | MinDimWithIndices(_) => {
                Nothing::Undefined
            }
            ArgMax(_) | ArgMin(_) | TopK(_) | ArgTopK(_) => Nothing::Undefined,
        };
        OfNothing::from(0, made)
    }

    /// Other reductions to one number than sums have one where the tensor is one row.
    fn pointwise(&self) -> Option<Pointwise> {
        use Reduce::*;
        let row = |op: &ReduceOpIr, compute: for<'s> fn(Value<'s>) -> Value<'s>| match op
            .input
            .shape
            .num_dims()
        {
            1 => formula([&op.input], &op.out, |_, [x]| compute(x)),
            _ => None,
        };
        let is_float = |input: &TensorIr| input.dtype.is_float();
        match self {
            Sum(op) => {
                let dims: Vec<usize> = (0..op.input.shape.num_dims()).collect();
                sums(&op.input, &op.out, &dims)
            }
            SumDim(op) => sums(&op.input, &op.out, &[op.axis]),
            Mean(op) if is_float(&op.input) && op.input.shape.num_dims() == 1 => {
                formula([&op.input], &op.out, |_, [x]| x.mean(&op.input))
            }
            MeanDim(op) if is_float(&op.input) => along_rows(op, |x| x.mean(&op.input)),
            // Those of ints are divided in the type of the sum, or a wider one.
            Mean(_) | MeanDim(_) => None,
            Prod(op) => row(op, |x| x.wide().fold(Fold::Prod)),
            ProdDim(op) => along_rows(op, |x| x.wide().fold(Fold::Prod)),
            Max(op) => row(op, |x| x.fold(Fold::Max)),
            MaxDim(op) => along_rows(op, |x| x.fold(Fold::Max)),
            MaxAbs(op) => row(op, |x| x.abs().fold(Fold::Max)),
            MaxAbsDim(op) => along_rows(op, |x| x.abs().fold(Fold::Max)),
            Min(op) => row(op, |x| x.fold(Fold::Min)),
            MinDim(op) => along_rows(op, |x| x.fold(Fold::Min)),
            // Places, and sorted values.
            ArgMax(_) | ArgMin(_) | TopK(_) | ArgTopK(_) => None,
            MaxDimWithIndices(_) | MinDimWithIndices(_) => None,
        }
    }
}

/// The mean as the local terms of a sum over all ranks.
fn mean(local: &Local, emit: &mut Emit) {
    let is_split = |(kind, split): (FactorKind, &DimLayout)| {
        let mut axes = split.axes();
        matches!(kind, FactorKind::Reduce(_)) && axes.any(|axis| local.mesh.size(axis) > 1)
    };
    if !local.splits().any(is_split) {
        return local.same(emit);
    }
    let Some(OperationIr::NumericFloat(dtype, op)) = local.op.burn() else {
        panic!("means of floats are lowered to sums, found {:?}", local.op);
    };
    let (input, output) = (local.local_input(0), local.local_outputs().remove(0));
    let terms = emit.temp(&output, output.shape.to_vec());
    let (shape, global_shape) = (input.shape.clone(), local.inputs[0].shape());
    // Half precision sums overflow early. The local mean is taken in higher precision by the backends, so scale that
    // instead.
    let scale_mean = dtype.size() < 4;
    let out = terms.clone();
    let (reduced, here, global) = match op {
        NumericOperationIr::MeanDim(op) => {
            let ReduceDimOpIr {
                axis,
                accumulator_len,
                ..
            } = *op;
            let reduce = ReduceDimOpIr {
                input,
                out,
                axis,
                accumulator_len,
            };
            let reduced = match scale_mean {
                true => NumericOperationIr::MeanDim(reduce),
                false => NumericOperationIr::SumDim(reduce),
            };
            (reduced, shape[axis], global_shape[axis])
        }
        _ => {
            let reduce = ReduceOpIr { input, out };
            let reduced = match scale_mean {
                true => NumericOperationIr::Mean(reduce),
                false => NumericOperationIr::Sum(reduce),
            };
            (reduced, shape.num_elements(), global_shape.iter().product())
        }
    };
    emit.push(OperationIr::NumericFloat(*dtype, reduced));
    let scaled = |factor: f64| ScalarOpIr {
        lhs: read(&terms),
        rhs: ScalarIr::Float(factor),
        out: output,
    };
    let scaled = match scale_mean {
        true => NumericOperationIr::MulScalar(scaled(here as f64 / global as f64)),
        false => NumericOperationIr::DivScalar(scaled(global as f64)),
    };
    emit.push(OperationIr::NumericFloat(*dtype, scaled));
}
