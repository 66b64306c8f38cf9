//! PyTorch's names for placements, as constructors of layouts.

use super::{Layout, LayoutError};
use burn_dist_mesh::{AxisIndex, MeshShape, ReduceOp};
use serde::{Deserialize, Serialize};

/// The effect of one mesh axis on a tensor, in the words of PyTorch's DTensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// Splits this tensor dim.
    Shard(usize),
    /// Repeats the tensor.
    Replicate,
    /// Holds one term of a reduction on each rank.
    Partial(ReduceOp),
}

impl Layout {
    /// Creates the layout of a tensor of global `shape` from one placement per axis; axes not mentioned replicate.
    ///
    /// Several axes that shard one dim nest in their order, the first one major.
    ///
    /// ```
    /// use burn_dist_mesh::{MeshShape, ReduceOp};
    /// use burn_dist_plan::layout::{Layout, Placement::{Partial, Shard}};
    /// let mesh = MeshShape::parse("fsdp=2,tp=2,cp=2")?;
    /// let [fsdp, tp, cp] = [mesh.axis("fsdp")?, mesh.axis("tp")?, mesh.axis("cp")?];
    /// let placements = [(tp, Shard(0)), (fsdp, Shard(0)), (cp, Partial(ReduceOp::Sum))];
    /// let layout = Layout::from_placements(&mesh, &[8, 8], &placements)?;
    /// assert_eq!(layout.display(&mesh).to_string(), "[{tp, fsdp}, -] + sum{cp}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    /// # Errors
    /// [`LayoutError::NoSuchDim`], and those of [`Layout::validate`].
    pub fn from_placements(
        mesh: &MeshShape,
        shape: &[usize],
        placements: &[(AxisIndex, Placement)],
    ) -> Result<Layout, LayoutError> {
        let mut layout = Layout::replicated(shape);
        for &(axis, placement) in placements {
            match placement {
                Placement::Shard(dim) => match layout.dims.get_mut(dim) {
                    Some(dim) => dim.factors[0].axes.push(axis),
                    None => {
                        return Err(LayoutError::NoSuchDim {
                            dim,
                            shape: shape.to_vec(),
                        });
                    }
                },
                Placement::Replicate => {}
                Placement::Partial(op) => layout = layout.with_partial(&[axis], op),
            }
        }
        Layout::new(layout.dims, layout.partial, layout.at_rest, mesh)
    }
}
