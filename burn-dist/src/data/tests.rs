use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_core::data::dataloader::DataLoader;
use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn_core::tensor::{Device, Int, Tensor, TensorData};

use super::*;
use crate::launch::World;
use crate::layout::Rows;
use crate::{DeviceMesh, ProcessLocal};

/// Hands items on as they are.
struct Items;

impl<I> Batcher<I, Vec<I>> for Items {
    fn batch(&self, items: Vec<I>, _: &Device) -> Vec<I> {
        items
    }
}

type Plain<I = usize> = Loader<I, Vec<I>>;

fn loader(samples: usize) -> Plain {
    let data = InMemDataset::new((0..samples).collect());
    Loader::new(data, Items, Device::flex())
}

fn all<I: Send + 'static>(loader: &Plain<I>) -> Vec<Vec<I>> {
    let batches = loader.batches().unwrap();
    batches.collect::<Result<_, _>>().unwrap()
}

/// Data with one item that cannot be read.
struct Torn;

impl Dataset<usize> for Torn {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        match index {
            7 => Err(DatasetError::new(std::io::Error::other("a torn page"))),
            index => Ok(index),
        }
    }

    fn len(&self) -> usize {
        100
    }
}

#[test]
fn an_item_that_cannot_be_read_is_an_error_after_the_batches_before_it() {
    for num_workers in 0..3 {
        let loader = Loader::new(Torn, Items, Device::flex());
        let loader = loader.batch_size(2).num_workers(num_workers);
        let mut batches = loader.batches().unwrap();
        assert_eq!(batches.by_ref().take(3).flatten().count(), 3);
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::Item { index: 7, .. }));
        assert_eq!(
            error.to_string(),
            "item 7 of the data set cannot be read: a torn page"
        );
        assert!(batches.next().is_none());
        assert_eq!(loader.position().sample, 6);
        // As burn-train asks for it.
        let mut iter = DataLoader::iter(&loader);
        assert_eq!(
            iter.next().unwrap().unwrap_err().to_string(),
            error.to_string()
        );
    }
}

/// Two processes load their rows, go on as three, and see the samples of one process; short batches included.
#[test]
fn processes_that_load_their_rows_make_the_batches_of_one() {
    type Global = Loader<usize, Vec<i32>>;
    let data = || InMemDataset::new((0..11).collect());
    let local = |mesh: &DeviceMesh, batch_size| -> Global {
        let rows = {
            let mesh = mesh.clone();
            move |num| mesh.local_rows(num)
        };
        let batching = |items: Vec<usize>, rows: &Rows, device: &Device| {
            assert_eq!(items.len(), rows.len());
            let ids: Vec<i32> = items.iter().map(|item| *item as i32).collect();
            let num = ids.len();
            let ids = TensorData::new(ids, [num]);
            let all = Tensor::<1, Int>::from_process_local(ids, rows.total(), device);
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
        let plain: Plain = Loader::new(data(), Items, Device::flex());
        let plain = all(&plain.batch_size(batch_size).shuffle(5).epochs(2));
        let ids = |batch: &Vec<usize>| batch.iter().map(|item| *item as i32).collect();
        plain.iter().map(ids).collect()
    };
    let position = std::sync::Mutex::new(Vec::new());
    in_processes(2, &|mesh| {
        let loader = local(&mesh, 4);
        // One more than an epoch.
        let batches: Result<Vec<_>, _> = loader.batches().unwrap().take(4).collect();
        assert_eq!(batches.unwrap(), expected(4)[..4]);
        position.lock().unwrap().push(loader.position());
    });
    let [one, two] = &position.lock().unwrap()[..] else {
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
    let batching = |items: Vec<usize>, _: &Rows, _: &Device| items;
    let data = InMemDataset::new((0..5).collect());
    let loader: Plain = Loader::local(data, |_| Rows::all(2), batching, Device::flex());
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
        let device = DataLoader::to_device(&first, &Device::flex());
        assert_eq!(device.num_items(), 10);
        for epoch in whole.chunks(3).take(2) {
            let mut iter = device.iter();
            let mut processed = 0;
            for batch in epoch {
                assert_eq!(iter.next().unwrap().as_ref().ok(), Some(batch));
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
            DataLoader::iter(&second).flatten().collect::<Vec<_>>(),
            whole[6..]
        );

        let shared = first.to_device(&Device::flex());
        assert_eq!(shared.iter().next().unwrap().as_ref().ok(), Some(&whole[6]));
        let rest = shared.iter();
        assert_eq!(rest.progress().items_processed, 4);
        assert_eq!(rest.flatten().collect::<Vec<_>>(), whole[7..]);
    }
}

#[test]
fn slices_are_loaders_of_their_items() {
    let parts = |loader: &Plain| {
        let slices = [(0, 3), (3, 7), (7, 12)].map(|(start, end)| {
            let slice = DataLoader::slice(loader, start, end);
            let items = slice.iter().flatten().collect::<Vec<_>>().concat();
            assert_eq!(slice.num_items(), items.len());
            // Of the rest of the data set.
            let slice = slice.slice(1, 2);
            assert_eq!(slice.iter().flatten().collect::<Vec<_>>(), [[start + 1]]);
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
