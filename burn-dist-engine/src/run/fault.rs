//! Faults, which end a mesh.

use std::path::Path;
use std::sync::Arc;

use burn_ir::TensorId;

use crate::comm::{CommError, EXIT_CONFIG, EXIT_SOFTWARE, Process};
use crate::mesh::Rank;
use crate::plan::PlanError;
use crate::record::MeshDevice;

/// Why a mesh has stopped. The first fault wins: every later read or sync returns it.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The mesh was dropped.
    #[error(
        "mesh {mesh} was dropped before this tensor was used: keep the `DeviceMesh` or a device of it alive as long as \
         its tensors"
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
        /// The message of the backend.
        message: String,
    },
    /// A collective failed.
    #[error("rank {} failed in a collective{}: {source}", rank.0, at(path))]
    Collective {
        /// Where.
        rank: Rank,
        /// Module path, if known.
        path: Option<Arc<str>>,
        /// The error of the communicator.
        source: Arc<CommError>,
    },
    /// The processes do not run the same program, or one of them is late.
    #[error(transparent)]
    Processes(Arc<CommError>),
    /// The system starts no more threads.
    #[error(
        "rank {} of {ranks} in this process has no thread: {reason}; use fewer ranks here (a smaller mesh, or more \
         processes), or raise the limits of \
         this process (threads: `ulimit -u` and the control group's `pids.max`; address space: `ulimit -v`)", rank.0
    )]
    Thread {
        /// The first without one.
        rank: Rank,
        /// Ranks of this process.
        ranks: usize,
        /// The reason that the system names.
        reason: String,
    },
    /// A rank lives in another process.
    #[error("rank {} lives in another process: take the part of a rank of this one, or read the whole tensor", rank.0)]
    ElsewhereRank {
        /// The rank asked for.
        rank: Rank,
    },
    /// A tensor is not (or no longer) known to its mesh.
    #[error(
        "tensor {id} is not known to its mesh: it was used on one thread after its last use on another, or belongs to \
         a mesh that has ended"
    )]
    UnknownTensor {
        /// Its id.
        id: u64,
    },
    /// Parts of a tensor were asked for, or passed, on another backend than the ranks compute on.
    #[error(
        "the ranks of this mesh compute on {found}, and parts of their tensors were named as {asked}'s: name them as \
         that backend's, or choose the other one where the mesh is built"
    )]
    OtherBackend {
        /// The backend that was asked for.
        asked: &'static str,
        /// The backend of the ranks.
        found: &'static str,
    },
    /// A fault, with the process that it stopped and the flight record that tells more.
    #[error("{fault}{}", seen(process, record))]
    Recorded {
        /// The fault.
        fault: Arc<Fault>,
        /// This process, if there are others.
        process: Option<Process>,
        /// The flight record of this process, if one was written.
        record: Option<Arc<Path>>,
    },
    /// A bug in this crate.
    #[error("{what}; this is a bug in burn-dist")]
    Bug {
        /// The event that should not have happened.
        what: &'static str,
    },
}

burn_dist_mesh::debug_by_message!(Fault);

fn at(path: &Option<Arc<str>>) -> String {
    path.as_ref()
        .map(|path| format!(" (module {path})"))
        .unwrap_or_default()
}

/// Where a fault was seen, and where to read more.
fn seen(process: &Option<Process>, record: &Option<Arc<Path>>) -> String {
    let mut text = String::new();
    if let Some(process) = process {
        text += &format!("; seen by {process}");
    }
    if let Some(record) = record {
        text += &format!(
            "; flight record: {} (`burn-dist doctor` reads it, best with those of all processes)",
            record.display()
        );
    }
    text
}

impl Fault {
    /// The fault itself, without where it was seen.
    pub fn cause(&self) -> &Self {
        match self {
            Self::Recorded { fault, .. } => fault.cause(),
            fault => fault,
        }
    }

    /// Returns the exit code for a program that this ends: 65 where ranks or processes do not do the same, 70 where an
    /// operation failed, 75 where a process is gone or late (a scheduler may restart the program), 78 for plans and
    /// uses of a mesh that cannot be. See [`CommError::exit_code`].
    ///
    /// ```
    /// # use burn_dist_engine as burn_dist;
    /// use burn_dist::run::Fault;
    /// # fn train() -> Result<(), Fault> { Ok(()) }
    ///
    /// fn main() -> std::process::ExitCode {
    ///     match train() {
    ///         Ok(()) => 0.into(),
    ///         Err(fault) => {
    ///             eprintln!("{fault}");
    ///             fault.exit_code().into()
    ///         }
    ///     }
    /// }
    /// ```
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Collective { source, .. } | Self::Processes(source) => source.exit_code(),
            Self::Recorded { fault, .. } => fault.exit_code(),
            Self::Op { .. } | Self::Bug { .. } => EXIT_SOFTWARE,
            Self::Plan(_)
            | Self::Ended { .. }
            | Self::Thread { .. }
            | Self::ElsewhereRank { .. }
            | Self::OtherBackend { .. }
            | Self::UnknownTensor { .. } => EXIT_CONFIG,
        }
    }

    /// Returns the error that stops the other ranks.
    pub(super) fn for_others(&self, rank: Rank) -> CommError {
        let (what, label) = match self {
            Self::Op { op, path, .. } => (op.clone(), path.clone()),
            Self::Collective { source, .. } | Self::Processes(source) => {
                return source.as_ref().clone();
            }
            _ => ("a window".to_string(), None),
        };
        CommError::Aborted {
            rank,
            what,
            label: label.unwrap_or_else(|| "".into()),
            reason: self.to_string(),
        }
    }

    #[doc(hidden)]
    pub fn ended(device: &MeshDevice) -> Self {
        Self::Ended {
            mesh: format!("{device:?}"),
        }
    }

    pub(crate) fn unknown_tensor(id: TensorId) -> Self {
        Self::UnknownTensor { id: id.value() }
    }

    #[doc(hidden)]
    pub fn bug(what: &'static str) -> Self {
        Self::Bug { what }
    }
}
