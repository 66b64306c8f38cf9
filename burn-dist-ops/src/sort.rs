//! Sorts, and the largest elements with their places. The dim stays whole: where an element goes depends on all of them.

use super::family::prelude::*;

family! {
    Sort |cx, op| {
        Sort(SortOpIr) _ = match cx.kind {
            Kind::Int => {
                let sorted = B::int_sort(cx.int(&op.input), op.dim, op.descending);
                cx.put_int(&op.out, sorted)
            }
            _ => {
                let sorted = B::float_sort(cx.float(&op.input), op.dim, op.descending);
                cx.put_float(&op.out, sorted)
            }
        },
        SortWithIndices(SortWithIndicesOpIr) _ = match cx.kind {
            Kind::Int => {
                let (sorted, places) = B::int_sort_with_indices(cx.int(&op.input), op.dim, op.descending);
                cx.put_int(&op.out, sorted);
                cx.put_int(&op.out_indices, places)
            }
            _ => {
                let dtype = op.out_indices.dtype.into();
                let input = cx.float(&op.input);
                let (sorted, places) = B::float_sort_with_indices(input, op.dim, op.descending, dtype);
                cx.put_float(&op.out, sorted);
                cx.put_int(&op.out_indices, places)
            }
        },
        ArgSort(SortOpIr) int = match cx.kind {
            Kind::Int => B::int_argsort(cx.int(&op.input), op.dim, op.descending),
            _ => B::float_argsort(cx.float(&op.input), op.dim, op.descending, op.out.dtype.into()),
        },
        TopKWithIndices(TopKWithIndicesOpIr) _ = match cx.kind {
            Kind::Int => {
                let (largest, places) = B::int_topk_with_indices(cx.int(&op.tensor), op.dim, op.k);
                cx.put_int(&op.out, largest);
                cx.put_int(&op.out_indices, places)
            }
            _ => {
                let dtype = op.out_indices.dtype.into();
                let (largest, places) =
                    B::float_topk_with_indices(cx.float(&op.tensor), op.dim, op.k, dtype);
                cx.put_float(&op.out, largest);
                cx.put_int(&op.out_indices, places)
            }
        },
    }
}

impl Operation for Sort<'_> {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let (input, dim) = match self {
            Self::Sort(op) | Self::ArgSort(op) => (&op.input, op.dim),
            Self::SortWithIndices(op) => (&op.input, op.dim),
            Self::TopKWithIndices(op) => (&op.tensor, op.dim),
        };
        let names = dims_but(input, dim, Name::Whole);
        let outputs = vec![names.clone(); shapes.outputs.len()];
        RuleBuilder::named(shapes, vec![names], outputs).build()
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Follow
    }
}
