//! Where parameters, gradients and optimizer state rest (FSDP, ZeRO).

use super::{DimLayout, Layout};
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

    /// Sets the sizes of dims; one that is a product of factors keeps its own.
    pub fn resize(&mut self, shape: &[usize]) {
        for (dim, size) in self.dims.iter_mut().zip(shape) {
            if let [factor] = dim.factors.as_mut_slice() {
                factor.size = *size;
            }
        }
    }

    /// Returns the layout of a tensor of another shape whose first dims are split as those of this one: further ones
    /// are whole.
    pub fn along_first_dims(&self, shape: &[usize]) -> Layout {
        let mut layout = self.clone();
        layout.dims.truncate(shape.len());
        let more = shape[layout.dims.len()..].iter();
        layout.dims.extend(more.map(|size| DimLayout::whole(*size)));
        layout.resize(shape);
        layout
    }

    /// Returns whether this is a layout of tensors of a shape.
    pub fn has_shape(&self, shape: &[usize]) -> bool {
        let sizes = self.dims.iter().map(DimLayout::size);
        sizes.eq(shape.iter().copied())
    }

    /// Returns whether a tensor has the dims of this one, or one element instead, and is more than one number: a factor
    /// of it, say, that is stretched where they meet.
    pub fn spans(&self, shape: &[usize]) -> bool {
        let mut sizes = self.dims.iter().map(DimLayout::size).zip(shape);
        self.ndim() == shape.len()
            && sizes.all(|(own, size)| *size == own || *size == 1)
            && shape.iter().any(|size| *size != 1)
    }

    /// Returns the layout of a tensor that this one [spans](Self::spans): cut as this one, and whole along dims of
    /// which it has one element.
    pub fn along(&self, shape: &[usize]) -> Layout {
        let mut layout = self.clone();
        for (dim, size) in layout.dims.iter_mut().zip(shape) {
            if dim.size() != *size {
                *dim = DimLayout::whole(*size);
            }
        }
        let Layout { dims, at_rest, .. } = &mut layout;
        at_rest.retain(|axis| dims.iter().flat_map(DimLayout::axes).any(|of| of == *axis));
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
    fn factors_are_cut_along_the_dims_they_have() {
        let mesh = MeshShape::parse("fsdp=2,tp=2").unwrap();
        let along = |layout: &str, shape: [usize; 2]| {
            let layout = Layout::parse(layout, &mesh, Some(&[5, 8])).unwrap();
            assert!(layout.spans(&shape), "{shape:?}");
            layout.along(&shape).display(&mesh).to_string()
        };
        assert_eq!(along("[{fsdp*}, {tp}]", [5, 8]), "[{fsdp*}, {tp}]");
        assert_eq!(along("[{fsdp*}, {tp}]", [5, 1]), "[{fsdp*}, -]");
        assert_eq!(along("[{fsdp*}, {tp}]", [1, 8]), "[-, {tp}]");
        assert_eq!(along("[{tp, fsdp*}, -]", [1, 8]), "[-, -]");
        let layout = Layout::replicated(&[5, 8]);
        for shape in [&[1, 1][..], &[5], &[8, 5], &[2, 8], &[1, 5, 8]] {
            assert!(!layout.spans(shape), "{shape:?}");
        }
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
