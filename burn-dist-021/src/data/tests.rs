use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_core::data::dataloader::DataLoader;
use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::{Dataset, InMemDataset};
use burn_core::tensor::{Int, Tensor, TensorData};
use burn_flex::{Flex, FlexDevice};

use super::*;
use crate::launch::World;
use crate::layout::Rows;
use crate::{DeviceMesh, Dist, ProcessLocal};

/// Hands items on as they are.
struct Items;

impl<I> Batcher<Flex, I, Vec<I>> for Items {
    fn batch(&self, items: Vec<I>, _: &FlexDevice) -> Vec<I> {
        items
    }
}

type Plain<I = usize> = Loader<Flex, I, Vec<I>>;

fn loader(samples: usize) -> Plain {
    let data = InMemDataset::new((0..samples).collect());
    Loader::new(data, Items, FlexDevice)
}

fn all<I: Send + 'static>(loader: &Plain<I>) -> Vec<Vec<I>> {
    let batches = loader.batches().unwrap();
    batches.collect::<Result<_, _>>().unwrap()
}

/// Returns the position of a loader, written and read.
fn saved<I>(loader: &Plain<I>) -> Position {
    let json = serde_json::to_string(&loader.position()).unwrap();
    let read = serde_json::from_str(&json).unwrap();
    assert_eq!(loader.position(), read);
    read
}

#[test]
fn batches_are_consecutive_samples_of_an_epoch() {
    let loader = loader(5).batch_size(2).epochs(2);
    let epoch = [vec![0, 1], vec![2, 3], vec![4]];
    assert_eq!(all(&loader), [epoch.clone(), epoch].concat());
    let position = loader.position();
    assert_eq!((position.epoch, position.sample), (2, 0));
    assert!(all(&loader).is_empty(), "there is no third epoch");
}

#[test]
fn a_short_batch_is_left_out_if_that_is_asked_for() {
    let loader = loader(5).batch_size(2).epochs(2).drop_last();
    let epoch = [vec![0, 1], vec![2, 3]];
    assert_eq!(all(&loader), [epoch.clone(), epoch].concat());
    assert_eq!(loader.position().epoch, 2);
}

#[test]
fn every_epoch_has_an_order_of_its_own() {
    let epochs = all(&loader(20).batch_size(20).shuffle(1).epochs(3));
    for (at, epoch) in epochs.iter().enumerate() {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
        assert!(!epochs[..at].contains(epoch));
    }
    assert_eq!(epochs, all(&loader(20).batch_size(20).shuffle(1).epochs(3)));
    assert_ne!(epochs, all(&loader(20).batch_size(20).shuffle(2).epochs(3)));
}

/// Interrupted after every batch and resumed with every other batch size: the samples are those without interruption.
#[test]
fn a_resumed_run_loses_and_repeats_nothing() {
    let epochs = 3;
    for samples in 0..10 {
        for seed in [None, Some(7)] {
            let loader = |batch_size| {
                let loader = loader(samples).batch_size(batch_size).epochs(epochs);
                match seed {
                    Some(seed) => loader.shuffle(seed),
                    None => loader,
                }
            };
            let whole = all(&loader(1)).concat();
            assert_eq!(whole.len(), epochs as usize * samples);
            for before in 1..12 {
                for taken in 0..=all(&loader(before)).len() {
                    let first = loader(before);
                    let mut seen: Vec<usize> = Vec::new();
                    for batch in first.batches().unwrap().take(taken) {
                        seen.extend(batch.unwrap());
                    }
                    let position = saved(&first);
                    assert_eq!(
                        position.epoch as usize * samples + position.sample,
                        seen.len()
                    );
                    for after in 1..12 {
                        let second = loader(after).resume(&position).unwrap();
                        let rest = all(&second);
                        let context = format!("{samples} {seed:?} {before} {taken} {after}");
                        assert!(rest.iter().all(|batch| batch.len() <= after), "{context}");
                        assert_eq!([seen.clone(), rest.concat()].concat(), whole, "{context}");
                    }
                }
            }
        }
    }
}

