//! What a program makes and drops many times leaves memory and threads as they were.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Tensor;
use burn_dist::{DeviceMesh, ParallelizeWith, Plan};

const COUNT: usize = 1000;

/// After so many, caches are full and allocators have the pages that they need.
const SETTLED: usize = 200;

/// What memory may differ by then: pages come and go.
const KIB_MORE: u64 = 8 << 10;

/// A number of this process's `status`.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).expect(name)
}

/// Makes and drops something many times.
fn is_level(what: &str, mut make: impl FnMut(usize)) {
    let look = || {
        // Threads of ranks end by themselves once their mesh is gone.
        let (mut threads, mut looks) = (status("Threads:"), 0);
        while looks < 20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let now = status("Threads:");
            looks = if now < threads { 0 } else { looks + 1 };
            threads = now.min(threads);
        }
        (status("VmRSS:"), threads)
    };
    let mut settled = None;
    for number in 1..=COUNT {
        make(number);
        if number % SETTLED == 0 {
            let (kib, threads) = look();
            println!("{what} {number:>4}: {kib} KiB, {threads} threads");
            let (kib_before, threads_before) = *settled.get_or_insert((kib, threads));
            assert!(threads <= threads_before, "{what}: threads grow");
            assert!(kib <= kib_before + KIB_MORE, "{what}: memory grows");
        }
    }
}

/// One step of training; the loss.
fn step(model: Linear, mesh: &DeviceMesh) -> f32 {
    let mut optimizer = AdamWConfig::new().init();
    let x = Tensor::<2>::ones([4, 16], &mesh.device().autodiff());
    let loss = model.forward(x).powi_scalar(2).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let model: Linear = optimizer.step(1e-2, model, gradients);
    drop(model);
    loss.into_scalar()
}

fn model(mesh: &DeviceMesh, width: usize) -> Linear {
    let model = LinearConfig::new(16, width).init(&mesh.device().autodiff());
    let plan = Plan::new();
    model.parallelize_with(mesh, &plan).expect("a plan")
}

#[test]
#[ignore = "a thousand of each take minutes, and nothing else may run: \
            cargo test -p promises --test promises -- --ignored level --nocapture"]
fn a_thousand_meshes_leave_memory_and_threads_level() {
    is_level("meshes", |_| {
        let mesh = DeviceMesh::parse("dp=2,fsdp=2").expect("a mesh");
        assert!(step(model(&mesh, 16), &mesh).is_finite());
    });
}

#[test]
#[ignore = "a thousand of each take minutes, and nothing else may run: \
            cargo test -p promises --test promises -- --ignored level --nocapture"]
fn a_thousand_models_leave_memory_and_threads_level() {
    let mesh = DeviceMesh::parse("dp=2,fsdp=2").expect("a mesh");
    // Of different widths: each of these is planned anew.
    is_level("models", |number| {
        assert!(step(model(&mesh, 8 + 4 * (number % 7)), &mesh).is_finite());
    });
}
