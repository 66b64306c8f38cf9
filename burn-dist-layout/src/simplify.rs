//! The same blocks in fewer factors.

use super::{Factor, Layout};
use burn_dist_mesh::MeshShape;

/// Describes the same blocks with fewer factors: a split factor takes in a whole one behind it where every chunk stays
/// the same.
///
/// `(8{tp} . 16)` over `tp=2` is `128{tp}`; `(3{tp} . 16)` is not `48{tp}`.
pub fn simplify(mut layout: Layout, mesh: &MeshShape) -> Layout {
    for dim in &mut layout.dims {
        let mut factors: Vec<Factor> = Vec::with_capacity(dim.factors.len());
        for factor in dim.factors.drain(..) {
            match factors.last_mut() {
                Some(last)
                    if factor.axes.is_empty()
                        && last.size.is_multiple_of(mesh.group_size(&last.axes)) =>
                {
                    last.size *= factor.size;
                }
                _ => factors.push(factor),
            }
        }
        dim.factors = factors;
    }
    layout
}