/// With `drop_last` an epoch loses what makes no whole batch of those that it had left.
#[test]
fn a_resumed_run_that_leaves_out_short_batches_loses_only_these() {
    let epochs = 3;
    for samples in 1..10 {
        let loader = |batch_size| {
            let loader = loader(samples).batch_size(batch_size).epochs(epochs);
            loader.shuffle(7).drop_last()
        };
        let order = all(&loader(1));
        for before in 1..=samples {
            let whole = all(&loader(before));
            for taken in 0..=whole.len() {
                let first = loader(before);
                let seen = first.batches().unwrap().take(taken);
                let seen: Vec<_> = seen.map(Result::unwrap).collect();
                assert_eq!(seen, whole[..taken]);
                let position = saved(&first);
                for after in 1..12 {
                    let mut expected = Vec::new();
                    let mut start = position.sample;
                    for epoch in order.chunks(samples).skip(position.epoch as usize) {
                        expected.extend(epoch[start..].chunks_exact(after).map(<[_]>::concat));
                        start = 0;
                    }
                    let rest = all(&loader(after).resume(&position).unwrap());
                    assert_eq!(rest, expected, "{samples} {before} {taken} {after}");
                    if after == before {
                        assert_eq!(rest, whole[taken..]);
                    }
                }
            }
        }
    }
}

#[test]
fn workers_change_neither_batches_nor_positions() {
    for samples in [0, 1, 9, 10] {
        for batch_size in [1, 3, 5, 11] {
            let loader = |num_workers| {
                let loader = loader(samples).batch_size(batch_size).shuffle(3).epochs(3);
                loader.num_workers(num_workers)
            };
            let here = all(&loader(0));
            for num_workers in 1..5 {
                assert_eq!(all(&loader(num_workers)), here);
                for taken in 0..=here.len() {
                    let (first, plain) = (loader(num_workers), loader(0));
                    assert_eq!(first.batches().unwrap().take(taken).count(), taken);
                    assert_eq!(plain.batches().unwrap().take(taken).count(), taken);
                    assert_eq!(first.position(), plain.position());
                    let second = loader(1).resume(&first.position()).unwrap();
                    assert_eq!(all(&second), here[taken..]);
                }
            }
        }
    }
}

/// A data set of which some items are slow, missing or not to be had, and which counts those that were loaded.
struct Odd {
    loaded: Arc<AtomicUsize>,
    missing: Option<usize>,
    panics: Option<usize>,
}

impl Odd {
    fn new() -> Self {
        Self {
            loaded: Arc::default(),
            missing: None,
            panics: None,
        }
    }
}

impl Dataset<usize> for Odd {
    fn get(&self, index: usize) -> Option<usize> {
        // The first worker is the slowest.
        if index.is_multiple_of(4) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_ne!(Some(index), self.panics, "item {index} is broken");
        self.loaded.fetch_add(1, Ordering::Relaxed);
        (Some(index) != self.missing).then_some(index)
    }

    fn len(&self) -> usize {
        100
    }
}

fn odd(data: Odd, num_workers: usize) -> Plain {
    let loader = Loader::new(data, Items, FlexDevice);
    loader.batch_size(2).num_workers(num_workers)
}

#[test]
fn slow_workers_are_waited_for() {
    let found = all(&odd(Odd::new(), 4).epochs(1)).concat();
    assert_eq!(found, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_missing_item_is_an_error_after_the_batches_before_it() {
    for num_workers in 0..4 {
        let data = Odd {
            missing: Some(7),
            ..Odd::new()
        };
        let loader = odd(data, num_workers);
        let mut batches = loader.batches().unwrap();
        for first in [0, 2, 4] {
            assert_eq!(batches.next().unwrap().unwrap(), [first, first + 1]);
        }
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::MissingItem { index: 7 }));
        assert_eq!(error.to_string().matches("no item at 7").count(), 1);
        assert!(batches.next().is_none());
        assert_eq!(loader.position().sample, 6);
    }
}

