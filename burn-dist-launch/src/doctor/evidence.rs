//! Records side by side.

use super::clocks::{clocks, median};
use burn_dist_comm::flight::{CallRecord, FaultKind, FlightRecord, RankRecord};
use std::collections::{BTreeMap, HashMap};

/// Calls of all members that are compared for stragglers at least: fewer say nothing.
const COMPARED_MIN: usize = 5;

/// A straggler starts this much later than the first of its group, on average, and a late host than the others, ...
const LATE_US_MIN: u64 = 1_000;

/// ... and this many times as late as the median of all ranks.
const LATE_TIMES: u64 = 3;

/// The state of a rank when its process stopped.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RankState {
    /// Its process wrote no record; the last call that others finished with it, if there is one.
    NoRecord(Option<CallRecord>),
    /// It failed; its last call, if it made one.
    Failed(Option<CallRecord>),
    /// It had made a call that others had not.
    Waiting(CallRecord),
    /// It was in none: computing, or waiting for its program; its last call, if it made one.
    Elsewhere(Option<CallRecord>),
}

/// A rank, where it lives, and what it was doing.
#[derive(Clone, Debug, PartialEq)]
pub struct Whereabouts {
    /// Which.
    pub rank: u32,
    /// Its process.
    pub process: u32,
    /// The last window that it began, if that is known.
    pub window: Option<u64>,
    /// Calls that it had made, if that is known.
    pub num_calls: Option<u64>,
    /// The state of the rank.
    pub state: RankState,
    /// How long before its process wrote the record that began, in microseconds.
    pub since_us: u64,
}

/// A rank that keeps others waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// Which.
    pub rank: u32,
    /// How much later than the first of its group it starts a call, on average, in microseconds.
    pub late_us: u64,
    /// Calls that this was taken from.
    pub num_calls: usize,
}

/// A host whose ranks all start their calls later than those of others: it is slow, or its clock is ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateHost {
    /// Its name.
    pub host: String,
    /// How much later than the middle one of the hosts its first rank starts a call, in microseconds; the median of all
    /// calls.
    pub late_us: u64,
    /// Calls that this was taken from.
    pub num_calls: usize,
}

/// The group, the lane and the number of a call: calls of several ranks with equal ids belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CallId<'a> {
    group: &'a [u32],
    lane: u16,
    is_transfer: bool,
    sequence: u64,
}

impl<'a> CallId<'a> {
    pub(super) fn of(call: &'a CallRecord) -> Self {
        Self {
            group: &call.group,
            lane: call.lane,
            is_transfer: call.is_transfer,
            sequence: call.sequence,
        }
    }
}

/// Records of one run.
pub(super) struct Evidence<'a> {
    records: &'a [FlightRecord],
    ranks: BTreeMap<u32, (&'a FlightRecord, &'a RankRecord)>,
}

impl<'a> Evidence<'a> {
    pub(super) fn new(records: &'a [FlightRecord]) -> Self {
        let ranks = records.iter().flat_map(|record| {
            let ranks = record.ranks.iter();
            ranks.map(move |rank| (rank.rank, (record, rank)))
        });
        Self {
            records,
            ranks: ranks.collect(),
        }
    }

