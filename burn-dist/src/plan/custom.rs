//! Our own operations on layouts, as they travel through `OperationIr::Custom`.

use burn_ir::OperationIr;

use super::PlanError;
use crate::mesh::MeshShape;
use crate::parallel::ParamSpec;
use crate::record::visit::kind_name;
use crate::rules::Activation;

const PARAM: &str = "burn_dist.param;";
const REDISTRIBUTE: &str = "burn_dist.redistribute;";

/// An operation of ours; its text form is the id of a `CustomOpIr` with one input and one output.
#[derive(Clone, Debug, PartialEq)]
pub enum CustomOp {
    /// The value is a parameter: it rests where the spec says, and the planner honours the spec wherever it is used.
    Param(ParamSpec),
    /// The value in another layout (text form); its gradient comes back in the layout it came from.
    Redistribute(String),
}

impl CustomOp {
    /// Returns the id that carries it.
    pub fn id(&self, mesh: &MeshShape) -> String {
        match self {
            Self::Param(spec) => format!("{PARAM}{}", spec.to_text(mesh)),
            Self::Redistribute(layout) => format!("{REDISTRIBUTE}{layout}"),
        }
    }

    /// Reads an id back; `shape` is the global shape of the tensor.
    ///
    /// # Errors
    /// [`PlanError::UnknownCustom`] if the id is not one of ours.
    pub fn parse(id: &str, shape: &[usize], mesh: &MeshShape) -> Result<Self, PlanError> {
        if let Some(text) = id.strip_prefix(PARAM) {
            let spec = ParamSpec::parse(text, shape, mesh)
                .map_err(|_| PlanError::UnknownCustom { id: id.to_string() })?;
            Ok(Self::Param(spec))
        } else if let Some(layout) = id.strip_prefix(REDISTRIBUTE) {
            Ok(Self::Redistribute(layout.to_string()))
        } else {
            Err(PlanError::UnknownCustom { id: id.to_string() })
        }
    }
}

/// Returns the name of an operation for people: [`kind_name`], and of an activation, its own.
pub(crate) fn op_name(op: &OperationIr) -> &'static str {
    match Activation::of(op) {
        Some(activation) => activation.name(),
        None => kind_name(op),
    }
}