#[test]
fn a_panic_of_a_worker_is_one_where_its_batch_is_asked_for() {
    for num_workers in 0..4 {
        let data = Odd {
            panics: Some(7),
            ..Odd::new()
        };
        let loader = odd(data, num_workers);
        let mut batches = loader.batches().unwrap();
        assert_eq!(batches.by_ref().take(3).flatten().count(), 3);
        let panic = catch_unwind(AssertUnwindSafe(|| batches.next())).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("item 7 is broken"), "{text}");
        assert!(batches.next().is_none());
        assert_eq!(loader.position().sample, 6);
    }
}

#[test]
fn threads_end_with_the_iterator_and_load_little_ahead() {
    let data = Odd::new();
    let loaded = Arc::clone(&data.loaded);
    let rows = Arc::new(());
    let seen = Arc::clone(&rows);
    let choose = move |num| {
        let _in_every_thread = &seen;
        Rows::all(num)
    };
    let batching = |items: Vec<usize>, _: &Rows, _: &FlexDevice| items;
    let loader: Plain = Loader::local(data, choose, batching, FlexDevice);
    let loader = loader.batch_size(2).num_workers(3);
    let mut batches = loader.batches().unwrap();
    batches.next().unwrap().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    // One batch was handed out; each worker has one waiting and one in hand.
    assert!(loaded.load(Ordering::Relaxed) <= 2 * (1 + 2 * 3));
    drop(loader);
    // What threads hold is there as long as they are.
    assert_eq!(Arc::strong_count(&rows), 2);
    drop(batches);
    assert_eq!(Arc::strong_count(&rows), 1);
}

#[test]
fn other_data_is_refused_with_what_was_expected_and_found() {
    let saved = loader(10).shuffle(1).fingerprint("v1").position();
    let resume = |loader: Plain| loader.resume(&saved).err().map(|error| error.to_string());
    assert_eq!(resume(loader(10).shuffle(1).fingerprint("v1")), None);
    let others = [
        (loader(11).shuffle(1).fingerprint("v1"), "11 samples"),
        (loader(10).shuffle(2).fingerprint("v1"), "seed 2"),
        (loader(10).fingerprint("v1"), "not shuffled"),
        (loader(10).shuffle(1).fingerprint("v2"), "`v2`"),
        (loader(10).shuffle(1), "without fingerprint"),
    ];
    for (other, found) in others {
        let error = resume(other).unwrap();
        let expected = "10 samples shuffled by seed 1 with fingerprint `v1`";
        assert!(error.contains(expected) && error.contains(found), "{error}");
    }
}

#[test]
fn positions_that_no_loader_has_saved_are_refused() {
    let position = |samples, sample| Position {
        sample,
        ..loader(samples).position()
    };
    assert!(loader(10).resume(&position(10, 9)).is_ok());
    let error = loader(10).resume(&position(10, 10)).unwrap_err();
    let beyond = ResumeError::Beyond {
        sample: 10,
        samples: 10,
    };
    assert_eq!(error, beyond);
    assert!(loader(0).resume(&position(0, 0)).is_ok());
    assert!(loader(0).resume(&position(0, 1)).is_err());
    let last = Position {
        epoch: u64::MAX,
        ..position(10, 0)
    };
    let endless = loader(10).batch_size(4).resume(&last).unwrap();
    assert_eq!(endless.batches().unwrap().take(5).count(), 5);
}

#[test]
fn epochs_without_batches_and_without_end_are_an_error() {
    for loader in [loader(0), loader(3).batch_size(4).drop_last()] {
        let error = loader.batches().unwrap_err();
        assert!(matches!(error, DataError::NoBatches { .. }), "{error}");
        assert!(all(&loader.epochs(2)).is_empty());
    }
}

