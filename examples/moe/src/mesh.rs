//! The mesh, and how the model lies on it.

use burn_dist::mesh::MeshShape;
use burn_dist::parallel::ParallelError;
use burn_dist::{Parallelize, ParallelizeWith};

use crate::model::Decoder;

/// Places a model on a mesh: as its attributes say, but with experts over the axes of `over`, if some are named, such as
/// `fsdp` or `fsdp,cp`.
///
/// # Errors
/// If the model does not fit the mesh, experts that their axes do not divide included.
pub fn parallelize(
    model: Decoder,
    mesh: &impl AsRef<MeshShape>,
    over: Option<&str>,
) -> Result<Decoder, ParallelError> {
    let plan = model.plan();
    let plan = match over {
        Some(axes) => plan.axis(axes).experts("blocks.*.mixture.experts"),
        None => plan,
    };
    model.parallelize_with(mesh, &plan)
}
