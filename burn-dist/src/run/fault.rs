//! What can end a mesh.

use std::sync::Arc;

use burn_ir::TensorId;

use crate::comm::CommError;
use crate::mesh::Rank;
use crate::plan::PlanError;
use crate::record::MeshDevice;

/// Why a mesh has stopped. The first fault wins: every later read or sync returns it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The mesh was dropped.
    #[error(
        "mesh {mesh} was dropped before this tensor was used: keep the `DeviceMesh` or a device of it alive as long as its tensors"
    )]
    Ended {
        /// Text form of the mesh.
        mesh: String,
    },
    /// A window could not be planned.
    #[error(transparent)]
    Plan(Arc<PlanError>),
    /// An operation failed on a rank.
    #[error("rank {} failed in {op}{}: {message}", rank.0, at(path))]
    Op {
        /// Where.
        rank: Rank,
        /// Kind of operation with its local shapes.
        op: String,
        /// Module path, if known.
        path: Option<Arc<str>>,
        /// What the backend said.
        message: String,
    },
    /// A collective failed.
    #[error("rank {} failed in a collective{}: {source}", rank.0, at(path))]
    Collective {
        /// Where.
        rank: Rank,
        /// Module path, if known.
        path: Option<Arc<str>>,
        /// What the communicator said.
        source: Arc<CommError>,
    },
    /// The processes do not run the same program, or one of them is late.
    #[error(transparent)]
    Processes(Arc<CommError>),
    /// A rank lives in another process.
    #[error("rank {} lives in another process: take the part of a rank of this one, or read the whole tensor", rank.0)]
    ElsewhereRank {
        /// The rank asked for.
        rank: Rank,
    },
    /// A tensor is not (or no longer) known to its mesh.
    #[error(
        "tensor {id} is not known to its mesh: it was used on one thread after its last use on another, or belongs to a mesh that has ended"
    )]
    UnknownTensor {
        /// Its id.
        id: u64,
    },
    /// A bug in this crate.
    #[error("{what}; this is a bug in burn-dist")]
    Bug {
        /// What should not have happened.
        what: &'static str,
    },
}

fn at(path: &Option<Arc<str>>) -> String {
    path.as_ref()
        .map(|path| format!(" (module {path})"))
        .unwrap_or_default()
}

impl Fault {
    pub(crate) fn ended(device: &MeshDevice) -> Self {
        Self::Ended {
            mesh: format!("{device:?}"),
        }
    }

    pub(crate) fn unknown_tensor(id: TensorId) -> Self {
        Self::UnknownTensor { id: id.value() }
    }

    pub(crate) fn bug(what: &'static str) -> Self {
        Self::Bug { what }
    }
}
