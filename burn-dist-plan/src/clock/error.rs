//! Plans that cannot be simulated.

use crate::mesh::MeshError;

/// Why a plan cannot be simulated.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClockError {
    /// Ranks wait for each other.
    #[error(
        "simulated rank {rank} waits forever, before action {action} of {actions}: not all members of a group make the \
         same calls in the same order"
    )]
    Stuck {
        /// Which, counted over the ranks that are simulated.
        rank: usize,
        /// The action that cannot begin.
        action: usize,
        /// How many the rank has.
        actions: usize,
    },
    /// The ranks do not fill the nodes.
    #[error(transparent)]
    Mesh(#[from] MeshError),
}

burn_dist_mesh::debug_by_message!(ClockError);
