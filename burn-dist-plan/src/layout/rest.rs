//! Where parameters, gradients and optimizer state rest (FSDP, ZeRO).

use super::Layout;
use burn_dist_mesh::{AxisIndex, MeshShape};

impl Layout {
    /// Returns this layout with the tensor at rest in pieces over every [shard axis](MeshShape::shard_axes) that it
    /// does not use.
    ///
    /// A pure function of layout and mesh, so gradients and optimizer state know where their parameter rests. The dim
    /// to cut is dim 0 if that leaves every rank something to hold, else the first dim for which it does, else the
    /// largest dim. The axes become the minor ones of that dim's first factor. One element stays whole, for there is
    /// nothing to cut, and so does a tensor whose shard axes are all taken (split or partial).
    /// # Source
    /// ZeRO stage 3 (arXiv:1910.02054), FSDP (arXiv:2304.11277). Differs: tensors are cut along a dim instead of
    /// flattened.
    pub fn at_rest(&self, mesh: &MeshShape) -> Layout {
        self.at_rest_over(mesh, &mesh.shard_axes())
    }

    /// Rests as [`Layout::at_rest`] does, over those of `axes` that it does not use.
    pub fn at_rest_over(&self, mesh: &MeshShape, axes: &[AxisIndex]) -> Layout {
        let used = self.axes_used();
        let axes: Vec<_> = axes
            .iter()
            .copied()
            .filter(|axis| mesh.size(*axis) > 1 && !used.contains(axis))
            .collect();
        let parts = mesh.group_size(&axes);
        let local_sizes: Vec<usize> = self
            .dims
            .iter()
            .map(|dim| dim.factors[0].local_size_max(mesh))
            .collect();
        let fitting = local_sizes.iter().position(|&size| size >= parts);
        let dim = fitting.or_else(|| {
            // The first of the largest.
            (0..self.ndim()).rev().max_by_key(|&dim| local_sizes[dim])
        });
        let mut layout = self.clone();
        let Some(dim) = dim.filter(|_| self.numel() > 1) else {
            return layout;
        };
        layout.dims[dim].factors[0].axes.extend(&axes);
        layout.at_rest.extend(axes);
        layout.tidy();
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_rest(mesh: &str, layout: &str, shape: &[usize]) -> String {
        let mesh = MeshShape::parse(mesh).unwrap();
        let layout = Layout::parse(layout, &mesh, Some(shape)).unwrap();
        layout.at_rest(&mesh).display(&mesh).to_string()
    }

    #[test]
    fn the_first_dim_that_fits_is_cut() {
        let mesh = "dp=2,fsdp=4,tp=2";
        assert_eq!(at_rest(mesh, "[-, -]", &[8, 8]), "[{fsdp*}, -]");
        assert_eq!(at_rest(mesh, "[-, -]", &[5, 8]), "[{fsdp*}, -]");
        assert_eq!(at_rest(mesh, "[-, -]", &[3, 8]), "[-, {fsdp*}]");
        assert_eq!(at_rest(mesh, "[-, -]", &[2, 3]), "[-, {fsdp*}]");
        assert_eq!(at_rest(mesh, "[-, -]", &[3, 3]), "[{fsdp*}, -]");
        assert_eq!(at_rest(mesh, "[]", &[]), "[]");
        assert_eq!(at_rest(mesh, "[-, -]", &[1, 1]), "[-, -]");
        assert_eq!(at_rest(mesh, "[-, -]", &[0, 3]), "[-, -]");
    }

    #[test]
    fn the_local_size_counts() {
        let mesh = "fsdp=4,tp=2";
        assert_eq!(at_rest(mesh, "[{tp}, -]", &[8, 8]), "[{tp, fsdp*}, -]");
        assert_eq!(at_rest(mesh, "[{tp}, -]", &[6, 8]), "[{tp}, {fsdp*}]");
    }

    #[test]
    fn axes_in_use_are_left_alone() {
        let mesh = "zero=2,fsdp=4,tp=2";
        assert_eq!(at_rest(mesh, "[-]", &[8]), "[{zero*, fsdp*}]");
        assert_eq!(at_rest(mesh, "[{fsdp}]", &[8]), "[{fsdp, zero*}]");
        assert_eq!(
            at_rest(mesh, "[-] + sum{zero}", &[8]),
            "[{fsdp*}] + sum{zero}"
        );
        assert_eq!(at_rest("dp=4,tp=2", "[{tp}]", &[8]), "[{tp}]");
        let rest = "[{zero*, fsdp*}]";
        assert_eq!(at_rest(mesh, rest, &[8]), rest);
    }
}
