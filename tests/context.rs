//! Context parallelism: what a rank has of a sequence, and what crosses the network for it.

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Tensor, TensorData};
use burn_dist::nn::{AttentionOptions, attention};
use burn_dist::plan::explain::Explanation;
use burn_dist::{DTensor, DeviceMesh, Dist, MeshDevice};
use llama::model::Size;

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
