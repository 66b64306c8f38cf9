//! Attention as one operation against its parts, forward and backward, on the same values.
//!
//! Both run in turns on plain Flex, for the time, and on a mesh of one rank, for the bytes that are held at most. The
//! machine's limit is the rate of its matrix products, timed first: seven products of queries and keys, half of each
//! for the causal mask, have to be made (two forward, five backward). Rows say which fraction of the limit is reached.
//!
//! `cargo bench -p burn-dist-021 --bench attention`

use std::time::Instant;

use burn::backend::{Autodiff, Flex};
use burn::tensor::activation::softmax;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Bool, Distribution, Tensor, TensorData};
use burn_dist::nn::{AttentionBackend, AttentionOptions, grouped_attention};
use burn_dist::{DeviceMesh, Dist, MeshBackend};
use serde_json::json;

type Plain = Autodiff<Flex>;
type Meshed = Autodiff<Dist<Flex>>;

/// Rows, heads of keys, heads of queries for each, tokens, width of a head.
#[derive(Clone, Copy)]
struct Sizes {
    name: &'static str,
    batch: usize,
    groups: usize,
    group: usize,
    seq: usize,
    width: usize,
}

impl Sizes {
    /// Flops of the seven products, half of each.
    fn flops(&self) -> f64 {
        let heads = self.batch * self.groups * self.group;
        7.0 * (heads * self.seq * self.seq * self.width) as f64
    }

    /// Queries, keys and values.
    fn values(&self) -> [TensorData; 3] {
        let values = |heads: usize| {
            let shape = [self.batch, heads, self.seq, self.width];
            Tensor::<Flex, 4>::random(shape, Distribution::Default, &Default::default()).into_data()
        };
        let heads = self.groups * self.group;
        [values(heads), values(self.groups), values(self.groups)]
    }
}

/// `[b, g, n, s, e]` and twice `[b, g, s, e]` to `[b, g, n, s, e]`.
type Attend<B> = fn(Tensor<B, 5>, Tensor<B, 4>, Tensor<B, 4>) -> Tensor<B, 5>;

fn in_one<B: AttentionBackend>(q: Tensor<B, 5>, k: Tensor<B, 4>, v: Tensor<B, 4>) -> Tensor<B, 5> {
    grouped_attention(q, k, v, AttentionOptions::causal())
}

fn in_parts<B: AttentionBackend>(
    q: Tensor<B, 5>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
) -> Tensor<B, 5> {
    let [.., seq, width] = q.dims();
    let hidden = Tensor::<B, 2, Bool>::tril_mask([seq, seq], 0, &q.device()).unsqueeze::<5>();
    let q = q.mul_scalar((width as f64).powf(-0.5));
    let scores = q.matmul(k.unsqueeze_dim::<5>(2).swap_dims(3, 4));
    let weights = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 4);
    weights.matmul(v.unsqueeze_dim(2))
}

/// Seconds of forward and backward, from values on the device to gradients on the host.
fn seconds<B: AutodiffBackend + AttentionBackend>(
    sizes: Sizes,
    values: &[TensorData; 3],
    attend: Attend<B>,
    device: &B::Device,
) -> f64 {
    let [q, k, v] = values
        .clone()
        .map(|values| Tensor::<B, 4>::from_data(values, device));
    let shape = [
        sizes.batch,
        sizes.groups,
        sizes.group,
        sizes.seq,
        sizes.width,
    ];
    let q = q.reshape(shape).require_grad();
    let (k, v) = (k.require_grad(), v.require_grad());
    let start = Instant::now();
    let out = attend(q.clone(), k.clone(), v.clone());
    let gradients = out.powf_scalar(2.0).mean().backward();
    let _ = q.grad(&gradients).expect("of queries").into_data();
    let _ = k.grad(&gradients).expect("of keys").into_data();
    let _ = v.grad(&gradients).expect("of values").into_data();
    start.elapsed().as_secs_f64()
}

/// Bytes that one rank holds at most.
fn peak_bytes(sizes: Sizes, values: &[TensorData; 3], attend: Attend<Meshed>) -> u64 {
    let mesh = DeviceMesh::parse("").expect("a mesh of one rank");
    let device = mesh.device();
    seconds::<Meshed>(sizes, values, attend, &device);
    Meshed::report(&device).ranks[0].peak_bytes
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Floating-point operations per second of a product of 1024 x 1024 matrices on all cores, the best of 20.
fn peak_flops() -> f64 {
    const SIZE: usize = 1024;
    let shape = [SIZE; 2];
    let make = || Tensor::<Flex, 2>::random(shape, Distribution::Default, &Default::default());
    let (a, b) = (make(), make());
    let times = (0..20).map(|_| {
        let start = Instant::now();
        let _ = a.clone().matmul(b.clone()).into_data();
        start.elapsed().as_secs_f64()
    });
    2.0 * (SIZE as f64).powi(3) / times.fold(f64::INFINITY, f64::min)
}

fn main() {
    let peak = peak_flops();
    println!(
        "matrix products reach {:.1} GFLOP/s on this machine",
        peak / 1e9
    );
    println!(
        "{:<10} {:>10} {:>10} {:>7} {:>9} {:>12} {:>12} {:>7}",
        "sizes", "one, ms", "parts, ms", "ratio", "of peak", "one, bytes", "parts, bytes", "ratio"
    );
    let of = |name, batch, seq| Sizes {
        name,
        batch,
        groups: 4,
        group: 2,
        seq,
        width: 32,
    };
    let mut rows = Vec::new();
    for sizes in [of("S", 8, 256), of("seq 2048", 1, 2048)] {
        let values = sizes.values();
        let device = Default::default();
        let (mut one, mut parts, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..12 {
            let in_one = seconds::<Plain>(sizes, &values, in_one::<Plain>, &device);
            let in_parts = seconds::<Plain>(sizes, &values, in_parts::<Plain>, &device);
            // The first turns allocate.
            if turn > 2 {
                one.push(in_one);
                parts.push(in_parts);
                ratios.push(in_one / in_parts);
            }
        }
        let (one, parts, ratio) = (median(&mut one), median(&mut parts), median(&mut ratios));
        let of_peak = sizes.flops() / one / peak;
        let one_bytes = peak_bytes(sizes, &values, in_one::<Meshed>);
        let parts_bytes = peak_bytes(sizes, &values, in_parts::<Meshed>);
        let bytes_ratio = one_bytes as f64 / parts_bytes as f64;
        println!(
            "{:<10} {:>10.2} {:>10.2} {ratio:>7.3} {of_peak:>9.2} {one_bytes:>12} {parts_bytes:>12} {bytes_ratio:>7.3}",
            sizes.name,
            1e3 * one,
            1e3 * parts,
        );
        rows.push(json!({
            "sizes": sizes.name, "one_s": one, "parts_s": parts, "time_ratio": ratio, "fraction_of_peak": of_peak,
            "one_peak_bytes": one_bytes, "parts_peak_bytes": parts_bytes, "peak_bytes_ratio": bytes_ratio,
        }));
    }
    println!(
        "{}",
        json!({"bench": "attention", "peak_gflops": peak / 1e9, "rows": rows})
    );
}
