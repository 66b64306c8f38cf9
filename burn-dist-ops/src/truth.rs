//! Questions that Burn 0.21 composes of others: whether elements differ, and whether all or any of them are true.
//!
//! All and any of the parts of ranks are the smallest and the largest of their answers.

use super::family::prelude::*;
use super::formula::{along_rows, compared, compared_elem, pair};
use super::pointwise::{self, both};

/// Runs a kernel of the kind that the tensors have: of bools, the type is as stored.
macro_rules! ask {
    ($cx:ident, $op:ident, $input:ident, $float:path, $int:path, $bool:path $(, $more:expr)?) => {
        match $cx.kind {
            Kind::Float => $float($cx.float(&$op.$input) $(, $more)?, $op.out.dtype.into()),
            Kind::Int => $int($cx.int(&$op.$input) $(, $more)?, $op.out.dtype.into()),
            Kind::Bool => $bool($cx.bool(&$op.$input) $(, $more)?),
        }
    };
}

family! {
    Truth |cx, op| {
        NotEqual(BinaryOpIr) bool = match cx.kind {
            Kind::Float =>
                B::float_not_equal(cx.float(&op.lhs), cx.float(&op.rhs), op.out.dtype.into()),
            Kind::Int => B::int_not_equal(cx.int(&op.lhs), cx.int(&op.rhs), op.out.dtype.into()),
            Kind::Bool => B::bool_not_equal(cx.bool(&op.lhs), cx.bool(&op.rhs)),
        },
        NotEqualElem(ScalarOpIr) bool = {
            let value = cx.scalar(&op.rhs);
            ask!(cx, op, lhs, B::float_not_equal_elem, B::int_not_equal_elem, B::bool_not_equal_elem, value)
        },
        All(ReduceOpIr) bool = ask!(cx, op, input, B::float_all, B::int_all, B::bool_all),
        Any(ReduceOpIr) bool = ask!(cx, op, input, B::float_any, B::int_any, B::bool_any),
        AllDim(ReduceDimOpIr) bool =
            ask!(cx, op, input, B::float_all_dim, B::int_all_dim, B::bool_all_dim, op.axis),
        AnyDim(ReduceDimOpIr) bool =
            ask!(cx, op, input, B::float_any_dim, B::int_any_dim, B::bool_any_dim, op.axis),
        Xor(BinaryOpIr) bool = B::bool_xor(cx.bool(&op.lhs), cx.bool(&op.rhs)),
    }
}

impl Operation for Truth<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let (input, out, by) = match self {
            Self::NotEqual(_) | Self::NotEqualElem(_) | Self::Xor(_) => {
                return pointwise::any(shapes);
            }
            Self::All(op) => (&op.input, vec![Name::Whole], ReduceOp::Min),
            Self::Any(op) => (&op.input, vec![Name::Whole], ReduceOp::Max),
            Self::AllDim(op) => (
                &op.input,
                dims_but(&op.out, op.axis, Name::Whole),
                ReduceOp::Min,
            ),
            Self::AnyDim(op) => (
                &op.input,
                dims_but(&op.out, op.axis, Name::Whole),
                ReduceOp::Max,
            ),
        };
        RuleBuilder::named(shapes, vec![dims(input)], vec![out])
            .contract(by)
            .build()
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Follow
    }

    fn of_nothing(&self) -> Option<OfNothing> {
        match self {
            Self::All(_) | Self::AllDim(_) => OfNothing::from(0, Nothing::Ones),
            Self::Any(_) | Self::AnyDim(_) => OfNothing::from(0, Nothing::Zeros),
            Self::NotEqual(_) | Self::NotEqualElem(_) | Self::Xor(_) => None,
        }
    }

    fn place(&self, _: Kind, inputs: &[Operand<'_>], shape: &[usize]) -> Place {
        match self {
            Self::Xor(_) => both(inputs, shape),
            _ => Place::New(Strided::contiguous(shape)),
        }
    }

    fn pointwise(&self) -> Option<Pointwise> {
        match self {
            Self::NotEqual(op) => compared(op, Binary::NotEqual),
            Self::NotEqualElem(op) => compared_elem(op, Binary::NotEqual),
            Self::Xor(op) => pair(op, |x, y| x.binary(Binary::Xor, y)),
            Self::AllDim(op) => along_rows(op, |x| x.truth().fold(Fold::Min)),
            Self::AnyDim(op) => along_rows(op, |x| x.truth().fold(Fold::Max)),
            Self::All(_) | Self::Any(_) => None,
        }
    }
}
