//! Async tensor parallelism: products in chunks beside the transfers that they wait for, and nothing else changes.

use burn_dist::explanation::Explanation;
use burn_dist::mesh::Nodes;
use burn_dist::{
    ActivationCheckpoint, AsyncTp, DeviceMeshBuilder, Float, Float8, Plan, Precision, Scaling,
};

use crate::transformer::run::{BLOCKS, Run, assert_alike, builder, train_wide};
use crate::transformer::sequence_parallel;
use crate::transformer::worlds::in_processes;

/// Bytes that the busiest rank receives along tp, and how many shifts there are.
fn along_tp(explanation: &Explanation) -> (u64, u64) {
    let along = explanation.collectives.iter().filter(|of| of.axes == "tp");
    let shifts = along.clone().filter(|of| of.kind == "shift");
    (
        along.map(|of| of.bytes).sum(),
        shifts.map(|of| of.count).sum(),
    )
}

/// How many transfers products run beside.
fn beside(explanation: &Explanation) -> usize {
    let overlaps = explanation.overlaps.iter();
    overlaps.filter(|overlap| overlap.whole.is_none()).count()
}

/// Width of the model: a chunk of a product, by rows, has more than 256 elements. Flex adds up the terms of smaller ones
/// in another order.
const WIDTH: usize = 256;

fn train(mesh: DeviceMeshBuilder, plan: &Plan) -> Run {
    train_wide(mesh, plan, BLOCKS, WIDTH, 2)
}

/// Steps in chunks leave the bits that they leave without, and as many bytes cross the network.
#[test]
fn in_chunks_every_bit_stays() {
    let bf16 = Precision::new(Float::BF16);
    let float8 = |scaling| {
        let plan = sequence_parallel().precision(bf16);
        plan.float8(Float8::new(scaling))
    };
    for (axes, plan) in [
        ("tp=2", sequence_parallel()),
        ("tp=4", sequence_parallel().precision(bf16)),
        (
            "fsdp=2,tp=2",
            sequence_parallel().checkpoint(ActivationCheckpoint::Full),
        ),
        (
            "dp=2,tp=2",
            sequence_parallel().checkpoint(ActivationCheckpoint::Selective),
        ),
        ("cp=2,tp=2", sequence_parallel()),
        ("fsdp=2,tp=2", float8(Scaling::Tensorwise)),
        ("tp=2", float8(Scaling::Rowwise)),
    ] {
        let run = |async_tp| train(builder(axes), &plan.clone().async_tp(async_tp));
        let (on, off) = (run(AsyncTp::On), run(AsyncTp::Off));
        let what = format!("{axes}\n{}", on.explanation);
        assert_alike(&on, &off, &what);
        let (chunked, whole) = (along_tp(&on.explanation), along_tp(&off.explanation));
        assert_eq!((chunked.0, 0), whole, "{what}");
        // Of each of three blocks: two gathers and two reductions, forward and backward.
        assert!(beside(&on.explanation) >= 8 * 3, "{what}");
        assert!(chunked.1 >= 8 * 3, "{what}");
    }
}

/// Also between processes.
#[test]
fn chunks_cross_processes() {
    let plan = sequence_parallel().async_tp(AsyncTp::On);
    let expected = train(builder("fsdp=2,tp=2"), &plan);
    for run in in_processes(2, |world| train(builder("fsdp=2,tp=2").world(world), &plan)) {
        assert_alike(&run, &expected, "two processes");
        assert_eq!(beside(&run.explanation), beside(&expected.explanation));
    }
}

/// Without being asked, a mesh takes what its links promise; an axis over several nodes stays as it is.
#[test]
fn links_and_nodes_decide() {
    let whys = |mesh: DeviceMeshBuilder, async_tp| -> (usize, Vec<&'static str>) {
        let plan = sequence_parallel().async_tp(async_tp);
        let explanation = train(mesh, &plan).explanation;
        let mut whys: Vec<_> = explanation
            .overlaps
            .iter()
            .filter_map(|of| of.whole)
            .collect();
        whys.sort_unstable();
        whys.dedup();
        (beside(&explanation), whys)
    };
    let (taken, why) = whys(builder("tp=2"), AsyncTp::Auto);
    assert_eq!(
        (taken, &why[..]),
        (0, &["nothing is known of its link"][..])
    );
    let links = "tp:latency_us=1,gbps=1".parse().expect("links");
    let (taken, why) = whys(builder("tp=2").links(links), AsyncTp::Auto);
    assert!(taken > 0, "{why:?}");
    let apart = builder("tp=2").nodes(Nodes::Each(1));
    let (taken, why) = whys(apart, AsyncTp::On);
    assert_eq!((taken, &why[..]), (0, &["it goes over several nodes"][..]));
}
