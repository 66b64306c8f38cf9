//! The flight record of a hub: what its ranks did last, written when the first fault stops them.

use super::hub::{ChannelKey, LocalHub};
use super::options::FlightOptions;
use super::record_file::RecordFile;
use crate::flight::{
    self, CallRecord, FaultKind, FaultRecord, FlightRecord, PeerRecord, RankRecord,
};
use crate::info::{CallInfo, What};
use crate::{CommError, Peer, Process};
use burn_dist_mesh::Rank;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Turns instants into times of the day.
#[derive(Clone, Copy)]
struct Clock {
    now: Instant,
    now_us: u64,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Clock {
    fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            now: Instant::now(),
            now_us: us(since.unwrap_or_default()),
        }
    }

    fn us(self, instant: Instant) -> u64 {
        let ago = self.now.saturating_duration_since(instant);
        self.now_us.saturating_sub(us(ago))
    }
}

impl LocalHub {
    /// Where the flight record of this process lies, if one was written. Waits a moment for one that is being written.
    pub fn flight_record(&self) -> Option<&Path> {
        self.record.get()?.path()
    }

    /// Notes that `rank` begins a window.
    pub fn begin_window(&self, rank: Rank, number: u64) {
        self.state(rank)
            .windows
            .store(number + 1, Ordering::Relaxed);
    }

    /// This process, as errors name it, if there are others.
    pub fn this_process(&self) -> Option<Process> {
        self.placement()
            .map(|placement| placement.name(placement.process))
    }

    /// Has the record of this process written, if that is asked for. What goes wrong with that is a warning: there is a
    /// fault already.
    pub(super) fn begin_record(&self, fault: &CommError) {
        let Some(options) = &self.options.flight else {
            return;
        };
        let record = self.make_record(fault, options);
        // All processes name their files alike.
        let run = record.processes.first().map_or(0, |peer| peer.pid);
        let mesh = match record.mesh_number {
            0 => String::new(),
            number => format!("-mesh-{number}"),
        };
        let name = format!("burn-dist-{run}{mesh}-process-{}.json", record.process);
        let folder = options.folder.clone();
        let file = RecordFile::begin(move || {
            let written = flight::write(&folder, &name, &record);
            let warn = |error: &std::io::Error| {
                tracing::warn!(
                    target: "burn_dist",
                    folder = %folder.display(),
                    %error,
                    "no flight record could be written: name another folder (BURN_DIST_FLIGHT)"
                );
            };
            written.inspect_err(warn).ok()
        });
        // The first fault alone has one.
        let _ = self.record.set(file);
    }

    fn make_record(&self, fault: &CommError, options: &FlightOptions) -> FlightRecord {
        let clock = Clock::new();
        let placement = self.placement();
        let peer = |peer: &Peer| PeerRecord {
            host: peer.host.clone(),
            pid: peer.pid,
        };
        let ranks = (0..self.num_ranks() as u32).map(Rank);
        let ranks: Vec<RankRecord> = ranks
            .filter(|rank| self.is_local(*rank))
            .map(|rank| self.rank_record(rank, clock))
            .collect();
        FlightRecord {
            format: FlightRecord::FORMAT.into(),
            version: FlightRecord::VERSION,
            crate_version: env!("CARGO_PKG_VERSION").into(),
            run: flight::run(),
            mesh: options.mesh.clone(),
            mesh_number: placement.map_or(options.mesh_number, |placement| placement.mesh),
            process: placement.map_or(0, |placement| placement.process),
            processes: match placement {
                Some(placement) => placement.peers.iter().map(|other| peer(other)).collect(),
                None => vec![peer(&Peer::this())],
            },
            process_of: match placement {
                Some(placement) => placement.process_of.to_vec(),
                None => vec![0; self.num_ranks()],
            },
            written_us: clock.now_us,
            fault: self.fault_record(fault, clock),
            window: ranks.iter().filter_map(|rank| rank.window).max(),
            ranks,
        }
    }

    fn rank_record(&self, rank: Rank, clock: Clock) -> RankRecord {
        let state = self.state(rank);
        let calls = state.recorder.read();
        RankRecord {
            rank: rank.0,
            window: state.windows.load(Ordering::Relaxed).checked_sub(1),
            num_calls: state.recorder.num_calls(),
            calls: calls
                .iter()
                .map(|call| self.call_record(call, clock))
                .collect(),
        }
    }

    /// Returns whom a call waits for; `None` if all have made it.
    fn awaited(&self, call: &CallInfo) -> Option<Vec<Rank>> {
        let key = ChannelKey {
            group: call.group.clone(),
            lane: call.lane,
            is_transfer: call.what.is_transfer(),
        };
        let channels = self.channels.read().unwrap_or_else(PoisonError::into_inner);
        let channel = channels.get(&key)?;
        let mut here = channel.missing(call.sequence);
        here.retain(|rank| self.is_local(*rank));
        match here.is_empty() {
            true => channel.awaited(call.sequence),
            false => Some(here),
        }
    }

