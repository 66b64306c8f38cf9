//! Where tensors that are loaded go.

use std::sync::Arc;

use burn_dist_plan::{ParamSpec, Role};

use super::parameters::Parameter;
use crate::layout::Layout;
use crate::mesh::MeshShape;
use crate::record::parts::Placement;

/// Returns where a tensor goes: to where the parameter lies that it is or belongs to. One of another shape (its load
/// mapper turns it) goes where nothing is known of it.
pub fn placement(
    shape: &[usize],
    parameter: Option<&Parameter>,
    role: impl Fn(Arc<ParamSpec>) -> Role,
    mesh: &MeshShape,
) -> Placement {
    let spec = parameter.and_then(|parameter| parameter.spec.clone());
    let home = spec.map(|spec| (spec.home(mesh), spec));
    match home.filter(|(home, _)| home.shape() == shape) {
        Some((home, spec)) => Placement {
            layout: Arc::new(home),
            stage: spec.stage.clone(),
            role: role(Arc::new(spec)),
        },
        None => unknown_placement(shape, mesh),
    }
}

/// Returns where a tensor goes of which nothing is known: cut as parameters without a plan are.
pub fn unknown_placement(shape: &[usize], mesh: &MeshShape) -> Placement {
    Placement {
        layout: Arc::new(Layout::replicated(shape).at_rest(mesh)),
        stage: None,
        role: Role::Unknown,
    }
}

impl Parameter {
    /// Returns where its value goes.
    pub fn placement(&self, mesh: &MeshShape) -> Placement {
        placement(&self.shape, Some(self), Role::Parameter, mesh)
    }
}
