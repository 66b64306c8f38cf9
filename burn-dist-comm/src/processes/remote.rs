//! What the hub of a mesh knows of the other processes, and what it asks of the engine.

use super::peers::Peer;
use super::windows::{Agreement, KindName, WindowPrint};
use super::world::World;
use crate::info::CallInfo;
use crate::local::{Channel, Completion};
use crate::{Block, CommError, LocalHub, Process};
use burn_dist_mesh::Rank;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A call that all ranks of this process have made.
pub(crate) struct Opened {
    pub hub: Arc<LocalHub>,
    pub channel: Arc<Channel>,
    pub completion: Arc<Completion>,
    /// By member; those of other processes are missing.
    pub inputs: Vec<Option<Block>>,
    pub info: Arc<CallInfo>,
    /// Whether the channel is of transfers, which are not collectives.
    pub is_transfer: bool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Whoever waits looks for the outcome, or for the fault because of which there is none.
        self.completion.ring();
    }
}

pub(super) enum Command {
    Call(Box<Opened>),
    Join {
        mesh: u64,
        hub: Weak<LocalHub>,
        num_processes: usize,
        kind_name: KindName,
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
        exit_code: u8,
        others: Arc<[u32]>,
    },
    Wake {
        mesh: u64,
    },
    /// The program ends: ranks that are still there make no more calls.
    End,
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
    others: Arc<[u32]>,
    /// Whether every rank of this machine has a core.
    is_alone: bool,
}

impl Remote {
    /// Returns the number of the mesh, counted alike by all processes.
    pub fn mesh(&self) -> u64 {
        self.mesh
    }

    /// Returns the number of this process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Returns the process of each rank.
    pub fn process_of(&self) -> &[u32] {
        &self.process_of
    }

    /// Returns where every process lives.
    pub fn peers(&self) -> &[Arc<Peer>] {
        self.world.peers()
    }

    /// Returns a process as errors name it, with all its ranks.
    pub fn name(&self, process: u32) -> Process {
        let ranks = self
            .process_of
            .iter()
            .zip(0..)
            .filter(|(of, _)| **of == process);
        let ranks = ranks.map(|(_, rank)| Rank(rank)).collect();
        self.name_with(process, ranks)
    }

    fn name_with(&self, number: u32, ranks: Vec<Rank>) -> Process {
        let peer = self.peers().get(number as usize);
        Process {
            number,
            host: peer.map_or_else(|| "unknown".into(), |peer| peer.host.clone()),
            pid: peer.map_or(0, |peer| peer.pid),
            ranks,
        }
    }

    /// Returns the other processes in which some of `ranks` live, each with those.
    pub fn names_of(&self, ranks: &[Rank]) -> Vec<Process> {
        let lives_in = |rank: &Rank| self.process_of.get(rank.0 as usize).copied();
        let mut others: Vec<u32> = ranks.iter().filter_map(lives_in).collect();
        others.sort_unstable();
        others.dedup();
        others.retain(|process| *process != self.process);
        let name = |process: u32| {
            let of_it = ranks.iter().filter(|rank| lives_in(rank) == Some(process));
            self.name_with(process, of_it.copied().collect())
        };
        others.into_iter().map(name).collect()
    }

    /// Returns the process of a rank, if it is another one.
    pub fn elsewhere(&self, rank: Rank) -> Option<Process> {
        self.names_of(&[rank]).pop()
    }
}

impl Remote {
    pub(super) fn new(world: &World, mesh: u64, process_of: Arc<[u32]>) -> Self {
        let peers = world.peers();
        let host = &peers[world.process()].host;
        let is_here = |process: &&u32| peers[**process as usize].host == *host;
        let num_here = process_of.iter().filter(is_here).count();
        let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let process = world.process() as u32;
        let mut others = process_of.to_vec();
        others.retain(|other| *other != process);
        others.dedup();
        Self {
            is_alone: num_here <= num_cores,
            world: world.clone(),
            mesh,
            process,
            process_of,
            others: others.into(),
        }
    }

    /// Whether a rank lives in this process.
    pub fn is_local(&self, rank: Rank) -> bool {
        self.process_of.get(rank.0 as usize) == Some(&self.process)
    }

    /// Makes a hub known to the engine.
    pub fn join(&self, hub: &Arc<LocalHub>, kind_name: KindName) {
        self.command(Command::Join {
            mesh: self.mesh,
            hub: Arc::downgrade(hub),
            num_processes: self.others().len() + 1,
            kind_name,
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

    /// Has the ranks of the others stopped, when the engine is next seen to.
    pub fn stop(&self, error: &CommError) {
        self.world.engine().queue(Command::Stop {
            mesh: self.mesh,
            reason: error.to_string(),
            exit_code: error.exit_code(),
            others: self.others(),
        });
    }

    /// Wakes the ranks here that wait for others, to see the fault.
    pub fn wake(&self) {
        self.command(Command::Wake { mesh: self.mesh });
    }

    /// Returns the other processes.
    pub fn others(&self) -> Arc<[u32]> {
        Arc::clone(&self.others)
    }

    /// Whether every rank of this machine has a core.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Looks for messages until `is_done`, for a while and at most for `patience`: a rank that waits has nothing better
    /// to do.
    pub fn help(&self, patience: Duration, is_done: impl Fn() -> bool) {
        self.world.engine().help(self.is_alone, patience, is_done);
    }

    fn command(&self, command: Command) {
        self.world.engine().command(command);
    }
}
