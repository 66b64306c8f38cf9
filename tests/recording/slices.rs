//! Loops that slice at another place in each pass are planned once for all of them.

use burn::tensor::{Device, Tensor, TensorData, s};
use burn_dist::{DeviceMesh, OnMesh, Regions};

use super::mesh;

const STEPS: usize = 12;
const SHAPE: [usize; 3] = [4, STEPS, 6];

fn numbers(seed: usize, shape: [usize; 3], device: &Device) -> Tensor<3> {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|i| ((i * 31 + seed * 17) % 97) as f32 / 48.5 - 1.0);
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device)
}

/// One pass at `t`: reads of slices in several spellings, of views of them, and writes into what is carried along.
fn pass(x: &Tensor<3>, written: Tensor<3>, h: Tensor<3>, t: isize) -> (Tensor<3>, Tensor<3>) {
    let before = x.clone().slice(s![.., t - 1..t, ..]);
    let from = x.clone().slice(s![.., t - 1..t + 1, ..]).sum_dim(1);
    let upto = x
        .clone()
        .slice(s![.., ..2, t % 3 + 1..t % 3 + 3])
        .reshape([4, 1, 4])
        .sum_dim(2);
    let turned = x
        .clone()
        .slice(s![1..3, t..t + 1, 1..])
        .swap_dims(0, 2)
        .sum_dim(0);
    let h = (h * 0.5 + before).tanh() + upto + turned.sum_dim(2);
    let written = written.slice_assign(s![.., t..t + 1, ..], h.clone());
    let written = written.slice_assign(
        s![t % 4..t % 4 + 1, 0..1, 2..4],
        from.slice(s![1..2, .., 3..5]),
    );
    (written, h)
}

/// Runs all passes, reading after each; returns what it reads, with `x`'s gradient at last.
fn run(device: &Device) -> Vec<Vec<f32>> {
    let x = numbers(1, SHAPE, device).require_grad();
    let (mut written, mut h) = (numbers(2, SHAPE, device), numbers(3, [4, 1, 6], device));
    let mut read = Vec::new();
    for t in 1..STEPS as isize - 1 {
        (written, h) = pass(&x, written, h, t);
        read.push(h.clone().detach().sum().into_scalar::<f32>());
    }
    let gradients = (written.clone() * h).sum().backward();
    let gradient = x.grad(&gradients).expect("a gradient");
    let mut all: Vec<_> = [written.detach(), Tensor::from_inner(gradient)]
        .map(|tensor| tensor.into_data().try_to_vec::<f32>().expect("floats"))
        .into();
    all.push(read);
    all
}

#[test]
fn slices_at_other_places_give_the_values_of_one_device() {
    let want = run(&Device::flex().autodiff());
    for axes in ["", "dp=2", "fsdp=2,tp=2", "tp=3"] {
        for seed in [None, Some(1), Some(2)] {
            let builder = DeviceMesh::builder().axes(&axes.parse().expect("a mesh"));
            let builder = builder.regions(Regions::Flex).account_memory(true);
            let mesh = match seed {
                Some(seed) => builder.fuzz_layouts(seed),
                None => builder,
            };
            let mesh = mesh.build().expect("a mesh");
            let device = mesh.device().autodiff();
            let got = run(&device);
            for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                // Sums over split dims add up in another order.
                let tolerance = if axes.is_empty() {
                    0.0
                } else {
                    1e-6 * want.abs().max(1.0)
                };
                assert!(
                    (got - want).abs() <= tolerance,
                    "{axes} {seed:?}: {got} for {want}"
                );
            }
            // At 0 or not, at first or again: fewer plans than passes.
            let report = device.report();
            assert!(
                report.cache.misses < STEPS as u64,
                "{axes} {seed:?}: {:?}",
                report.cache
            );
            // Under random layouts a rank holds, besides, what it has lent to others.
            for rank in report.ranks.iter().filter(|_| seed.is_none()) {
                let (planned, held) = (rank.predicted_peak_bytes, rank.peak_bytes);
                assert!(
                    planned.abs_diff(held) * 100 <= planned,
                    "{axes} {seed:?}: {held} of {planned}"
                );
            }
        }
    }
}

/// A loop that generates: each pass writes one more place of a cache, and reads all of it.
#[test]
fn a_loop_over_places_is_planned_twice() {
    for axes in ["", "tp=2"] {
        let mesh = mesh(axes);
        let device = mesh.device();
        let (mut cache, x) = (numbers(2, SHAPE, &device), numbers(1, SHAPE, &device));
        let mut misses = Vec::new();
        for t in 1..STEPS as isize {
            let new = x.clone().slice(s![.., t..t + 1, ..]).tanh();
            cache = cache.slice_assign(s![.., t..t + 1, ..], new);
            let _: f32 = cache.clone().sum().into_scalar();
            misses.push(device.report().cache.misses);
        }
        // The first pass as it is, the second for all that come; of the third, inputs may rest in other layouts.
        assert_eq!(misses.last(), misses.get(2), "{axes}: {misses:?}");
        assert!(misses[2] - misses[0] <= 2, "{axes}: {misses:?}");
    }
}
