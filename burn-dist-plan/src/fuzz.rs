//! Random layouts, for running any program as a test of the promise that layouts never change a value.

use std::hash::{Hash, Hasher};

use crate::mesh::DType;
use rustc_hash::FxHasher;

use crate::layout::{Factor, Layout, Partial};
use crate::mesh::{AxisIndex, MeshShape, ReduceOp};

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

    /// Picks how terms of this dtype combine over one more axis: sums in half of all cases, since they are what
    /// programs make.
    fn reduction(&mut self, dtype: DType, so_far: &[Partial]) -> ReduceOp {
        use ReduceOp::{Max, Mean, Min, Prod, Sum};
        let ops: &[ReduceOp] = match dtype {
            DType::Bool(_) => &[Min, Max],
            _ => &[Sum, Sum, Sum, Sum, Mean, Min, Max, Prod],
        };
        let ops: Vec<ReduceOp> = ops
            .iter()
            .copied()
            .filter(|op| so_far.iter().all(|partial| partial.op.commutes_with(*op)))
            .collect();
        ops[self.below(ops.len())]
    }
}

/// Returns the random layout of a tensor made from data: a function of the seed and the data alone, so that a seed
/// gives every tensor the same layout however the threads of a program take turns.
pub fn layout_of_data(
    mesh: &MeshShape,
    shape: &[usize],
    dtype: DType,
    bytes: &[u8],
    seed: u64,
) -> Layout {
    let mut hasher = FxHasher::default();
    shape.hash(&mut hasher);
    dtype.name().hash(&mut hasher);
    bytes.hash(&mut hasher);
    // The seed goes in last and is mixed once more: neighbouring seeds give unrelated layouts.
    random_layout(
        mesh,
        shape,
        dtype,
        Pick(hasher.finish() ^ Pick(seed).next()).next(),
    )
}

/// Returns a random layout of a tensor: uneven splits, products of factors, partial by any reduction that the dtype
/// has, at rest.
fn random_layout(mesh: &MeshShape, shape: &[usize], dtype: DType, seed: u64) -> Layout {
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
    let splits = |axis: &AxisIndex| mesh.size(*axis) > 1 && mesh.role(*axis).splits_tensors();
    let mut axes: Vec<_> = mesh.axis_indices().filter(splits).collect();
    while !axes.is_empty() {
        let axis = axes.swap_remove(pick.below(axes.len()));
        match pick.below(4) {
            0 => {}
            1 => {
                let op = pick.reduction(dtype, &layout.partial);
                layout.partial.push(Partial { axis, op });
            }
            _ if !layout.dims.is_empty() => {
                let dim = pick.below(layout.dims.len());
                let factor = pick.below(layout.dims[dim].factors.len());
                layout.dims[dim].factors[factor].axes.push(axis);
                if mesh.role(axis).shards() && pick.below(3) == 0 {
                    layout.at_rest.push(axis);
                }
            }
            _ => {}
        }
    }
    layout.normalize(mesh);
    layout
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::mesh::BoolStore;

    use super::*;

    #[test]
    fn every_reduction_that_a_dtype_has_is_drawn() {
        let mesh = MeshShape::parse("a:model=2,b:model=3").unwrap();
        let drawn = |dtype: DType| -> BTreeSet<ReduceOp> {
            let layouts = (0..200).map(|seed| random_layout(&mesh, &[4, 6], dtype, seed));
            layouts
                .inspect(|layout| layout.validate(&mesh).unwrap())
                .flat_map(|layout| layout.partial)
                .map(|partial| partial.op)
                .collect()
        };
        assert_eq!(drawn(DType::F32), BTreeSet::from(ReduceOp::ALL));
        assert_eq!(drawn(DType::U8), BTreeSet::from(ReduceOp::ALL));
        let bools = BTreeSet::from([ReduceOp::Min, ReduceOp::Max]);
        assert_eq!(drawn(DType::Bool(BoolStore::Native)), bools);
    }

    #[test]
    fn the_layout_is_a_function_of_seed_and_data() {
        let mesh = MeshShape::parse("a:model=2,b:model=3").unwrap();
        let layout =
            |seed: u64, bytes: &[u8]| layout_of_data(&mesh, &[4, 6], DType::U8, bytes, seed);
        let different: BTreeSet<Layout> = (0..50u8).map(|byte| layout(1, &[byte; 24])).collect();
        assert!(different.len() > 10, "other data, other layouts");
        let different: BTreeSet<Layout> = (0..50).map(|seed| layout(seed, &[7; 24])).collect();
        assert!(different.len() > 10, "other seeds, other layouts");
        assert_eq!(layout(3, &[7; 24]), layout(3, &[7; 24]));
    }
}
