//! The hub of a mesh, and the endpoints of its ranks here.

use super::LocalOptions;
use super::endpoint::LocalComm;
use super::hub::LocalHub;
use crate::CommError;
use crate::processes::Remote;
use burn_dist_mesh::Rank;
use std::sync::Arc;

impl LocalHub {
    /// Returns the endpoints of `num_ranks` ranks, in order.
    ///
    /// # Errors
    /// [`CommError::EmptyGroup`] if `num_ranks` is 0.
    pub fn connect(num_ranks: usize, options: LocalOptions) -> Result<Vec<LocalComm>, CommError> {
        Self::connect_part(num_ranks, options, None)
    }

    /// Returns the endpoints of those of `num_ranks` ranks that live here, in order; without `remote`, all of them.
    pub(crate) fn connect_part(
        num_ranks: usize,
        options: LocalOptions,
        remote: Option<Remote>,
    ) -> Result<Vec<LocalComm>, CommError> {
        if num_ranks == 0 {
            return Err(CommError::EmptyGroup);
        }
        let hub = Self::new(num_ranks, options, remote);
        let ranks = (0..num_ranks as u32).map(Rank);
        let here = ranks.filter(|rank| hub.is_local(*rank));
        Ok(here
            .map(|rank| LocalComm::new(Arc::clone(&hub), rank))
            .collect())
    }
}
