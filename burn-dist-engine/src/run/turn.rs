//! Which ranks share a device: they take turns on it.
//!
//! A backend such as burn-wgpu or burn-cuda puts the operations of each *stream* on the device's queue in order, and by
//! default every thread has a stream. Its tensors are reference counted, and an operation on the only reference may
//! work in place. Across streams that is not safe to rely on: a reader's kernel may still wait in its stream when the
//! writer, now alone, overwrites the tensor in another; and a backend may decide "the only reference" and record the
//! operation in two steps (burn-fusion does), between which another thread may drop or use the tensor.
//!
//! So ranks that share a device
//!
//! - share one stream: what a rank has submitted runs before what anyone submits afterwards, and a handle that is
//!   handed over needs no synchronisation;
//! - take turns: one of them submits at a time, and yields when it waits for the others. Nothing is lost to speak
//!   of, because a device runs one queue.
//!
//! Flex needs neither: its tensors are plain memory, and its ranks are meant to use all cores at once. Other backends
//! that compute at once, such as NdArray, would not need it either, but no trait of Burn's tells them apart; their
//! ranks take turns and lose by it.

use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use burn_backend::backend::DeviceId;
use burn_backend::{Backend, StreamId};
use burn_std::device::Device;
use rustc_hash::FxHashMap;

use crate::mesh::Rank;

/// A token that one of several threads holds.
///
/// Not a lock guard, because it is released in the middle of a call and taken back.
#[derive(Default)]
struct Token {
    taken: Mutex<bool>,
    given: Condvar,
}

impl Token {
    fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) {
        let mut taken = self.taken();
        while *taken {
            taken = self
                .given
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    fn give(&self) {
        *self.taken() = false;
        self.given.notify_one();
    }
}

/// Calls a method of a token when it goes out of scope, also by a panic.
struct AtEnd<'a>(&'a Token, fn(&Token));

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        (self.1)(self.0);
    }
}

/// How one rank shares its device with others.
#[derive(Clone)]
pub(super) struct Turn {
    /// The device of each rank, as a number: equal numbers are one device. `None` in another process.
    devices: Arc<[Option<usize>]>,
    /// Which ranks have a device of their own.
    alone: Arc<[bool]>,
    /// The token that it shares with the other ranks on its device.
    shared: Option<(Arc<Token>, StreamId)>,
}

impl Turn {
    /// Returns the turns of ranks on `devices`, in rank order; `apart` if ranks on one device need not know of each
    /// other.
    #[cfg(test)]
    pub(super) fn assign<B: Backend>(devices: &[B::Device], apart: bool) -> Vec<Self> {
        let turns = Self::assign_part::<B>(devices, apart, 0, devices.len(), None);
        turns.expect("a thread for a number")
    }

