//! A call that has been made: the fingerprint that must match, and the text that errors and records show.

use super::group::{Group, Lane};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::collective::{Collective, Kind};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The operation of a call, apart from where and when: the part that must match between members.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// With the sizes of the axes that a reduction follows.
    Collective(DType, Collective, Arc<[usize]>),
    /// The thing that is exchanged, and the kind and bytes that it counts as.
    Exchange(Arc<str>, (Kind, usize)),
    /// The same of the operands of a collective, which every member does for itself.
    Operands(DType, Collective, Arc<[usize]>),
}

/// A call that a rank has made: who, what, where and when.
///
/// Its text: `rank 0 called all_reduce sum f32 x 1024 (call 17 on group [0, 1] lane 0, layers.3.wo)`.
#[derive(Debug)]
pub struct CallInfo {
    pub(crate) rank: Rank,
    pub(crate) group: Group,
    pub(crate) lane: Lane,
    pub(crate) sequence: u64,
    pub(crate) label: Arc<str>,
    pub(crate) what: What,
    pub(crate) started: Instant,
    /// Nanoseconds from start to finish, at least 1; 0 while unfinished.
    pub(crate) elapsed_ns: AtomicU64,
    pub(crate) transfer: OnceLock<Transfer>,
}

/// When a call that was waited for took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// When the last member launched it.
    pub launched: Instant,
    /// From when on it moved data.
    ///
    /// With a modelled [`Network`](super::Network), when it had its links. Without one, data moves by members that
    /// wait: when this one waited and all had launched.
    pub start: Instant,
    /// When the output was there. With a modelled network, this is `start` and the modelled time, the same for all
    /// members.
    pub end: Instant,
}

impl Transfer {
    /// How long data moved.
    pub fn duration(&self) -> Duration {
        self.end.saturating_duration_since(self.start)
    }
}

impl CallInfo {
    /// Returns a call that begins now.
    pub(crate) fn new(
        rank: Rank,
        (group, lane): (Group, Lane),
        sequence: u64,
        label: Arc<str>,
        what: What,
    ) -> Arc<Self> {
        Arc::new(Self {
            rank,
            group,
            lane,
            sequence,
            label,
            what,
            started: Instant::now(),
            elapsed_ns: AtomicU64::new(0),
            transfer: OnceLock::new(),
        })
    }

    /// The rank that made the call.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Between whom.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// On which lane.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The number of the call among those of this rank on this group and lane, from 0.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The place in the model; empty without one.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The kind of call.
    pub fn kind(&self) -> Kind {
        match &self.what {
            What::Collective(_, collective, _) | What::Operands(_, collective, _) => {
                collective.kind()
            }
            What::Exchange(_, (kind, _)) => *kind,
        }
    }

    /// The bytes that this rank receives from other members.
    pub fn received_bytes(&self) -> usize {
        match &self.what {
            What::Exchange(_, (_, bytes)) => *bytes,
            What::Collective(dtype, collective, _) | What::Operands(dtype, collective, _) => {
                let member = self.group.member(self.rank);
                member.map_or(0, |member| {
                    collective.received_bytes(*dtype, self.group.ranks(), member)
                })
            }
        }
    }

    /// How long the call took from start to finish; `None` while it is unfinished (or was never waited for).
    pub fn elapsed(&self) -> Option<Duration> {
        match self.elapsed_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// When the call took place; `None` until it is waited for, and for a send, which waits for nobody.
    pub fn transfer(&self) -> Option<Transfer> {
        self.transfer.get().copied()
    }

    /// Notes that a [recorded](super::Communicator::record) call is over.
    pub fn end(&self) {
        // Other libraries do not tell when the others launched theirs. Set once: a call is waited for once.
        let _ = self.transfer.set(Transfer {
            launched: self.started,
            start: self.started,
            end: Instant::now(),
        });
        self.finish();
    }

    pub(crate) fn finish(&self) {
        let ns = self.started.elapsed().as_nanos().clamp(1, u64::MAX as u128) as u64;
        self.elapsed_ns.store(ns, Ordering::Relaxed);
    }

    /// Returns whether both are parts of one operation: the fingerprint of a call is what it does, on what, and where
    /// in the model.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        let same = match (&self.what, &other.what) {
            (What::Collective(dtype_a, a, axes_a), What::Collective(dtype_b, b, axes_b)) => {
                dtype_a == dtype_b && axes_a == axes_b && a.matches(b)
            }
            (What::Exchange(a, _), What::Exchange(b, _)) => a == b,
            (What::Operands(dtype_a, a, axes_a), What::Operands(dtype_b, b, axes_b)) => {
                (dtype_a, a, axes_a) == (dtype_b, b, axes_b)
            }
            _ => false,
        };
        same && self.label == other.label
    }
}

impl fmt::Display for CallInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            group,
            lane,
            sequence,
            label,
            what,
            ..
        } = self;
        write!(
            f,
            "rank {} called {what} (call {sequence} on group {group} lane {}",
            rank.0, lane.0
        )?;
        if !label.is_empty() {
            write!(f, ", {label}")?;
        }
        write!(f, ")")
    }
}

impl What {
    /// Returns whether members hand each other values.
    pub(crate) fn is_exchange(&self) -> bool {
        matches!(self, Self::Exchange(..) | Self::Operands(..))
    }

    /// Returns whether it is half of a transfer between a pair, which is not a collective.
    pub(crate) fn is_transfer(&self) -> bool {
        matches!(
            self,
            Self::Collective(_, Collective::Send { .. } | Collective::Recv { .. }, _)
        )
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, collective, axes) = match self {
            What::Exchange(what, _) => return write!(f, "exchange of {what}"),
            What::Collective(dtype, collective, axes) => (dtype, collective, axes),
            What::Operands(dtype, collective, axes) => {
                write!(f, "exchange for ")?;
                (dtype, collective, axes)
            }
        };
        if !axes.is_empty() {
            write!(f, "axis by axis {axes:?}: ")?;
        }
        write!(f, "{}", collective.display(*dtype))
    }
}
