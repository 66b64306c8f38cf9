//! Context parallelism: what a rank has of a sequence, and what crosses the network for it.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::clock::{DeviceLink, Hardware, RankSimulation, Simulation};
use burn_dist::explanation::Explanation;
use burn_dist::nn::{AttentionOptions, attention};
use burn_dist::{ContextParallel, DTensor, DeviceMesh, Parallelize, ParallelizeWith, Plan};
use proptest::prelude::*;

use crate::llama::Size;
use crate::planned::llama_step;

/// Batch, sequence, heads of queries and of keys, width of a head.
const SIZES: [usize; 5] = [2, 24, 4, 2, 8];

/// A sequence whose heads are attended to, and a step along the gradients of what they are made of.
fn attend(device: &Device, queries: &Queries) -> (Tensor<4>, Vec<Tensor<3>>) {
    let [batch, seq, heads, groups, width] = SIZES;
    let projected = |heads: usize| {
        let len = batch * seq * heads * width;
        let values = (0..len).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0);
        let data = TensorData::new(values.collect::<Vec<_>>(), [batch, seq, heads * width]);
        let x = Tensor::<3>::from_data(data, device).redistribute("[-, {cp}, -]");
        let x = x.expect("a layout of the mesh").require_grad();
        let by_head = x
            .clone()
            .reshape([batch, seq, heads, width])
            .swap_dims(1, 2);
        (x, by_head)
    };
    let all = [heads, groups, groups].map(projected);
    let (inputs, by_head): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let [q, k, v] = by_head.try_into().expect("three tensors");
    let q = q.matmul(queries.weight.val().unsqueeze());
    let out = attention(q, k, v, AttentionOptions::causal());
    let gradients = out.clone().powi_scalar(2).sum().backward();
    let of = |x: Tensor<3>| x.grad(&gradients).expect("a gradient") + x.inner();
    (out, inputs.into_iter().map(of).collect())
}

/// What queries are made with.
#[derive(Module, Debug, Parallelize)]
struct Queries {
    weight: Param<Tensor<2>>,
}

fn queries(width: usize, device: &Device) -> Queries {
    Queries {
        weight: Param::from_data(numbers(&[width, width], 7), device),
    }
}

/// Bytes that the busiest rank receives, by kind of collective, of tensors of at least so many dims.
fn bytes(explanation: &Explanation, kind: &str, ndim: usize) -> u64 {
    let of_kind = explanation.collectives.iter().filter(|c| c.kind == kind);
    of_kind
        .filter(|c| c.shape.len() >= ndim)
        .map(|c| c.bytes)
        .sum()
}

/// Bytes of keys, and as many of values, cross the network once in the forward; in the backward, theirs and those of
/// their gradients do in a ring, and only those of their gradients where gathered ones were kept.
#[test]
fn what_crosses_the_network_is_what_the_guide_says() {
    let [batch, seq, _, groups, width] = SIZES;
    let keys = (batch * seq * groups * width * size_of::<f32>()) as u64;
    for ranks in [2, 3, 4] {
        let part = 2 * (ranks as u64 - 1) * keys / ranks as u64;
        for (way, expected) in [
            (ContextParallel::Gather, [part, part, 0]),
            (ContextParallel::Ring, [0, 0, 3 * part]),
        ] {
            let mesh = DeviceMesh::builder()
                .axis("cp", ranks)
                .scatter_bytes_min(0)
                .build()
                .expect("a mesh");
            let device = mesh.device().autodiff();
            let plan = Plan::new().unit("").context(way);
            let queries = queries(width, &device).parallelize_with(&mesh, &plan);
            let queries = queries.expect("it fits");
            let run = || attend(&device, &queries);
            let ((out, moved), explanation) = burn_dist::explain(&device, run);
            let text = |layout: Result<String, _>| layout.expect("it is on the mesh");
            assert_eq!(text(out.layout_text()), "[-, -, {cp}, -]");
            for x in moved {
                assert_eq!(text(x.layout_text()), "[-, {cp}, -]");
            }
            let what = format!("{ranks} ranks, {way}\n{explanation}");
            let found = ["all_gather", "reduce_scatter", "shift"];
            // Not that of the weight.
            let found = found.map(|kind| bytes(&explanation, kind, 3));
            assert_eq!(found, expected, "{what}");
            assert_eq!(bytes(&explanation, "all_to_all", 0), 0, "{what}");
            assert_eq!(bytes(&explanation, "all_reduce", 3), 0, "{what}");
        }
    }
}

