//! Repairs of faults of Burn 0.21 that would be wrong values: reshapes of some views, and reductions of Flex that take
//! some views for their whole buffer.

use std::any::Any;

use burn_backend::{DType, Shape};
use burn_flex::{FlexTensor, Layout};

/// Moves `value` out as a `T`, if that is what it is.
pub(crate) fn downcast<S: 'static, T: 'static>(value: S) -> Result<T, S> {
    let mut value = Some(value);
    match (&mut value as &mut dyn Any).downcast_mut::<Option<T>>() {
        Some(found) => Ok(found.take().expect("put in above")),
        None => Err(value.take().expect("put in above, not taken")),
    }
}

/// Returns the shape `[N]` if a reshape between these shapes must pass through it.
///
/// Where the last dim has size 1 and dims are added, `split_strides` of burn-std 0.21 derives all strides from that
/// one. For a tensor that is not contiguous (a dim was repeated or swapped) they are wrong, and backends that reshape
/// by strides read other elements, or beyond the buffer. Splits make such dims on ranks where one device has none. On
/// before `[N]` these backends copy such a tensor; for a contiguous one both steps are views.
pub(crate) fn flat_between(from: &Shape, to: &Shape) -> Option<Shape> {
    let ends_in_one = from.iter().next_back() == Some(&1);
    (from.num_dims() > 1 && ends_in_one && to.num_dims() > from.num_dims())
        .then(|| Shape::from([from.num_elements()]))
}

/// Returns an input of a reduction over `dim` (over all dims if `None`) such that Flex reads what it shows: as it is
/// where that is the case, and on any other backend; else a copy.
///
/// `sum_dim` of f32 along a dim of stride 1 takes the results to be `shape[dim]` elements apart, and the sum, the
/// largest and the smallest of all f32 take a view for its buffer where both have as many elements.
pub(super) fn reducible<T: 'static>(tensor: T, dim: Option<usize>) -> T {
    match downcast::<T, FlexTensor>(tensor) {
        Ok(tensor) => {
            let layout = tensor.layout();
            let shows_all = || tensor.bytes().len() == layout.num_elements() * size_of::<f32>();
            let misread = tensor.dtype() == DType::F32
                && !tensor.is_contiguous()
                && match dim {
                    Some(dim) => is_misread_along(layout, dim),
                    None => shows_all() && !is_permutation(layout),
                };
            let tensor = match misread {
                true => tensor.to_contiguous(),
                false => tensor,
            };
            downcast(tensor).unwrap_or_else(|_| unreachable!("it was a Flex tensor"))
        }
        Err(tensor) => tensor,
    }
}

fn is_misread_along(layout: &Layout, dim: usize) -> bool {
    let (shape, strides) = (layout.shape(), layout.strides());
    // One result is read from where it starts; of several, the places are wrong.
    strides[dim] == 1
        && shape[..dim].iter().product::<usize>() == 1
        && shape[dim + 1..].iter().product::<usize>() > 1
        && strides[dim + 1] != shape[dim] as isize
}

/// Returns whether a view shows each element of some range of its buffer once.
fn is_permutation(layout: &Layout) -> bool {
    let dims = layout.shape().iter().zip(layout.strides());
    let mut dims: Vec<(usize, usize)> = dims
        .filter(|(size, _)| **size != 1)
        .map(|(size, stride)| (stride.unsigned_abs(), *size))
        .collect();
    dims.sort_unstable();
    let mut next = 1;
    dims.into_iter().all(|(stride, size)| {
        let dense = stride == next;
        next *= size;
        dense
    })
}
