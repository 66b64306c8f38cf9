//! The fault that has stopped a mesh.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Fault;
use crate::comm::LocalHub;
use crate::mesh::Rank;

/// First fault of the mesh, shared by all its workers and tickets.
#[derive(Clone)]
pub(crate) struct FaultCell {
    first: Arc<Mutex<Option<Fault>>>,
    faulted: Arc<AtomicBool>,
    hub: Arc<LocalHub>,
}

impl FaultCell {
    pub(crate) fn new(hub: Arc<LocalHub>, faulted: Arc<AtomicBool>) -> Self {
        Self {
            first: Arc::default(),
            faulted,
            hub,
        }
    }

    /// Returns the fault that has stopped the ranks: the first one here, or one of another process.
    pub(crate) fn get(&self) -> Option<Fault> {
        if let Some(fault) = &*self.lock() {
            return Some(fault.clone());
        }
        let error = self.hub.fault()?;
        Some(self.set(Rank(0), Fault::Processes(Arc::new(error))))
    }

    /// Keeps `fault`, of `rank`, if it is the first, and stops all ranks; returns the one that is kept.
    pub(crate) fn set(&self, rank: Rank, fault: Fault) -> Fault {
        // Whoever asks meanwhile waits until all of it is known.
        let mut first = self.lock();
        if let Some(first) = &*first {
            return first.clone();
        }
        self.hub.abort(fault.for_others(rank));
        let process = self.hub.this_process();
        let record = self.hub.flight_record().map(Arc::from);
        let fault = match process.is_some() || record.is_some() {
            true => Fault::Recorded {
                fault: Arc::new(fault),
                process,
                record,
            },
            false => fault,
        };
        tracing::error!(target: "burn_dist", rank = rank.0, exit_code = fault.exit_code(), "{fault}");
        self.faulted.store(true, Ordering::Relaxed);
        first.insert(fault).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Fault>> {
        self.first.lock().unwrap_or_else(|e| e.into_inner())
    }
}
