//! Threads that share tensors: a correct program never sees a tensor that is gone, and what threads do beside each
//! other leaves the windows of a step equal.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier, Mutex};

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Tensor, TensorData};
use burn_dist::OnMesh;

use super::mesh;

/// What a checkpointer does with a parameter, beside what the next step does with it.
#[test]
fn a_clone_is_read_while_another_thread_goes_on() {
    for text in ["", "fsdp=2"] {
        let mesh = mesh(text);
        let device = mesh.device().autodiff();
        let (clones, reader) = sync_channel::<(f32, Tensor<1>)>(1);
        let thread = std::thread::spawn(move || {
            for (value, clone) in reader {
                let data = clone.try_into_data().expect("it is there");
                assert_eq!(data.try_to_vec::<f32>().expect("floats"), [value; 4]);
            }
        });
        for step in 0..5_000 {
            let x = Tensor::<1>::from_floats([step as f32; 4], &device) * 2.0;
            clones
                .send((2.0 * step as f32, x.clone()))
                .expect("a reader");
            let next = (x + 1.0).try_into_data().expect("it is there");
            assert_eq!(
                next.try_to_vec::<f32>().expect("floats"),
                [2.0 * step as f32 + 1.0; 4]
            );
        }
        drop(clones);
        thread.join().expect("every read succeeds");
    }
}

/// A tensor, and the value of its elements.
type Valued = (f32, Tensor<1>);

/// Operations per thread of the stress test; `BURN_DIST_STRESS_OPS` asks for others.
fn stress_ops() -> usize {
    let asked = std::env::var("BURN_DIST_STRESS_OPS").ok();
    asked.map_or(25_000, |text| text.parse().expect("a number of operations"))
}

#[test]
fn many_threads_work_on_shared_tensors() {
    const THREADS: usize = 8;
    let mesh = mesh("fsdp=2");
    let device = mesh.device().autodiff();
    let shared: Arc<Vec<Mutex<Valued>>> = Arc::new(
        (0..6)
            .map(|n| Mutex::new((n as f32, Tensor::from_floats([n as f32; 4], &device))))
            .collect(),
    );
    let barrier = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (shared, barrier) = (shared.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                let mut random = thread as u64 + 1;
                let mut next = |below: usize| {
                    random = random
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    (random >> 33) as usize % below
                };
                let take = |at: usize| shared[at].lock().expect("no panic").clone();
                for op in 0..stress_ops() / 2 {
                    // The clones and their last uses race with those of the other threads.
                    let ((a, x), (b, y)) = (take(next(6)), take(next(6)));
                    let (sum, z) = ((a + b) % 8.0, (x + y).remainder_scalar(8.0));
                    match next(200) {
                        0 => {
                            let data = z.try_into_data().expect("it is there");
                            assert_eq!(
                                data.try_to_vec::<f32>().expect("floats"),
                                [sum; 4],
                                "operation {op}"
                            );
                        }
                        1..60 => *shared[next(6)].lock().expect("no panic") = (sum, z),
                        _ => drop(z),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread fails");
    }
    for (value, tensor) in shared
        .iter()
        .map(|slot| slot.lock().expect("no panic").clone())
    {
        assert_eq!(
            tensor.into_data().try_to_vec::<f32>().expect("floats"),
            [value; 4]
        );
    }
    // Whatever died, in whatever order, is gone: the six tensors are what is left.
    let held: Vec<u64> = device
        .report()
        .ranks
        .iter()
        .map(|rank| rank.resident_bytes)
        .collect();
    assert!(held.iter().all(|bytes| *bytes <= 6 * 4 * 4), "{held:?}");
    drop(shared);
    let held: Vec<u64> = device
        .report()
        .ranks
        .iter()
        .map(|rank| rank.resident_bytes)
        .collect();
    assert_eq!(held, [0, 0]);
}

/// A loader makes the next batches with operations of its own while the training thread records its steps, and a third
/// thread reads the losses.
#[test]
fn windows_of_a_step_are_equal_whatever_other_threads_record() {
    // When the reader cuts a step depends on how fast each thread is. Were windows not equal by themselves, nearly all of
    // them would be planned anew in every round.
    let rounds: Vec<(u64, u64)> = (0..5).map(|_| windows_of_steps()).collect();
    assert!(
        rounds
            .iter()
            .any(|(windows, misses)| *windows >= 50 && misses * 5 <= *windows),
        "of so many windows so many were planned anew, in five rounds: {rounds:?}"
    );
}

/// Returns how many windows a training loop had once it was warm, and how many of them were planned anew.
fn windows_of_steps() -> (u64, u64) {
    let mesh = mesh("fsdp=2");
    let device = mesh.device().autodiff();
    let (batches, loaded) = sync_channel::<Tensor<2>>(2);
    let (losses, metrics) = sync_channel::<Tensor<1>>(2);
    let of_loader = device.clone();
    let loader = std::thread::spawn(move || {
        for step in 0..200 {
            let items = (0..8).map(|row| {
                let values: Vec<f32> = (0..4)
                    .map(|col| ((step * 31 + row * 7 + col) % 11) as f32)
                    .collect();
                let item = Tensor::<1>::from_data(TensorData::new(values, [4]), &of_loader);
                (item.reshape([1, 4]) / 11.0 - 0.5) * 2.0
            });
            if batches.send(Tensor::cat(items.collect(), 0)).is_err() {
                return;
            }
        }
    });
    let reader = std::thread::spawn(move || -> Vec<f32> {
        metrics
            .into_iter()
            .map(|loss: Tensor<1>| loss.into_scalar())
            .collect()
    });
    let mut model = LinearConfig::new(4, 4).init(&device);
    let mut optimizer = SgdConfig::new().init();
    let mut warm = device.report().cache;
    for (step, x) in loaded.into_iter().enumerate() {
        let loss = (model.forward(x.clone()) - x).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.05, model, gradients);
        losses.send(loss.inner()).expect("a reader");
        if step == 100 {
            warm = device.report().cache;
        }
    }
    drop(losses);
    loader.join().expect("no panic");
    let losses = reader.join().expect("no panic");
    assert_eq!(losses.len(), 200);
    assert!(losses[199] < 0.1 * losses[0], "{losses:?}");
    let cache = device.report().cache;
    let (windows, misses) = (cache.windows - warm.windows, cache.misses - warm.misses);
    assert_eq!(model.num_params(), 20);
    (windows, misses)
}