    /// Returns the turns of the ranks from `first` on, of `num_ranks` in all processes. `alone` says of each whether it
    /// has a device of its own; without it, that is seen from `devices`, which are all.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub(super) fn assign_part<B: Backend>(
        devices: &[B::Device],
        apart: bool,
        first: usize,
        num_ranks: usize,
        alone: Option<Vec<bool>>,
    ) -> io::Result<Vec<Self>> {
        let mut known: FxHashMap<DeviceId, usize> = FxHashMap::default();
        let numbers: Vec<usize> = devices
            .iter()
            .map(|device| {
                let next = known.len();
                match known.entry(device.to_id()) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => *new.insert(next),
                }
            })
            .collect();
        let mut all = vec![None; num_ranks];
        for (device, number) in all.iter_mut().skip(first).zip(&numbers) {
            *device = Some(*number);
        }
        let all: Arc<[Option<usize>]> = all.into();
        let ranks_at = |number: &Option<usize>| all.iter().filter(|other| *other == number).count();
        let alone: Arc<[bool]> = match alone {
            Some(alone) => alone.into(),
            None => all
                .iter()
                .map(|number| number.is_some() && ranks_at(number) == 1)
                .collect(),
        };
        let mut shared: FxHashMap<usize, (Arc<Token>, StreamId)> = FxHashMap::default();
        let turn = |&number: &usize| {
            let shared = match shared.entry(number) {
                _ if apart => None,
                Entry::Occupied(known) => Some(known.get().clone()),
                Entry::Vacant(new) => Some(new.insert((Arc::default(), new_stream()?)).clone()),
            };
            Ok(Self {
                devices: all.clone(),
                alone: alone.clone(),
                shared,
            })
        };
        numbers.iter().map(turn).collect()
    }

    /// Returns these turns, knowing which ranks of all processes have a device of their own.
    pub(super) fn knowing(self, alone: Vec<bool>) -> Self {
        Self {
            alone: alone.into(),
            ..self
        }
    }

    /// Returns whether the ranks of `group` share a device and hand each other handles.
    pub(super) fn share_device(&self, group: &[Rank]) -> bool {
        let device = |rank: &Rank| self.devices.get(rank.0 as usize).copied().flatten();
        let is_first = |rank| device(rank).is_some() && device(rank) == device(&group[0]);
        self.shared.is_some() && group.iter().all(is_first)
    }

    /// Returns whether each rank of `group` has a device that no other rank of the mesh uses.
    pub(super) fn are_alone(&self, group: &[Rank]) -> bool {
        let alone = |rank: &Rank| self.alone.get(rank.0 as usize) == Some(&true);
        group.iter().all(alone)
    }

    /// Returns whether operations of this rank are only queued when they return.
    pub(super) fn is_queued(&self) -> bool {
        self.shared.is_some()
    }

    /// Runs `work` when it is this rank's turn.
    pub(super) fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.shared {
            None => work(),
            Some((token, stream)) => {
                token.take();
                let _end = AtEnd(token, Token::give);
                stream.executes(work)
            }
        }
    }

    /// Lets the others on this device run while `wait` runs; called from inside [`Turn::work`].
    pub(super) fn yield_turn<T>(&self, wait: impl FnOnce() -> T) -> T {
        match &self.shared {
            None => wait(),
            Some((token, _)) => {
                token.give();
                let _end = AtEnd(token, Token::take);
                wait()
            }
        }
    }
}

/// Returns a stream that no thread uses: each thread gets a number of its own, and this one's ends at once.
///
/// # Errors
/// If the system starts no more threads.
fn new_stream() -> io::Result<StreamId> {
    let thread = std::thread::Builder::new().spawn(StreamId::current)?;
    let stream = thread.join();
    Ok(stream.expect("a thread that only counts does not panic"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_flex::{Flex, FlexDevice};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn ranks_on_one_device_take_turns() {
        let turns = Turn::assign::<Flex>(&[FlexDevice, FlexDevice, FlexDevice], false);
        let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let alone = || assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        let gone = || assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
        std::thread::scope(|scope| {
            for turn in &turns {
                scope.spawn(|| {
                    for _ in 0..50 {
                        turn.work(|| {
                            alone();
                            std::thread::yield_now();
                            gone();
                            turn.yield_turn(std::thread::yield_now);
                            alone();
                            rounds.fetch_add(1, Ordering::SeqCst);
                            gone();
                        });
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 150);
        assert!(turns[0].share_device(&[Rank(0), Rank(2)]));
    }

    #[test]
    fn a_turn_survives_a_panic() {
        let turns = Turn::assign::<Flex>(&[FlexDevice, FlexDevice], false);
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            turns[0].work(|| turns[0].yield_turn(|| std::panic::panic_any(1)))
        }));
        assert!(failed.is_err());
        assert_eq!(turns[1].work(|| 7), 7);
    }

    #[test]
    fn ranks_on_one_device_share_a_stream() {
        let turns = Turn::assign::<Flex>(&[FlexDevice, FlexDevice], false);
        let here = StreamId::current();
        let streams = [0, 1].map(|rank| turns[rank].work(StreamId::current));
        assert_eq!(streams[0], streams[1]);
        assert_ne!(streams[0], here);
        assert_eq!(StreamId::current(), here);
        let apart = Turn::assign::<Flex>(&[FlexDevice, FlexDevice], true);
        assert_eq!(apart[0].work(StreamId::current), here);
        assert!(!apart[0].share_device(&[Rank(0), Rank(1)]));
    }
}
