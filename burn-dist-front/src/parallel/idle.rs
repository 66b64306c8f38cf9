//! Axes that are there to split the model, and split nothing of it.

use super::ParamSpec;
use crate::mesh::{Axis, AxisIndex, MeshShape};

/// Returns the axes that are there to split the model, and split nothing of it.
pub fn idle_axes<'a>(specs: &[ParamSpec], mesh: &'a MeshShape) -> Vec<&'a Axis> {
    let is_used = |index: AxisIndex| {
        specs.iter().any(|spec| {
            let mut activations = spec.input.iter().chain(&spec.output);
            spec.layout.sharded_axes().any(|axis| axis == index)
                || activations.any(|text| text.axes().any(|axis| axis == mesh.name(index)))
        })
    };
    let is_idle = |index: &AxisIndex| {
        mesh.role(*index).splits_model() && mesh.size(*index) > 1 && !is_used(*index)
    };
    let idle = mesh.axis_indices().filter(is_idle);
    idle.map(|index| &mesh.axes()[usize::from(index.0)])
        .collect()
}

/// Returns the warning of such an axis.
pub fn idle(axis: &Axis, mesh: &MeshShape) -> String {
    let Axis { name, size, .. } = axis;
    format!(
        "axis `{name}` of the mesh {mesh} splits nothing of this model: its {size} ranks compute the same. Say what is \
         split over it (`colwise`, `rowwise`, `vocab` of a `Plan`, or the attributes of `Parallelize`), or use `fsdp`, \
         over which every model is"
    )
}
