//! Requests of the ranks of a mesh to the engine.

use super::agreement::Verdict;
use super::answer::Answer;
use super::engine::Engine;
use super::head::Out;
use super::mesh::Mesh;
use super::placement::Placement;
use super::ranks::{Opened, Ranks};
use super::window::{KindName, WindowPrint};
use crate::CommError;
use burn_dist_mesh::Rank;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The other processes of a mesh, for its ranks here.
pub(crate) struct Remote {
    /// Ends with the last mesh that needs it.
    pub engine: Arc<Engine>,
    pub placement: Arc<Placement>,
    /// True if every rank of this machine has a core.
    pub is_alone: bool,
}

impl Remote {
    pub(crate) fn new(engine: Arc<Engine>, placement: Placement) -> Self {
        Self {
            engine,
            is_alone: placement.has_core_for_each(),
            placement: Arc::new(placement),
        }
    }

    /// Makes the ranks here known to the engine.
    pub(crate) fn join(&self, ranks: Weak<dyn Ranks>, kind_name: KindName) {
        let placement = Arc::clone(&self.placement);
        self.engine
            .command(move |progress| progress.join(ranks, placement, kind_name));
    }

    /// Has the mesh do something, by this thread if it can.
    fn on_mesh(&self, act: impl FnOnce(&mut Mesh, &mut Out) + Send + 'static) {
        let mesh = self.placement.mesh;
        self.engine
            .command(move |progress| progress.on_mesh(mesh, act));
    }

    pub(crate) fn call(&self, opened: Opened) {
        self.on_mesh(|mesh, out| mesh.open(opened, out));
    }

    /// Tells the others of a window; returns how far they agree.
    pub(crate) fn window(&self, print: WindowPrint) -> Arc<Answer<Verdict>> {
        let answer = Arc::<Answer<Verdict>>::default();
        let answers = Arc::clone(&answer);
        self.on_mesh(|mesh, out| mesh.run_window(print, answers, out));
        answer
    }

    /// Tells the others that a rank makes no more calls.
    pub(crate) fn leave(&self, rank: Rank) {
        self.on_mesh(move |mesh, out| mesh.leave(rank, out));
    }

    /// Has the ranks of the others stopped, when the engine is next driven.
    pub(crate) fn stop(&self, error: &CommError) {
        let (mesh, error) = (self.placement.mesh, error.clone());
        self.engine
            .queue(move |progress| progress.on_mesh(mesh, |mesh, out| mesh.found(&error, out)));
    }

    /// Wakes the ranks here that wait for others, to see the fault.
    pub(crate) fn wake(&self) {
        self.on_mesh(|mesh, _| mesh.published());
    }

    /// Drives the engine until `is_done`, for a while and at most for `patience`: a rank that waits has nothing better
    /// to do.
    pub(crate) fn help(&self, patience: Duration, is_done: impl Fn() -> bool) {
        self.engine.help(self.is_alone, patience, is_done);
    }
}
