//! The choices of a local hub.

use super::wire::Network;
use crate::{KindName, Share};
use burn_dist_mesh::Rank;
use std::path::PathBuf;
use std::time::Duration;

/// How ranks on the threads of one process communicate.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// How long a call waits for the others before it stops all ranks.
    pub timeout: Duration,
    /// How many bytes of freed outputs are kept for later calls.
    pub pool_bytes_max: usize,
    /// How many calls the flight record of each rank keeps.
    pub recorded_calls_max: usize,
    /// How many calls of one group and lane may wait for members (and sends for their receivers).
    pub open_calls_max: usize,
    /// Faults to inject, for tests.
    pub chaos: Option<Chaos>,
    /// Links whose time transfers take; without them, they take that of copying memory.
    pub network: Option<Network>,
    /// How errors name the operations of windows in which processes differ; `an operation` by default.
    pub kind_name: KindName,
    /// Converts an output, once, before ranks share it: to a tensor library's own type around the same memory, say. By
    /// default it stays a [`PoolBuffer`](crate::PoolBuffer).
    pub share: Option<Share>,
    /// Where flight records are written when a fault stops the ranks; nowhere by default.
    pub flight: Option<FlightOptions>,
}

/// Where a flight record goes, and what it says of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightOptions {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// Text form of the mesh.
    pub mesh: String,
    /// Number of the mesh, if all ranks live in this process; else processes count alike.
    pub mesh_number: u64,
}

impl Default for LocalOptions {
    /// 30 seconds, 512 MiB, 1000 recorded and 4096 open calls, no faults, no links, no flight records.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            pool_bytes_max: 512 << 20,
            recorded_calls_max: 1000,
            open_calls_max: 4096,
            chaos: None,
            network: None,
            kind_name: |_| "an operation",
            share: None,
            flight: None,
        }
    }
}

/// Faults that follow from a seed: delays, reordering between groups and lanes, and the death of a rank.
///
/// Draws depend on the seed, the rank and the number of its call only; how threads interleave is up to the
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chaos {
    /// Determines all choices; part of every error that chaos causes.
    pub seed: u64,
    /// Upper bound of the delays, before a call is made and before it returns; a quarter sleeps, another one only gives
    /// up its core.
    pub delay_max: Duration,
    /// True if a started call may reach the others only when its rank next waits, after later calls on other groups and
    /// lanes.
    pub reorder: bool,
    /// Kills a rank when it makes this call (counted over all its calls, from 0).
    pub kill: Option<(Rank, u64)>,
}

impl Chaos {
    /// Returns delays of up to 50 microseconds and reordering.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            delay_max: Duration::from_micros(50),
            reorder: true,
            kill: None,
        }
    }

    /// Kills `rank` when it makes its call number `at_call`.
    pub fn with_kill(mut self, rank: Rank, at_call: u64) -> Self {
        self.kill = Some((rank, at_call));
        self
    }

    /// Draws a number for one `purpose` of one call of one rank.
    pub(crate) fn draw(&self, rank: Rank, call: u64, purpose: u64) -> u64 {
        [u64::from(rank.0), call, purpose]
            .into_iter()
            .fold(mix(self.seed), |state, part| mix(state ^ part))
    }

    /// Sleeps for a while, or not.
    pub(super) fn delay(&self, rank: Rank, call: u64, purpose: u64) {
        let drawn = self.draw(rank, call, purpose);
        let max_ns = self.delay_max.as_nanos() as u64;
        match drawn % 4 {
            0 if max_ns > 0 => std::thread::sleep(Duration::from_nanos((drawn >> 8) % max_ns)),
            1 => std::thread::yield_now(),
            _ => {}
        }
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
