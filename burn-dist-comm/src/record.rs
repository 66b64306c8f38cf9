//! Deeds of a rank: counters and the flight record.

use super::info::CallInfo;
use super::sync::lock;
use burn_dist_mesh::collective::Kind;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often a rank made calls of one kind, and what it received by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Number of calls, counted when they start.
    pub calls: u64,
    /// Bytes received from other members, by the definition in the table at [`Collective`](super::Collective).
    pub bytes: u64,
}

/// The counters of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats([KindStats; Kind::ALL.len()]);

impl Stats {
    /// The counters of `kind`.
    pub fn get(&self, kind: Kind) -> KindStats {
        self.0[kind as usize]
    }

    /// The sum over all kinds.
    pub fn total(&self) -> KindStats {
        self.0
            .iter()
            .fold(KindStats::default(), |sum, kind| KindStats {
                calls: sum.calls + kind.calls,
                bytes: sum.bytes + kind.bytes,
            })
    }

    /// Returns the counts added since `earlier`.
    pub fn since(&self, earlier: &Stats) -> Stats {
        let mut difference = *self;
        for (now, then) in difference.0.iter_mut().zip(&earlier.0) {
            now.calls -= then.calls;
            now.bytes -= then.bytes;
        }
        difference
    }
}

/// Counters that several lanes add to.
#[derive(Debug, Default)]
pub(crate) struct Counters([(AtomicU64, AtomicU64); Kind::ALL.len()]);

impl Counters {
    pub(crate) fn add(&self, kind: Kind, bytes: usize) {
        let (calls, total) = &self.0[kind as usize];
        calls.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        let mut stats = Stats::default();
        for (stats, (calls, bytes)) in stats.0.iter_mut().zip(&self.0) {
            *stats = KindStats {
                calls: calls.load(Ordering::Relaxed),
                bytes: bytes.load(Ordering::Relaxed),
            };
        }
        stats
    }
}

/// The last calls of one rank, oldest first.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    capacity: usize,
    calls: Mutex<VecDeque<Arc<CallInfo>>>,
    num_calls: AtomicU64,
}

impl FlightRecorder {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            calls: Mutex::default(),
            num_calls: AtomicU64::new(0),
        }
    }

    /// How many calls there have been, also those that are not kept.
    pub(crate) fn num_calls(&self) -> u64 {
        self.num_calls.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, call: Arc<CallInfo>) {
        self.num_calls.fetch_add(1, Ordering::Relaxed);
        if self.capacity == 0 {
            return;
        }
        let mut calls = lock(&self.calls);
        let oldest = if calls.len() >= self.capacity {
            calls.pop_front()
        } else {
            None
        };
        calls.push_back(call);
        drop(calls);
        drop(oldest);
    }

    pub(crate) fn read(&self) -> Vec<Arc<CallInfo>> {
        lock(&self.calls).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_counter() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{}", kind.name());
        }
        let counters = Counters::default();
        counters.add(Kind::Exchange, 0);
        counters.add(Kind::AllGather, 10);
        let before = counters.read();
        counters.add(Kind::AllGather, 5);
        let stats = counters.read();
        assert_eq!(
            stats.get(Kind::AllGather),
            KindStats {
                calls: 2,
                bytes: 15
            }
        );
        assert_eq!(
            stats.total(),
            KindStats {
                calls: 3,
                bytes: 15
            }
        );
        assert_eq!(
            stats.since(&before).total(),
            KindStats { calls: 1, bytes: 5 }
        );
    }
}
