//! Errors of processes that meet.

use super::limits::SILENCE_SECONDS;
use super::trouble::Lost;
use burn_dist_comm::{EXIT_CONFIG, EXIT_TEMPORARY};
use std::time::Duration;

/// Why processes could not meet, or no longer do.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The server cannot listen.
    #[error("cannot listen at {address} for the other processes: {reason}")]
    Listen {
        /// Where.
        address: String,
        /// Why not, and the remedy.
        reason: String,
    },
    /// There is no server, or none that answers.
    #[error(
        "found no rendezvous at {address} within {:.1} s ({reason}): is the process of rank 0 (or its launcher) \
         running there, and can this machine reach it?",
        waited.as_secs_f64()
    )]
    Unreachable {
        /// Where.
        address: String,
        /// The error of the last attempt.
        reason: String,
        /// For how long it was tried.
        waited: Duration,
    },
    /// The server does not let this process in.
    #[error("the rendezvous at {address} refuses this process: {reason}")]
    Refused {
        /// Where.
        address: String,
        /// Why.
        reason: String,
        /// The exit code to end with.
        exit_code: u8,
    },
    /// The program that answers is no server of ours, or one without the token.
    #[error("what listens at {address} is not the rendezvous of this program: {reason}")]
    Impostor {
        /// Where.
        address: String,
        /// Its answer.
        reason: String,
    },
    /// Not all have come, or a key was not set, in time.
    #[error("waited {:.1} s for {what}: {reason}", waited.as_secs_f64())]
    Timeout {
        /// A key or a barrier.
        what: String,
        /// The processes that are missing, and those that were turned away.
        reason: String,
        /// For how long.
        waited: Duration,
    },
    /// A request that the server does not grant.
    #[error("the rendezvous cannot {what}: {reason}")]
    Failed {
        /// The request.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The processes cannot come together: one of them is wrong, or has failed, or the rendezvous is over.
    #[error("{reason}")]
    Broken {
        /// The one that ends it, and why.
        reason: String,
        /// The exit code to end with: that of what failed there.
        exit_code: u8,
    },
    /// A process has vanished.
    #[error("{0}")]
    Lost(Lost),
    /// A [silence](super::SILENCE_SECONDS) that is none.
    #[error(
        "{SILENCE_SECONDS}={0} is not a number of seconds from 3 on: a process says that it is alive every second, so \
         that less would lose those that run"
    )]
    Silence(String),
}

burn_dist_mesh::debug_by_message!(RendezvousError);

impl RendezvousError {
    /// Returns the exit code for a program that this ends: see [`CommError::exit_code`](burn_dist_comm::CommError). Who
    /// is missing, late or gone may be there at another start.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused { exit_code, .. } | Self::Broken { exit_code, .. } => *exit_code,
            // What is asked at the start is not granted because someone has gone.
            Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Failed { .. }
            | Self::Lost(_) => EXIT_TEMPORARY,
            Self::Listen { .. } | Self::Impostor { .. } | Self::Silence(_) => EXIT_CONFIG,
        }
    }
}
