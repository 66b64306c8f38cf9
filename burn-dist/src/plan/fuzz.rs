//! Random layouts, for running any program as a test of the promise that layouts never change a value.

use burn_backend::DType;

use crate::layout::{Factor, Layout, Partial, ReduceOp};
use crate::mesh::{AxisRole, MeshShape};

/// SplitMix64 (Steele et al., 2014): a generator of one word of state is enough to pick layouts.
struct Pick(u64);

impl Pick {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Returns a random layout of a tensor: uneven splits, products of factors, partial sums, at rest.
pub fn random_layout(mesh: &MeshShape, shape: &[usize], dtype: DType, seed: u64) -> Layout {
    let mut pick = Pick(seed);
    let mut layout = Layout::replicated(shape);
    for dim in &mut layout.dims {
        let size = dim.factors[0].size;
        let divisors: Vec<usize> = (2..size).filter(|d| size % d == 0).collect();
        if !divisors.is_empty() && pick.below(3) == 0 {
            let major = divisors[pick.below(divisors.len())];
            dim.factors = [major, size / major]
                .map(|size| Factor {
                    size,
                    axes: Vec::new(),
                })
                .to_vec();
        }
    }
    let mut axes: Vec<_> = mesh.axis_indices().filter(|&a| mesh.size(a) > 1).collect();
    while !axes.is_empty() {
        let axis = axes.swap_remove(pick.below(axes.len()));
        match pick.below(4) {
            0 => {}
            1 if dtype.is_float() || dtype.is_int() => layout.partial.push(Partial {
                axis,
                op: ReduceOp::Sum,
            }),
            _ if !layout.dims.is_empty() => {
                let dim = pick.below(layout.dims.len());
                let factor = pick.below(layout.dims[dim].factors.len());
                layout.dims[dim].factors[factor].axes.push(axis);
                if mesh.role(axis) == AxisRole::Shard && pick.below(3) == 0 {
                    layout.at_rest.push(axis);
                }
            }
            _ => {}
        }
    }
    layout.normalize(mesh);
    layout
}