    /// Returns all calls.
    fn calls(&self) -> impl Iterator<Item = &'a CallRecord> {
        self.ranks.values().flat_map(|(_, rank)| &rank.calls)
    }

    /// Returns the call that a rank made as an id says, if its record still has it.
    pub(super) fn made(&self, rank: u32, id: &CallId<'_>) -> Option<&'a CallRecord> {
        let (_, record) = self.ranks.get(&rank)?;
        record
            .calls
            .iter()
            .rev()
            .find(|call| CallId::of(call) == *id)
    }

    /// Returns the last call that others finished with a rank.
    fn last_seen(&self, rank: u32) -> Option<&'a CallRecord> {
        let finished = |call: &&CallRecord| call.elapsed_us.is_some() && call.group.contains(&rank);
        // Whoever sends is done before the other has received.
        let is_send = |call: &&CallRecord| call.kind == "send";
        self.calls()
            .filter(|call| finished(call) && !is_send(call))
            .max_by_key(|call| call.started_us.saturating_add(call.elapsed_us.unwrap_or(0)))
    }

    /// Returns where every rank was.
    pub(super) fn whereabouts(&self) -> Vec<Whereabouts> {
        let process_of = &self.records[0].process_of;
        let ranks = process_of.iter().zip(0..);
        ranks
            .map(|(&process, rank)| self.whereabouts_of(rank, process))
            .collect()
    }

    fn whereabouts_of(&self, rank: u32, process: u32) -> Whereabouts {
        let Some((record, own)) = self.ranks.get(&rank) else {
            return Whereabouts {
                rank,
                process,
                window: None,
                num_calls: None,
                state: RankState::NoRecord(self.last_seen(rank).cloned()),
                since_us: 0,
            };
        };
        let last = own.calls.last();
        let is_waiting = |call: &&CallRecord| call.elapsed_us.is_none() && !call.arrived;
        let failed = [
            FaultKind::Operation,
            FaultKind::Injected,
            FaultKind::Invalid,
        ];
        let (state, since) = if failed.contains(&record.fault.kind)
            && record.fault.rank == Some(rank)
        {
            (RankState::Failed(last.cloned()), record.written_us)
        } else if let Some(call) = own.calls.iter().find(is_waiting) {
            (RankState::Waiting(call.clone()), call.started_us)
        } else {
            let end =
                |call: &CallRecord| call.started_us.saturating_add(call.elapsed_us.unwrap_or(0));
            let since = last.map_or(record.written_us, end);
            (RankState::Elsewhere(last.cloned()), since)
        };
        Whereabouts {
            rank,
            process,
            window: own.window,
            num_calls: Some(own.num_calls),
            state,
            since_us: record.written_us.saturating_sub(since),
        }
    }

    /// Returns two calls of one id that do not match, if there are such.
    pub(super) fn mismatch(&self) -> Option<(&'a CallRecord, &'a CallRecord)> {
        let mut first: HashMap<CallId<'_>, &CallRecord> = HashMap::default();
        // Halves of a transfer differ.
        let collectives = self.calls().filter(|call| !call.is_transfer);
        for call in collectives {
            let other = *first.entry(CallId::of(call)).or_insert(call);
            if (&other.what, &other.module) != (&call.what, &call.module) {
                return Some((other, call));
            }
        }
        None
    }

    /// Returns ranks that each wait for the next one, the last for the first, if there are such. Whoever has made a
    /// call does not keep others waiting in it.
    pub(super) fn circle(&self) -> Option<Vec<CallRecord>> {
        let waits: BTreeMap<u32, CallRecord> = self
            .ranks
            .keys()
            .filter_map(|&rank| match self.whereabouts_of(rank, 0).state {
                RankState::Waiting(call) => Some((rank, call)),
                _ => None,
            })
            .collect();
        for &start in waits.keys() {
            let mut path: Vec<u32> = vec![start];
            while let Some(call) = path.last().and_then(|rank| waits.get(rank)) {
                let id = CallId::of(call);
                let keeps_waiting =
                    |rank: &&u32| waits.contains_key(rank) && self.made(**rank, &id).is_none();
                let Some(&next) = call.awaited.iter().find(keeps_waiting) else {
                    break;
                };
                if let Some(at) = path.iter().position(|rank| *rank == next) {
                    let circle = path[at..]
                        .iter()
                        .filter_map(|rank| waits.get(rank).cloned());
                    return Some(circle.collect());
                }
                path.push(next);
            }
        }
        None
    }

    /// Returns ranks that start calls much later than the others of their groups, and hosts that do with all of their
    /// ranks.
    ///
    /// Calls of several hosts are compared by their own clocks: what these differ by, or seem to, is the hosts' and not
    /// the ranks'.
    pub(super) fn late(&self) -> (Vec<Straggler>, Vec<LateHost>) {
        let mut calls: HashMap<CallId<'_>, Vec<(u32, u64)>> = HashMap::default();
        for call in self
            .calls()
            .filter(|call| !call.is_transfer && call.group.len() > 1)
        {
            calls
                .entry(CallId::of(call))
                .or_default()
                .push((call.rank, call.started_us));
        }
        calls.retain(|id, starts| starts.len() == id.group.len());
        let of_hosts = calls.values().map(|starts| {
            let starts = starts.iter();
            starts.map(move |(rank, start)| (self.host(*rank), *start))
        });
        let clocks = clocks(of_hosts);
        let mut late: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
        for starts in calls.values() {
            let start = |(rank, start): &(u32, u64)| {
                let clock = clocks.get(self.host(*rank));
                i128::from(*start) - clock.map_or(0, |clock| clock.late_us)
            };
            let first = starts.iter().map(start).min().unwrap_or(0);
            for member in starts {
                let after = u64::try_from(start(member) - first).unwrap_or(u64::MAX);
                let (sum, num) = late.entry(member.0).or_default();
                (*sum, *num) = (sum.saturating_add(after), *num + 1);
            }
        }
        let means: BTreeMap<u32, (u64, usize)> = late
            .into_iter()
            .filter(|(_, (_, num))| *num >= COMPARED_MIN)
            .map(|(rank, (sum, num))| (rank, (sum / num as u64, num)))
            .collect();
        let median = median(means.values().map(|(mean, _)| *mean)).unwrap_or(0);
        let is_late = |mean: u64| mean >= LATE_US_MIN && mean > LATE_TIMES.saturating_mul(median);
        let stragglers = means.into_iter().filter(|(_, (mean, _))| is_late(*mean));
        let stragglers = stragglers.map(|(rank, (late_us, num_calls))| Straggler {
            rank,
            late_us,
            num_calls,
        });
        let hosts = clocks.into_iter().filter_map(|(host, clock)| {
            let late_us = u64::try_from(clock.late_us).ok()?;
            let is_late = clock.num_calls >= COMPARED_MIN && late_us >= LATE_US_MIN;
            is_late.then(|| LateHost {
                host: host.to_string(),
                late_us,
                num_calls: clock.num_calls,
            })
        });
        (stragglers.collect(), hosts.collect())
    }

    /// Returns the host of a rank.
    fn host(&self, rank: u32) -> &'a str {
        let record = &self.records[0];
        let process = record.process_of.get(rank as usize);
        let peer = process.and_then(|process| record.processes.get(*process as usize));
        peer.map_or("", |peer| &peer.host)
    }
}