/// An attention of a model, on modelled hardware: `link` gigabytes a second between devices.
fn simulated(ranks: usize, stripes: bool, way: ContextParallel, link: f64) -> Vec<RankSimulation> {
    let (seq, width, heads) = (4096, 64, 4);
    let mesh = DeviceMesh::builder()
        .axis("cp", ranks)
        .dry_run()
        .build()
        .expect("a mesh");
    let device = mesh.device().autodiff();
    let mut hardware = Hardware::preset("h100").expect("there is one");
    hardware.links.inside = DeviceLink {
        latency_us: 0.0,
        gb_per_s: link,
        efficiency: 1.0,
    };
    // Only the ratio of products to bytes counts.
    hardware.kernels.start_us = 0.0;
    hardware.host.operation_us = 0.0;
    hardware.host.collective_us = 0.0;
    let plan = Plan::new().unit("").context(way);
    let queries = queries(width, &device)
        .parallelize_with(&mesh, &plan)
        .expect("it fits");
    let layout = match stripes {
        true => format!("[-, -, ({} . {ranks}{{cp}}), -]", seq / ranks),
        false => "[-, -, {cp}, -]".to_string(),
    };
    let run = || {
        let made = [1, 2, 3].map(|_| {
            let x = Tensor::<4>::ones([1, heads, seq, width], &device);
            let x = x.redistribute(&layout).expect("a layout of the mesh");
            x.require_grad()
        });
        let [q, k, v] = made;
        let q = q.matmul(queries.weight.val().unsqueeze());
        let out = attention(q, k, v, AttentionOptions::causal());
        let gradients = out.sum().backward();
        queries
            .weight
            .val()
            .grad(&gradients)
            .expect("a gradient")
            .into_data()
    };
    let (_, windows) = burn_dist::simulate(&device, &hardware, run).expect("it is");
    let flops = |window: &Simulation| window.ranks.iter().map(|rank| rank.flops).sum::<f64>();
    let step = windows
        .into_iter()
        .max_by(|a, b| flops(a).total_cmp(&flops(b)));
    step.expect("a window").ranks
}

/// Under a causal mask, stripes are equal work; ranges are not.
#[test]
fn stripes_are_equal_work() {
    for ranks in [2, 4, 8] {
        for way in [ContextParallel::Ring, ContextParallel::Gather] {
            let ratio = |stripes: bool| {
                let found = simulated(ranks, stripes, way, 1000.0);
                let flops = found.iter().map(|rank| rank.flops);
                flops.clone().fold(0.0, f64::max) / flops.fold(f64::INFINITY, f64::min)
            };
            let (stripes, ranges) = (ratio(true), ratio(false));
            assert!((1.0..=1.02).contains(&stripes), "{ranks}, {way}: {stripes}");
            assert!(ranges > 2.0, "{ranks}, {way}: {ranges}");
        }
    }
}

/// Blocks travel beside the products: of a step whose communication takes 0.6 of the time of computing, a tenth is
/// spent on communication alone at most. The last gradients of keys come home when nothing is left to compute.
#[test]
fn a_ring_hides_what_it_moves() {
    let times = |way, link: f64| {
        let found = simulated(4, true, way, link);
        let slowest = found.iter().max_by_key(|rank| rank.end_ns);
        let rank = slowest.expect("a mesh has ranks");
        let lanes = rank.lanes.iter().filter(|lane| lane.name != "compute");
        let moved: u64 = lanes.map(|lane| lane.busy_ns).sum();
        let alone = rank.exposed_ns + rank.idle_ns;
        [rank.compute_ns, moved, alone, rank.end_ns].map(|ns| ns as f64)
    };
    // Time on the wire is bytes by bandwidth: what is found at one bandwidth is scaled to 0.6.
    let [compute, moved, ..] = times(ContextParallel::Ring, 100.0);
    let link = 100.0 * moved / (0.6 * compute);
    let [compute, moved, alone, all] = times(ContextParallel::Ring, link);
    assert!(
        (0.55..0.65).contains(&(moved / compute)),
        "{moved} of {compute}"
    );
    assert!(alone <= 0.1 * all, "{alone} of {all}");
    let [_, moved, alone, _] = times(ContextParallel::Gather, link);
    assert!(alone > 0.5 * moved, "{alone} of {moved}");
}

#[test]
fn a_rank_holds_its_part_of_the_activations() {
    let step = |axes: &str| {
        let mesh = DeviceMesh::builder().axes(&axes.parse().expect("a mesh"));
        llama_step(Size::S, mesh, |plan| plan, (4096, 1))
    };
    let (one, four) = (step(""), step("cp=4"));
    let (all, part) = (one.activation_bytes(), four.activation_bytes());
    assert!(2 * all >= 7 * part, "{part} of {all} bytes\n{four}");
    // Gradients of keys and values are scattered to where their projections have them.
    let moved = four.collectives.iter().find(|c| c.kind == "all_to_all");
    assert!(moved.is_none(), "{four}");
}

/// An attention of as many queries as keys.
#[derive(Clone, Debug)]
struct Case {
    /// Batch, heads of keys, group, queries, width, width of values.
    sizes: [usize; 6],
    causal: bool,
    window: Option<usize>,
    /// Which dims of mask and bias are not stretched.
    mask: Option<[bool; 4]>,
    bias: Option<[bool; 4]>,
}