    fn call_record(&self, call: &CallInfo, clock: Clock) -> CallRecord {
        let elapsed = call.elapsed();
        let awaited = match elapsed {
            None => self.awaited(call),
            Some(_) => None,
        };
        let dtype = match &call.what {
            What::Collective(dtype, ..) | What::Operands(dtype, ..) => dtype.name(),
            What::Exchange(..) => "",
        };
        CallRecord {
            rank: call.rank.0,
            kind: call.kind().name().into(),
            what: call.what.to_string(),
            dtype: dtype.into(),
            group: numbers(call.group.ranks()),
            lane: call.lane.0,
            is_transfer: call.what.is_transfer(),
            sequence: call.sequence,
            module: call.label().into(),
            bytes: call.received_bytes() as u64,
            started_us: clock.us(call.started),
            elapsed_us: elapsed.map(us),
            arrived: awaited.is_none(),
            awaited: numbers(&awaited.unwrap_or_default()),
        }
    }

    fn fault_record(&self, fault: &CommError, clock: Clock) -> FaultRecord {
        let mut record = FaultRecord {
            kind: FaultKind::Other,
            text: fault.to_string(),
            rank: None,
            process: None,
            window: None,
            call: None,
            other_call: None,
            missing_ranks: Vec::new(),
            missing_processes: Vec::new(),
        };
        let mut about = |call: &CallInfo| {
            record.rank = Some(call.rank.0);
            record.call = Some(self.call_record(call, clock));
        };
        record.kind = match fault {
            CommError::EmptyGroup
            | CommError::DuplicateRank { .. }
            | CommError::OutOfBounds { .. }
            | CommError::NoSuchRank { .. } => FaultKind::Invalid,
            CommError::NotAMember { rank, .. } | CommError::NoSharedMemory { rank } => {
                record.rank = Some(rank.0);
                FaultKind::Invalid
            }
            CommError::Invalid { call, .. }
            | CommError::UnsupportedReduce { call, .. }
            | CommError::UnsupportedDtype { call, .. }
            | CommError::TooManyOpen { call, .. } => {
                about(call);
                FaultKind::Invalid
            }
            CommError::Mismatch { first, second } => {
                about(first);
                record.other_call = Some(second.to_string());
                FaultKind::Mismatch
            }
            CommError::Diverged { call, other, .. } => {
                about(call);
                record.other_call = Some(other.clone());
                FaultKind::Mismatch
            }
            CommError::Timeout {
                call,
                missing,
                processes,
                ..
            } => {
                about(call);
                record.missing_ranks = numbers(missing);
                record.missing_processes = processes.iter().map(|process| process.number).collect();
                FaultKind::Timeout
            }
            CommError::Stalled { call, .. } | CommError::GpuStalled { call, .. } => {
                about(call);
                FaultKind::Stalled
            }
            CommError::RankLeft {
                rank,
                call,
                process,
            } => {
                about(call);
                record.rank = Some(rank.0);
                record.process = process.as_ref().map(|process| process.number);
                FaultKind::Left
            }
            CommError::ProcessLeft { process, window } => {
                (record.process, record.window) = (Some(process.number), Some(*window));
                FaultKind::Left
            }
            CommError::ProcessLost {
                process,
                call,
                window,
                ..
            } => {
                if let Some(call) = call {
                    about(call);
                }
                (record.process, record.window) = (Some(process.number), *window);
                FaultKind::Lost
            }
            CommError::WindowTimeout {
                window, missing, ..
            } => {
                record.window = Some(*window);
                record.missing_processes = missing.iter().map(|process| process.number).collect();
                FaultKind::WindowTimeout
            }
            CommError::ProgramsDiffer { window, .. } => {
                record.window = Some(*window);
                FaultKind::ProgramsDiffer
            }
            CommError::TooFarAhead { process, .. } => {
                record.process = Some(process.number);
                FaultKind::Other
            }
            CommError::Unfinished { processes, .. } => {
                record.missing_processes = processes.iter().map(|process| process.number).collect();
                FaultKind::Other
            }
            CommError::Connection { .. } | CommError::NotSent { .. } => FaultKind::Connection,
            CommError::Stopped { process, .. } => {
                record.process = Some(process.number);
                FaultKind::Relayed
            }
            CommError::Killed { call, .. } => {
                about(call);
                FaultKind::Injected
            }
            CommError::Aborted { rank, .. } => {
                record.rank = Some(rank.0);
                FaultKind::Operation
            }
            CommError::Gpu { call, .. } => {
                about(call);
                FaultKind::Operation
            }
            CommError::Device { .. } => FaultKind::Operation,
            CommError::World { .. }
            | CommError::ClusterEnv(_)
            | CommError::Uneven { .. }
            | CommError::Library(_) => FaultKind::Other,
        };
        record
    }
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}