#[test]
fn fingerprints_of_items_tell_data_apart() {
    let fingerprint = |items: Vec<&str>, count| {
        let items = items.into_iter().map(String::from).collect();
        let loader: Plain<String> = Loader::new(InMemDataset::new(items), Items, FlexDevice);
        let loader = loader.fingerprint_items(count).unwrap();
        loader.position().stream.fingerprint.unwrap()
    };
    let found = fingerprint(vec!["a", "b", "c"], 3);
    assert_eq!(found, fingerprint(vec!["a", "b", "c"], 8));
    assert_eq!(found, "3 items 9b6c8e30a46652d5");
    for other in [["a", "b", "d"], ["b", "a", "c"], ["", "ab", "c"]] {
        assert_ne!(found, fingerprint(other.to_vec(), 3));
    }
    // Of three items the first and the last.
    let ends = fingerprint(vec!["a", "b", "c"], 2);
    assert_eq!(ends, fingerprint(vec!["a", "x", "c"], 2));
    assert_ne!(ends, fingerprint(vec!["a", "b", "x"], 2));
    fingerprint(vec![], 2);
    fingerprint(vec!["a"], 1);
    fingerprint(vec!["a"], 0);

    let data = Odd {
        missing: Some(99),
        ..Odd::new()
    };
    let error = odd(data, 0).fingerprint_items(2).unwrap_err();
    assert!(matches!(error, DataError::MissingItem { index: 99 }));
    let keys = vec![HashMap::from([((1, 2), 3)])];
    let loader: Plain<HashMap<(u8, u8), u8>> =
        Loader::new(InMemDataset::new(keys), Items, FlexDevice);
    let error = loader.fingerprint_items(1).unwrap_err();
    assert!(matches!(error, DataError::NoFingerprint { index: 0, .. }));
}

/// Two processes load their rows, go on as three, and see the samples of one process; short batches included.
#[test]
fn processes_that_load_their_rows_make_the_batches_of_one() {
    type Global = Loader<Dist<Flex>, usize, Vec<i32>>;
    let data = || InMemDataset::new((0..11).collect());
    let local = |mesh: &DeviceMesh, batch_size| -> Global {
        let rows = {
            let mesh = mesh.clone();
            move |num| mesh.local_rows(num)
        };
        let batching = |items: Vec<usize>, rows: &Rows, device: &_| {
            assert_eq!(items.len(), rows.len());
            let ids: Vec<i32> = items.iter().map(|item| *item as i32).collect();
            let num = ids.len();
            let ids = TensorData::new(ids, [num]);
            let all = Tensor::<Dist<Flex>, 1, Int>::from_process_local(ids, rows.total(), device);
            all.unwrap().into_data().iter::<i32>().collect()
        };
        let loader = Loader::local(data(), rows, batching, mesh.device());
        loader
            .batch_size(batch_size)
            .shuffle(5)
            .epochs(2)
            .num_workers(1)
    };
    let in_processes = |num: usize, of_mesh: &(dyn Fn(DeviceMesh) + Sync)| {
        std::thread::scope(|scope| {
            for world in World::simulated(num) {
                scope.spawn(move || {
                    let mesh = DeviceMesh::builder().axis("fsdp", num).world(world);
                    of_mesh(mesh.build().unwrap());
                });
            }
        });
    };
    let expected = |batch_size| -> Vec<Vec<i32>> {
        let plain: Plain = Loader::new(data(), Items, FlexDevice);
        let plain = all(&plain.batch_size(batch_size).shuffle(5).epochs(2));
        let ids = |batch: &Vec<usize>| batch.iter().map(|item| *item as i32).collect();
        plain.iter().map(ids).collect()
    };
    let position = parking_lot::Mutex::new(Vec::new());
    in_processes(2, &|mesh| {
        let loader = local(&mesh, 4);
        // One more than an epoch.
        let batches: Result<Vec<_>, _> = loader.batches().unwrap().take(4).collect();
        assert_eq!(batches.unwrap(), expected(4)[..4]);
        position.lock().push(loader.position());
    });
    let [one, two] = &position.lock()[..] else {
        panic!("two processes");
    };
    assert_eq!(one, two);
    in_processes(3, &|mesh| {
        let loader = local(&mesh, 5).resume(one).unwrap();
        let batches: Result<Vec<_>, _> = loader.batches().unwrap().collect();
        assert_eq!(batches.unwrap().concat(), expected(1).concat()[15..]);
    });
}

