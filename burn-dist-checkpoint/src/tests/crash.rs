//! The machine crashes at every write, sync, rename, creation and removal in turn: the newest checkpoint is whole.

use super::state::{State, options};
use crate::error::CheckpointError;
use crate::save::{Checkpoints, Keep};
use crate::storage::memory::{MemoryStorage, Survives};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

const KEEP: Keep = Keep {
    last: NonZeroUsize::MIN,
    every: None,
};

fn checkpoints(storage: &MemoryStorage) -> Checkpoints {
    Checkpoints::on(Arc::new(storage.clone()), "home/run")
}

/// Saves step 2 and removes step 1. Returns whether step 2 was committed.
fn save(storage: &MemoryStorage, state: &State) -> (bool, Result<(), CheckpointError>) {
    let checkpoints = checkpoints(storage);
    if let Err(error) = state.save(&checkpoints, 2, 2) {
        return (false, Err(error));
    }
    (true, checkpoints.prune(KEEP).map(drop))
}

#[test]
fn a_crash_at_any_call_loses_no_checkpoint() {
    let (old, new) = (State::example(), State::seeded(77));
    let before = MemoryStorage::new();
    old.save(&checkpoints(&before), 1, 1).unwrap();
    // What was saved survives without anything more.
    let before = before.restart(Survives::Nothing);
    let all = [Survives::Nothing, Survives::Everything]
        .into_iter()
        .chain((0..24).map(Survives::Some));
    let all: Vec<Survives> = all.collect();
    let (mut calls, mut seen) = (0, BTreeSet::new());
    loop {
        // Each run starts from the same disk.
        let storage = before.restart(Survives::Everything);
        storage.crash_at(calls);
        let (is_committed, result) = save(&storage, &new);
        if result.is_ok() {
            assert!(!storage.has_crashed());
            break;
        }
        assert!(storage.has_crashed(), "{result:?}");
        for &survives in &all {
            let after = storage.restart(survives);
            let found = checkpoints(&after);
            let steps = found.steps().unwrap();
            let text = format!("crash at call {calls}, {survives:?}: {steps:?}");
            assert!(
                !steps.is_empty() && (!is_committed || steps.contains(&2)),
                "{text}"
            );
            for &step in &steps {
                let checkpoint = found
                    .open(step)
                    .unwrap_or_else(|error| panic!("{text}: {error}"));
                let state = if step == 1 { &old } else { &new };
                state.assert_is(&checkpoint, options());
            }
            seen.insert(steps);
            // The next save goes on from there, and nothing is left of the last.
            new.save(&found, 3, 3)
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            found.prune(KEEP).unwrap();
            assert_eq!(
                super::names(&after, "home/run"),
                ["step-0000000003"],
                "{text}"
            );
            new.assert_is(&found.open(3).unwrap(), options());
        }
        calls += 1;
    }
    // Crashes hit before the commit, between commit and removal, and after the removal.
    assert_eq!(seen, [vec![1], vec![1, 2], vec![2]].into());
    assert!(calls > 20, "{calls}");
}

#[test]
fn the_first_checkpoint_is_whole_or_not_there() {
    let state = State::example();
    for calls in 0.. {
        let storage = MemoryStorage::new();
        storage.crash_at(calls);
        let saved = state.save(&checkpoints(&storage), 1, 1);
        for survives in [
            Survives::Nothing,
            Survives::Everything,
            Survives::Some(calls),
        ] {
            let found = checkpoints(&storage.restart(survives));
            match found.open_latest().unwrap() {
                Some((_, checkpoint)) => state.assert_is(&checkpoint, options()),
                None => assert!(saved.is_err(), "{survives:?}"),
            }
        }
        if saved.is_ok() {
            break;
        }
    }
}
