//! What the hub of a mesh knows of the other processes, and what it asks of the engine.

use super::windows::{Agreement, WindowPrint};
use super::world::World;
use crate::comm::info::CallInfo;
use crate::comm::local::{Channel, Meeting};
use crate::comm::{Block, CommError, LocalHub};
use crate::mesh::Rank;
use std::sync::{Arc, Weak};

/// A call that all ranks of this process have made.
pub(crate) struct Opened {
    pub hub: Arc<LocalHub>,
    pub channel: Arc<Channel>,
    pub meeting: Arc<Meeting>,
    /// By member; those of other processes are missing.
    pub inputs: Vec<Option<Block>>,
    pub info: Arc<CallInfo>,
    /// Whether the channel is of transfers, which are not collectives.
    pub is_transfer: bool,
}

pub(super) enum Command {
    Call(Box<Opened>),
    Join {
        mesh: u64,
        hub: Weak<LocalHub>,
        num_processes: usize,
    },
    Window {
        mesh: u64,
        print: WindowPrint,
        agreement: Arc<Agreement>,
        process: u32,
        others: Arc<[u32]>,
    },
    Leave {
        mesh: u64,
        rank: Rank,
        others: Arc<[u32]>,
    },
    Stop {
        mesh: u64,
        reason: String,
        others: Arc<[u32]>,
    },
    Quit,
}

/// What a hub knows of the other processes.
pub(crate) struct Remote {
    /// Ends with the last hub that needs it.
    world: World,
    pub(super) mesh: u64,
    pub(super) process: u32,
    /// Of each rank.
    pub(super) process_of: Arc<[u32]>,
}

impl Remote {
    pub(super) fn new(world: &World, mesh: u64, process_of: Arc<[u32]>) -> Self {
        Self {
            world: world.clone(),
            mesh,
            process: world.process() as u32,
            process_of,
        }
    }

    /// Whether a rank lives in this process.
    pub fn is_local(&self, rank: Rank) -> bool {
        self.process_of.get(rank.0 as usize) == Some(&self.process)
    }

    /// Makes a hub known to the engine.
    pub fn join(&self, hub: &Arc<LocalHub>) {
        self.command(Command::Join {
            mesh: self.mesh,
            hub: Arc::downgrade(hub),
            num_processes: self.others().len() + 1,
        });
    }

    pub fn call(&self, opened: Opened) {
        self.command(Command::Call(Box::new(opened)));
    }

    /// Tells the others of a window; what is returned is reached when all run it.
    pub fn window(&self, print: WindowPrint) -> Arc<Agreement> {
        let agreement = Arc::<Agreement>::default();
        self.command(Command::Window {
            mesh: self.mesh,
            print,
            agreement: Arc::clone(&agreement),
            process: self.process,
            others: self.others(),
        });
        agreement
    }

    /// Tells the others that a rank makes no more calls.
    pub fn leave(&self, rank: Rank) {
        self.command(Command::Leave {
            mesh: self.mesh,
            rank,
            others: self.others(),
        });
    }

    /// Stops the ranks of the others.
    pub fn stop(&self, error: &CommError) {
        self.command(Command::Stop {
            mesh: self.mesh,
            reason: error.to_string(),
            others: self.others(),
        });
    }

    /// Returns the other processes.
    pub(super) fn others(&self) -> Arc<[u32]> {
        let mut others = self.process_of.to_vec();
        others.retain(|process| *process != self.process);
        others.dedup();
        others.into()
    }

    fn command(&self, command: Command) {
        // The engine outlives its hubs, unless it has failed; then there is nobody to tell.
        let _ = self.world.engine().commands().send(command);
    }
}
