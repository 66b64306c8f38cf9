//! Where the ranks of a mesh live.

use super::peer::Peer;
use crate::Process;
use burn_dist_mesh::Rank;
use std::sync::Arc;

/// Which process runs which ranks of a mesh, and how errors name them.
pub(crate) struct Placement {
    /// The number of the mesh, counted alike by all processes.
    pub mesh: u64,
    /// The number of this process.
    pub process: u32,
    /// The process of each rank.
    pub process_of: Arc<[u32]>,
    /// The other processes that have ranks.
    pub others: Arc<[u32]>,
    /// The processes, in order.
    pub peers: Arc<[Arc<Peer>]>,
}

impl Placement {
    pub(crate) fn new(
        mesh: u64,
        process: u32,
        process_of: Arc<[u32]>,
        peers: Arc<[Arc<Peer>]>,
    ) -> Self {
        let mut others = process_of.to_vec();
        others.retain(|other| *other != process);
        others.dedup();
        Self {
            mesh,
            process,
            process_of,
            others: others.into(),
            peers,
        }
    }

    /// Returns whether a rank lives in this process.
    pub(crate) fn is_local(&self, rank: Rank) -> bool {
        self.process_of.get(rank.0 as usize) == Some(&self.process)
    }

    /// Returns the ranks of a process.
    pub(crate) fn ranks_of(&self, process: u32) -> impl Iterator<Item = Rank> {
        let ranks = self.process_of.iter().zip(0..);
        ranks
            .filter(move |(of, _)| **of == process)
            .map(|(_, rank)| Rank(rank))
    }

    /// Returns whether every rank of this machine has a core.
    pub(crate) fn has_core_for_each(&self) -> bool {
        let host = |process: u32| self.peers.get(process as usize).map(|peer| &peer.host);
        let here = host(self.process);
        let is_here = |process: &&u32| host(**process) == here;
        let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.process_of.iter().filter(is_here).count() <= num_cores
    }

    /// Returns a process as errors name it, with all its ranks.
    pub(crate) fn name(&self, process: u32) -> Process {
        self.name_with(process, self.ranks_of(process).collect())
    }

    fn name_with(&self, number: u32, ranks: Vec<Rank>) -> Process {
        let peer = self.peers.get(number as usize);
        Process {
            number,
            host: peer.map_or_else(|| "unknown".into(), |peer| peer.host.clone()),
            pid: peer.map_or(0, |peer| peer.pid),
            ranks,
        }
    }

    /// Returns the other processes in which some of `ranks` live, each with those.
    pub(crate) fn names_of(&self, ranks: &[Rank]) -> Vec<Process> {
        let name = |&process: &u32| {
            let there = self.ranks_of(process).filter(|rank| ranks.contains(rank));
            let there: Vec<Rank> = there.collect();
            (!there.is_empty()).then(|| self.name_with(process, there))
        };
        self.others.iter().filter_map(name).collect()
    }
}