fn numbers(shape: &[usize], seed: usize) -> TensorData {
    let len: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    TensorData::new((0..len).map(value).collect::<Vec<f32>>(), shape.to_vec())
}

impl Case {
    fn pairs(&self, kept: [bool; 4], seed: usize, device: &Device) -> Tensor<4> {
        let [b, g, n, s, ..] = self.sizes;
        let full = [b, g * n, s, s];
        let shape: [usize; 4] = std::array::from_fn(|dim| if kept[dim] { full[dim] } else { 1 });
        Tensor::from_data(numbers(&shape, seed), device)
    }

    /// Returns the result and the gradients of queries, keys and values, laid out by `place`.
    fn run(
        &self,
        device: &Device,
        queries: Queries,
        place: impl Fn(Tensor<4>) -> Tensor<4>,
    ) -> Vec<TensorData> {
        let [b, g, n, s, e, v] = self.sizes;
        let shapes = [[b, g * n, s, e], [b, g, s, e], [b, g, s, v]];
        let mut seed = 0;
        let inputs = shapes.map(|shape| {
            seed += 1;
            place(Tensor::<4>::from_data(numbers(&shape, seed), device)).require_grad()
        });
        let options = AttentionOptions {
            causal: self.causal,
            window: self.window,
            mask: self
                .mask
                .map(|kept| self.pairs(kept, 5, device).greater_elem(0.4)),
            bias: self.bias.map(|kept| self.pairs(kept, 4, device)),
            ..AttentionOptions::default()
        };
        let [q, k, v] = inputs.clone();
        let q = q.matmul(queries.weight.val().unsqueeze());
        let out = attention(q, k, v, options);
        let weights = Tensor::<4>::from_data(numbers(&out.dims(), 9), device);
        let gradients = (out.clone() * weights).sum().backward();
        let gradient = |x: Tensor<4>| x.grad(&gradients).expect("a gradient").into_data();
        let made = std::iter::once(out.into_data());
        made.chain(inputs.map(gradient)).collect()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let kept = || proptest::option::of(any::<[bool; 4]>());
    (
        (
            1usize..3,
            1usize..3,
            1usize..3,
            8usize..30,
            1usize..9,
            1usize..9,
        ),
        any::<bool>(),
        proptest::option::of(1usize..12),
        kept(),
        kept(),
    )
        .prop_map(|((b, g, n, s, e, v), causal, window, mask, bias)| Case {
            sizes: [b, g, n, s, e, v],
            causal,
            window,
            mask,
            bias,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Blocks of keys go round or are gathered, in stripes or in ranges, and the result is that of one device.
    #[test]
    fn any_context_is_one_device(
        case in cases(),
        mesh in proptest::sample::select(&["cp=2", "cp=3", "cp=5", "cp=8", "cp=2,tp=2", "cp=4,dp=2"][..]),
        stripes in any::<bool>(),
        way in proptest::sample::select(&[ContextParallel::Ring, ContextParallel::Gather][..]),
    ) {
        let ranks: usize = mesh[3..4].parse().expect("a digit");
        let seq = case.sizes[3];
        let striped = format!("[-, -, ({} . {ranks}{{cp}}), -]", seq / ranks);
        let layout = match stripes && seq % ranks == 0 && seq > ranks {
            true => striped.as_str(),
            false => "[-, -, {cp}, -]",
        };
        let mesh = DeviceMesh::parse(mesh).expect("a mesh");
        let device = mesh.device().autodiff();
        let place = |x: Tensor<4>| x.redistribute(layout).expect("a layout of the mesh");
        let plan = Plan::new().unit("").context(way);
        let of_mesh = queries(case.sizes[4], &device).parallelize_with(&mesh, &plan);
        let run = || case.run(&device, of_mesh.expect("it fits"), place);
        let (found, explanation) = burn_dist::explain(&device, run);
        let one = Device::flex().autodiff();
        let expected = case.run(&one, queries(case.sizes[4], &one), |x| x);
        let names = ["out", "of queries", "of keys", "of values"];
        for ((found, expected), name) in found.iter().zip(&expected).zip(names) {
            let largest = expected.iter::<f32>().fold(1.0, |a: f32, b| a.max(b.abs()));
            for (a, b) in found.iter::<f32>().zip(expected.iter::<f32>()) {
                let close = (a - b).abs() <= 1e-5 * largest;
                prop_assert!(close, "{name}: {a} is not {b}, of {largest}\n{explanation}");
            }
        }
        let shifts = explanation.collectives.iter().any(|found| found.kind == "shift");
        prop_assert_eq!(shifts, way == ContextParallel::Ring, "{}", explanation);
    }
}