#[test]
fn rows_of_another_number_are_a_bug_that_is_named() {
    let batching = |items: Vec<usize>, _: &Rows, _: &FlexDevice| items;
    let data = InMemDataset::new((0..5).collect());
    let loader: Plain = Loader::local(data, |_| Rows::all(2), batching, FlexDevice);
    let mut batches = loader.batch_size(2).batches().unwrap();
    assert_eq!(batches.by_ref().take(2).flatten().count(), 2);
    assert!(catch_unwind(AssertUnwindSafe(|| batches.next())).is_err());
}

#[test]
fn burn_takes_it_epoch_by_epoch() {
    let whole = all(&loader(10).batch_size(4).shuffle(2).epochs(3));
    for num_workers in [0, 2] {
        let first = loader(10).batch_size(4).shuffle(2).num_workers(num_workers);
        // What burn-train does first.
        let device = DataLoader::<Flex, _>::to_device(&first, &FlexDevice);
        assert_eq!(device.num_items(), 10);
        for epoch in whole.chunks(3).take(2) {
            let mut iter = device.iter();
            let mut processed = 0;
            for batch in epoch {
                assert_eq!(iter.next().as_ref(), Some(batch));
                processed += batch.len();
                let progress = iter.progress();
                assert_eq!(
                    (progress.items_processed, progress.items_total),
                    (processed, 10)
                );
            }
            assert!(iter.next().is_none());
        }
        // The position is that of the loader it was made from.
        let position = first.position();
        assert_eq!((position.epoch, position.sample), (2, 0));
        let second = loader(10).batch_size(4).shuffle(2);
        let second = second.resume(&position).unwrap();
        assert_eq!(
            DataLoader::<Flex, _>::iter(&second).collect::<Vec<_>>(),
            whole[6..]
        );

        let shared = first.to_device(&FlexDevice);
        assert_eq!(shared.iter().next().as_ref(), Some(&whole[6]));
        let rest = shared.iter();
        assert_eq!(rest.progress().items_processed, 4);
        assert_eq!(rest.collect::<Vec<_>>(), whole[7..]);
    }
}

#[test]
fn slices_are_loaders_of_their_items() {
    let parts = |loader: &Plain| {
        let slices = [(0, 3), (3, 7), (7, 12)].map(|(start, end)| {
            let slice = DataLoader::<Flex, _>::slice(loader, start, end);
            let items = slice.iter().collect::<Vec<_>>().concat();
            assert_eq!(slice.num_items(), items.len());
            // Of the rest of the data set.
            let slice = slice.slice(1, 2);
            assert_eq!(slice.iter().collect::<Vec<_>>(), [[start + 1]]);
            items
        });
        slices.concat()
    };
    let plain = loader(10).batch_size(2);
    assert_eq!(parts(&plain), (0..10).collect::<Vec<_>>());
    let shuffled = loader(10).batch_size(2).shuffle(1);
    let mut found = parts(&shuffled);
    assert_ne!(found, (0..10).collect::<Vec<_>>());
    found.sort_unstable();
    assert_eq!(found, (0..10).collect::<Vec<_>>());
    assert_eq!(shuffled.position().sample, 0, "slices have their own");
}
