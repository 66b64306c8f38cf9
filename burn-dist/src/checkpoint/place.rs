//! Where tensors that are loaded go.

use std::sync::Arc;

use burn_dist_checkpoint::hf::Form;
use burn_dist_plan::{ParamSpec, Role};

use super::parameters::Parameter;
use super::read::Want;
use crate::layout::Layout;
use crate::mesh::{DType, MeshShape};
use crate::record::parts::Placement;

/// Returns where a tensor goes: to where the parameter lies that it is or belongs to. One of another shape (its load
/// mapper turns it), or of which nothing is known, is cut as parameters without a plan are.
pub(super) fn placement(
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
        None => Placement {
            layout: Arc::new(Layout::replicated(shape).at_rest(mesh)),
            stage: None,
            role: Role::Unknown,
        },
    }
}

impl Parameter {
    /// Asks for its value, which a tensor of a folder of any float type holds in a form.
    pub(super) fn want_of_folder(&self, key: String, form: Form, mesh: &MeshShape) -> Want {
        let want = self.want(key, form, mesh);
        // What becomes 8 bits is rounded once.
        let dtype = if self.is_packed {
            DType::F32
        } else {
            want.dtype
        };
        Want { dtype, ..want }
    }

    /// Asks for its value, which a tensor holds in a form.
    pub(super) fn want(&self, key: String, form: Form, mesh: &MeshShape) -> Want {
        Want {
            key,
            dtype: self.dtype,
            shape: self.shape.clone(),
            placement: placement(&self.shape, Some(self), Role::Parameter, mesh),
            form,
        }
    }
}
