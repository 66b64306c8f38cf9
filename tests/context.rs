//! Context parallelism: what a rank has of a sequence, and what crosses the network for it.

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn_dist::nn::{AttentionBackend, AttentionOptions, attention};
use burn_dist::plan::explain::Explanation;
use burn_dist::{
    ContextParallel, DTensor, DeviceMesh, Dist, MeshDevice, Parallelize, ParallelizeWith, Plan,
};
use llama::model::Size;
use proptest::prelude::*;

use crate::planned::llama_step;

type B = Autodiff<Dist<Flex>>;

/// Batch, sequence, heads of queries and of keys, width of a head.
const SIZES: [usize; 5] = [2, 24, 4, 2, 8];

/// A sequence whose heads are attended to, and a step along the gradients of what they are made of.
fn attend(device: &MeshDevice) -> (Tensor<B, 4>, Vec<Tensor<Dist<Flex>, 3>>) {
    let [batch, seq, heads, groups, width] = SIZES;
    let projected = |heads: usize| {
        let len = batch * seq * heads * width;
        let values = (0..len).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0);
        let data = TensorData::new(values.collect::<Vec<_>>(), [batch, seq, heads * width]);
        let x = Tensor::<B, 3>::from_data(data, device).redistribute("[-, {cp}, -]");
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
    let out = attention(q, k, v, AttentionOptions::causal());
    let gradients = out.clone().powi_scalar(2).sum().backward();
    let of = |x: Tensor<B, 3>| x.grad(&gradients).expect("a gradient") + x.inner();
    (out, inputs.into_iter().map(of).collect())
}

/// Bytes that the busiest rank receives, by kind of collective, but for single numbers.
fn bytes(explanation: &Explanation, kind: &str) -> u64 {
    let of_kind = explanation.collectives.iter().filter(|c| c.kind == kind);
    of_kind
        .filter(|c| c.shape.iter().product::<usize>() > 1)
        .map(|c| c.bytes)
        .sum()
}

#[test]
fn keys_and_values_are_gathered_and_their_gradients_scattered() {
    let [batch, seq, _, groups, width] = SIZES;
    for ranks in [2, 3, 4] {
        let mesh = DeviceMesh::builder()
            .axis("cp", ranks)
            .scatter_bytes_min(0)
            .build()
            .expect("a mesh");
        let device = mesh.device();
        let ((out, moved), explanation) = burn_dist::explain::<B, _>(&device, || attend(&device));
        let text = |layout: Result<String, _>| layout.expect("it is on the mesh");
        assert_eq!(text(out.layout_text()), "[-, -, {cp}, -]");
        for x in moved {
            assert_eq!(text(x.layout_text()), "[-, {cp}, -]");
        }
        // Keys, and as much of values.
        let keys = (batch * seq * groups * width * size_of::<f32>()) as u64;
        let parts = ranks as u64;
        let expected = 2 * (parts - 1) * keys / parts;
        assert_eq!(
            bytes(&explanation, "all_gather"),
            expected,
            "{ranks} ranks\n{explanation}"
        );
        assert_eq!(
            bytes(&explanation, "reduce_scatter"),
            expected,
            "{ranks} ranks\n{explanation}"
        );
        assert_eq!(
            bytes(&explanation, "all_to_all"),
            0,
            "{ranks} ranks\n{explanation}"
        );
        assert_eq!(
            bytes(&explanation, "all_reduce"),
            0,
            "{ranks} ranks\n{explanation}"
        );
    }
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

/// What queries are made with.
#[derive(Module, Debug, Parallelize)]
struct Queries<B: Backend> {
    weight: Param<Tensor<B, 2>>,
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
    fn pairs<B: AttentionBackend>(
        &self,
        kept: [bool; 4],
        seed: usize,
        device: &B::Device,
    ) -> Tensor<B, 4> {
        let [b, g, n, s, ..] = self.sizes;
        let full = [b, g * n, s, s];
        let shape: [usize; 4] = std::array::from_fn(|dim| if kept[dim] { full[dim] } else { 1 });
        Tensor::from_data(numbers(&shape, seed), device)
    }

    /// The unit that the queries come from.
    fn queries<B: Backend>(&self, device: &B::Device) -> Queries<B> {
        let width = self.sizes[4];
        Queries {
            weight: Param::from_data(numbers(&[width, width], 7), device),
        }
    }

    /// Returns the result and the gradients of queries, keys and values, laid out by `place`.
    fn run<B: AutodiffBackend + AttentionBackend>(
        &self,
        device: &B::Device,
        queries: Queries<B>,
        place: impl Fn(Tensor<B, 4>) -> Tensor<B, 4>,
    ) -> Vec<TensorData> {
        let [b, g, n, s, e, v] = self.sizes;
        let shapes = [[b, g * n, s, e], [b, g, s, e], [b, g, s, v]];
        let mut seed = 0;
        let inputs = shapes.map(|shape| {
            seed += 1;
            place(Tensor::<B, 4>::from_data(numbers(&shape, seed), device)).require_grad()
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
        let weights = Tensor::<B, 4>::from_data(numbers(&out.dims(), 9), device);
        let gradients = (out.clone() * weights).sum().backward();
        let gradient = |x: Tensor<B, 4>| x.grad(&gradients).expect("a gradient").into_data();
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
        let device = mesh.device();
        let place = |x: Tensor<B, 4>| x.redistribute(layout).expect("a layout of the mesh");
        let plan = Plan::new().unit("").context(way);
        let queries = case.queries::<B>(&device).parallelize_with(&mesh, &plan).expect("it fits");
        let run = || case.run(&device, queries, place);
        let (found, explanation) = burn_dist::explain::<B, _>(&device, run);
        let one = Default::default();
        let expected = case.run::<Autodiff<Flex>>(&one, case.queries(&one), |x| x);
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
