//! Meshes over several nodes: collectives composed by nodes, and batches of which every process gives its own rows.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use burn_dist::explanation::Explanation;
use burn_dist::mesh::Nodes;
use burn_dist::{DeviceMeshBuilder, OnMesh, ParallelizeWith, ProcessLocal};
use proptest::prelude::*;

use crate::transformer;
use crate::transformer::run::{assert_alike, builder, train};
use crate::transformer::worlds::in_processes;
use crate::transformer::{Net, SEQ, VOCAB, megatron, sequence_parallel};
use crate::weights;

/// A mesh over nodes, on which collectives are composed from so many bytes on.
fn on_nodes(axes: &str, nodes: &str, bytes_min: u64) -> DeviceMeshBuilder {
    builder(axes)
        .nodes(nodes.parse().expect("nodes"))
        .hierarchy_bytes_min(bytes_min)
}

const NEVER: u64 = u64::MAX;

fn is_composed(explanation: &Explanation) -> bool {
    let between = |axes: &str| axes.ends_with(" between");
    let mut collectives = explanation.collectives.iter();
    collectives.any(|collective| between(&collective.axes))
}

#[test]
fn composed_training_has_the_bits_of_flat() {
    for (axes, nodes, composed) in [
        ("fsdp=4", "2", true),
        ("fsdp=4", "1", false),
        ("fsdp=4", "3+1", false),
        ("dp=2,fsdp=2", "2", true),
        ("fsdp=2,tp=2", "2", false),
        // The loss is reduced over both.
        ("tp=2,fsdp=2", "2", true),
        ("dp=4", "2", true),
    ] {
        let flat = train(on_nodes(axes, nodes, NEVER), &megatron());
        assert!(!is_composed(&flat.explanation));
        let found = train(on_nodes(axes, nodes, 0), &megatron());
        let what = format!("{axes} on nodes of {nodes}");
        assert_eq!(
            is_composed(&found.explanation)
                || found.explanation.to_string().contains("over 2 nodes x 2"),
            composed,
            "{what}: {}",
            found.explanation
        );
        assert_alike(&found, &flat, &what);
    }
}

/// Sums are trees over the ranks of an axis, whose halves are the other axis, the node or the process.
#[test]
fn training_on_four_ranks_has_the_same_bits_however_they_are_arranged() {
    let expected = train(on_nodes("dp=4", "4", NEVER), &megatron());
    for axes in ["dp=4", "dp=2,fsdp=2", "fsdp=4"] {
        for (nodes, bytes_min) in [("4", NEVER), ("2", NEVER), ("2", 0), ("1", 0)] {
            let found = train(on_nodes(axes, nodes, bytes_min), &megatron());
            assert_alike(&found, &expected, &format!("{axes} on nodes of {nodes}"));
        }
        let runs = in_processes(4, |world| {
            train(on_nodes(axes, "2", 0).world(world), &megatron())
        });
        for run in runs {
            assert_alike(&run, &expected, &format!("{axes} in four processes"));
        }
    }
}

#[test]
fn one_two_and_four_processes_on_the_same_nodes_are_alike() {
    let build = || on_nodes("fsdp=4", "2", 0);
    let expected = train(build(), &sequence_parallel());
    assert!(is_composed(&expected.explanation));
    for processes in [2, 4] {
        let runs = in_processes(processes, |world| {
            train(build().world(world), &sequence_parallel())
        });
        for run in runs {
            assert!(is_composed(&run.explanation), "{processes} processes");
            assert_alike(&run, &expected, &format!("{processes} processes"));
        }
    }
}

/// What a program of all kinds of collectives gives, in bits. Where there are more rows than columns, terms are reduced
/// rather than operands gathered.
fn program(mesh: DeviceMeshBuilder, rows: usize, width: usize) -> (Vec<Vec<u8>>, Explanation) {
    use burn_dist::DTensor;
    let mesh = mesh.build().expect("a mesh");
    let device = mesh.device().autodiff();
    let value = |i: usize| ((i * 37 + 11) % 101) as f32 / 7.0 - 6.3;
    let data = |rows: usize, columns: usize| {
        TensorData::new((0..rows * columns).map(value).collect(), [rows, columns])
    };
    burn_dist::explain(&device, || {
        let x = Tensor::<2>::from_data(data(rows, width), &device);
        let w = Tensor::<2>::from_data(data(rows, width), &device);
        let split = "[{a}, -]";
        let x = x.redistribute(split).expect("rows over a");
        let w = w.redistribute(split).expect("rows over a");
        // Contracting the split dim leaves terms of a sum.
        let whole = x.clone().transpose().matmul(w.clone());
        let whole = whole.redistribute("[-, -]").expect("whole");
        let part = w.transpose().matmul(x.clone());
        let part = part.redistribute("[-, {a}]").expect("columns over a");
        let gathered = x.redistribute("[-, -]").expect("whole");
        [whole, part.mul_scalar(3.0), gathered]
            .map(|tensor| tensor.into_data().bytes().to_vec())
            .to_vec()
    })
}

#[test]
fn all_divisions_of_small_worlds_into_nodes_are_bitwise_flat() {
    fn divisions(ranks: usize) -> Vec<Vec<usize>> {
        if ranks == 0 {
            return vec![vec![]];
        }
        (1..=ranks)
            .flat_map(|first| {
                divisions(ranks - first).into_iter().map(move |rest| {
                    let mut sizes = vec![first];
                    sizes.extend(rest);
                    sizes
                })
            })
            .collect()
    }
    for ranks in 2..=8_usize {
        let shapes = [(8 * ranks, 2 * ranks), (29, 5)];
        let on_one_node = shapes
            .map(|(rows, width)| program(builder(&format!("a:model={ranks}")), rows, width).0);
        for sizes in divisions(ranks) {
            let build = |bytes_min| {
                builder(&format!("a:model={ranks}"))
                    .nodes(Nodes::Sizes(sizes.clone()))
                    .hierarchy_bytes_min(bytes_min)
            };
            let equal = sizes.iter().all(|size| size == &sizes[0]);
            // Even and uneven pieces.
            for ((rows, width), on_one_node) in shapes.into_iter().zip(&on_one_node) {
                let (flat, _) = program(build(NEVER), rows, width);
                let (found, explanation) = program(build(0), rows, width);
                assert!(
                    found == flat,
                    "{ranks} ranks on {sizes:?}, {rows} x {width}"
                );
                assert!(
                    &flat == on_one_node,
                    "{ranks} ranks on {sizes:?} and on one node, {rows} x {width}"
                );
                let hierarchical = equal && sizes.len() > 1 && sizes[0] > 1;
                // Sums are composed of the subtrees of a node; a gather of even pieces always is.
                let composable = sizes[0].is_power_of_two() || rows == 8 * ranks;
                assert_eq!(
                    is_composed(&explanation),
                    hierarchical && composable,
                    "{sizes:?}: {explanation}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_nodes_any_shape(
        nodes in 1_usize..4,
        each in 1_usize..4,
        outer in 1_usize..3,
        rows in 1_usize..60,
        width in 1_usize..12,
        threshold in prop::sample::select(vec![0, 200, 1000]),
    ) {
        let ranks = nodes * each;
        let axes = if outer > 1 { format!("dp={outer},a:model={ranks}") } else { format!("a:model={ranks}") };
        let build = |bytes_min| builder(&axes).ranks_per_node(each).hierarchy_bytes_min(bytes_min);
        let (flat, _) = program(build(NEVER), rows, width);
        let (found, _) = program(build(threshold), rows, width);
        prop_assert!(found == flat);
        // One device sums in another order.
        let (plain, _) = program(builder("a:model=1"), rows, width);
        for (found, plain) in found.iter().zip(&plain) {
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks(4).map(|b| f32::from_ne_bytes(b.try_into().expect("4 bytes"))).collect()
            };
            for (a, b) in floats(found).into_iter().zip(floats(plain)) {
                prop_assert!((a - b).abs() <= 1e-3 + 1e-4 * b.abs(), "{a} {b}");
            }
        }
    }
}

#[test]
fn bytes_between_nodes_are_as_few_as_can_be() {
    let (ranks, nodes) = (8_u64, 2_u64);
    let (rows, width) = (128, 32);
    let build = |bytes_min| {
        builder("a:model=8")
            .ranks_per_node(4)
            .hierarchy_bytes_min(bytes_min)
    };
    let (_, explanation) = program(build(0), rows, width);
    let block = (width * width * 4) as u64;
    let gathered = (rows * width * 4) as u64;
    let received = |kind: &str, axes: &str| {
        let found = explanation.collectives.iter();
        let found = found.filter(|c| c.kind == kind && c.axes == axes);
        found.map(|c| c.bytes).sum::<u64>()
    };
    assert_eq!(
        received("all_reduce", "a between"),
        2 * (nodes - 1) * block / ranks,
        "{explanation}"
    );
    assert_eq!(
        received("reduce_scatter", "a between"),
        (nodes - 1) * block / ranks,
        "{explanation}"
    );
    assert_eq!(
        received("all_gather", "a between"),
        (nodes - 1) * gathered / ranks,
        "{explanation}"
    );
    // Flat, each rank receives n-1 of n parts, over whatever links.
    let (_, flat) = program(build(NEVER), rows, width);
    let all: u64 = flat.collectives.iter().map(|c| c.bytes).sum();
    assert_eq!(all, (ranks - 1) * (3 * block + gathered) / ranks, "{flat}"); // an all-reduce counts twice
    assert!(flat.to_string().contains("flat over nodes"), "{flat}");
}

#[test]
fn memory_and_traffic_are_as_planned() {
    for axes in ["fsdp=4", "dp=2,fsdp=2", "dp=2,fsdp=4"] {
        let each = if axes == "dp=2,fsdp=4" { 4 } else { 2 };
        let mesh = on_nodes(axes, &each.to_string(), 0)
            .account_memory(true)
            .links(
                "inside:latency_us=1,gbps=80;between:latency_us=2,gbps=8"
                    .parse()
                    .expect("links"),
            )
            .build()
            .expect("a mesh");
        let device = mesh.device().autodiff();
        let net = weights::deterministic(Net::new(3, &device))
            .parallelize_with(&mesh, &megatron().unit("blocks"))
            .expect("a plan");
        let mut training = transformer::Training { net, step: 0 };
        let mut optimizer = AdamWConfig::new().init();
        let ((), plan) = burn_dist::explain(&device, || {
            for step in 0..3 {
                training.step = step;
                let loss = training.loss(&device);
                let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
                training.net = optimizer.step(1e-2, training.net.clone(), gradients);
                let _ = loss.into_scalar::<f32>();
            }
        });
        let ranks = device.report().ranks;
        for rank in &ranks {
            let (predicted, found) = (rank.predicted_peak_bytes, rank.peak_bytes);
            assert!(
                predicted.abs_diff(found) * 100 <= predicted,
                "{axes}, rank {}: predicted {predicted}, accounted {found}\n{plan}",
                rank.rank
            );
        }
        assert_eq!(ranks.len(), mesh.shape().num_ranks(), "{axes}");
        assert!(!plan.totals.is_empty(), "{axes}: {plan}");
        for (kind, total) in &plan.totals {
            let of_rank = |rank: &burn_dist::report::RankStats| {
                let mut received = rank.received.iter();
                received
                    .find(|(name, ..)| name == kind)
                    .map(|(_, calls, bytes)| (*calls, *bytes))
            };
            let counted: Vec<(u64, u64)> = ranks.iter().filter_map(of_rank).collect();
            let calls = counted.iter().map(|c| c.0).max();
            let bytes = counted.iter().map(|c| c.1).max();
            assert_eq!(
                (calls, bytes),
                (Some(total.count), Some(total.bytes)),
                "{axes}, {kind}: {plan}"
            );
        }
        // The time of communication by axes and by level is that of the formula.
        assert!(!plan.communication_ns.is_empty(), "{axes}: {plan}");
        for (axes, ns) in &plan.communication_ns {
            let of_rank = |rank: &burn_dist::report::RankStats| {
                let mut times = rank.times.by_axes.iter();
                times
                    .find(|times| &times.axes == axes)
                    .map(|times| times.comm.as_nanos() as u64)
            };
            let longest = ranks.iter().filter_map(of_rank).max();
            assert_eq!(longest, Some(*ns), "{axes}: {plan}");
        }
    }
}

#[test]
fn the_slow_link_is_used_for_less_time() {
    // 8 MB a millisecond inside, a tenth of that between.
    let build = |bytes_min| {
        builder("a:model=8")
            .ranks_per_node(4)
            .links(
                "inside:latency_us=0,gbps=64;between:latency_us=0,gbps=6.4"
                    .parse()
                    .expect("links"),
            )
            .hierarchy_bytes_min(bytes_min)
            .dry_run()
    };
    let time = |bytes_min, level: &str| {
        let (_, explanation) = program(build(bytes_min), 1024, 128);
        explanation
            .communication_ns
            .get(level)
            .copied()
            .unwrap_or(0)
    };
    let (flat, between, inside) = (time(NEVER, "a"), time(0, "a between"), time(0, "a inside"));
    // (N-1)/n against (n-1)/n: a seventh.
    assert!((7 * between).abs_diff(flat) < 64, "{between} of {flat}");
    assert!(
        between + inside < flat / 3,
        "{between} and {inside} of {flat}"
    );
    let chosen = |links: &str| {
        let mesh = builder("a:model=8")
            .ranks_per_node(4)
            .links(links.parse().expect("links"));
        is_composed(&program(mesh.dry_run(), 1024, 128).1)
    };
    assert!(chosen(
        "inside:latency_us=1,gbps=64;between:latency_us=5,gbps=6.4"
    ));
    // Nothing is gained where all links are alike and a call takes long.
    assert!(!chosen(
        "inside:latency_us=5000,gbps=6.4;between:latency_us=5000,gbps=6.4"
    ));
}

/// Bits of the losses of some steps, on a batch of `rows` rows, given whole or process by process.
fn losses(mesh: DeviceMeshBuilder, rows: usize, by_process: bool) -> Vec<u32> {
    let mesh = mesh.build().expect("a mesh");
    let device = mesh.device().autodiff();
    let mut net = weights::deterministic(Net::new(2, &device))
        .parallelize_with(&mesh, &megatron().unit("blocks"))
        .expect("a plan");
    let mut optimizer = AdamWConfig::new().init();
    let here = mesh.local_rows(rows);
    let mut step = |step: usize| {
        let token = |row: usize, at: usize| (((row * SEQ + at) * 7 + step * 13 + 3) % VOCAB) as i32;
        let row = |row: usize| (0..SEQ).map(move |at| token(row, at));
        let tokens: Tensor<2, Int> = match by_process {
            false => {
                let all: Vec<i32> = (0..rows).flat_map(row).collect();
                Tensor::from_data(TensorData::new(all, [rows, SEQ]), &device)
            }
            true => {
                let mine: Vec<i32> = here.iter().flat_map(row).collect();
                let mine = TensorData::new(mine, [here.len(), SEQ]);
                Tensor::from_process_local(mine, rows, &device).expect("the rows of this process")
            }
        };
        let logits = net.forward(tokens.clone());
        let loss = CrossEntropyLossConfig::new().init(&device).forward(
            logits.reshape([rows * SEQ, VOCAB]),
            tokens.reshape([rows * SEQ]),
        );
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-2, net.clone(), gradients);
        loss.into_scalar::<f32>().to_bits()
    };
    (0..4).map(&mut step).collect()
}

#[test]
fn rows_by_process_train_as_the_whole_batch() {
    for axes in ["fsdp=4", "fsdp=2,tp=2", "dp=2,fsdp=2", "tp=2,fsdp=2"] {
        // The last two: uneven, and too few to be split.
        for rows in [8, 5, 2] {
            let expected = losses(builder(axes), rows, false);
            assert_eq!(
                losses(builder(axes), rows, true),
                expected,
                "{axes}, {rows} rows, 1 process"
            );
            for processes in [2, 4] {
                let runs = in_processes(processes, |world| {
                    losses(builder(axes).world(world), rows, true)
                });
                for run in runs {
                    assert_eq!(run, expected, "{axes}, {rows} rows, {processes} processes");
                }
            }
        }
    }
}

#[test]
fn a_process_may_hold_all_rows_where_others_do_not() {
    let axes = "fsdp=2,tp=3";
    let expected = losses(builder(axes), 8, false);
    let runs = in_processes(3, |world| {
        let mesh = builder(axes).world(world.clone()).build().expect("a mesh");
        let held = mesh.local_rows(8).len();
        drop(mesh);
        (held, losses(builder(axes).world(world), 8, true))
    });
    // Ranks 2 and 3 are of both halves.
    let held: Vec<usize> = runs.iter().map(|(held, _)| *held).collect();
    assert_eq!(held, [4, 8, 4]);
    for (_, run) in runs {
        assert_eq!(run, expected);
    }
}

#[test]
fn rows_are_read_and_gathered_in_order() {
    for (axes, processes, rows) in [
        ("fsdp=4", 2, 6),
        ("fsdp=2,tp=2", 4, 7),
        ("dp=3,tp=2", 2, 5),
        ("fsdp=2,tp=3", 3, 6),
    ] {
        in_processes(processes, |world| {
            let mesh = builder(axes).world(world).build().expect("a mesh");
            let here = mesh.local_rows(rows);
            let values: Vec<f32> = here.iter().flat_map(|row| [row as f32, -1.0]).collect();
            let data = TensorData::new(values, [here.len(), 2]);
            let x = Tensor::<2>::from_process_local(data, rows, &mesh.device().autodiff())
                .expect("the rows of this process");
            let all: Vec<f32> = (0..rows).flat_map(|row| [row as f32, -1.0]).collect();
            assert_eq!(x.into_data(), TensorData::new(all, [rows, 2]), "{axes}");
        });
    }
}

#[test]
fn wrong_rows_are_refused_and_other_data_for_the_same_rows_is_found() {
    let mesh = builder("fsdp=2").build().expect("a mesh");
    let data = TensorData::new(vec![0.0_f32; 6], [3, 2]);
    let error = Tensor::<2>::from_process_local(data, 4, &mesh.device().autodiff())
        .expect_err("3 rows of 4")
        .to_string();
    assert!(
        error.contains("3 row") && error.contains("rows 0..4 of 4"),
        "{error}"
    );
    let flat = || TensorData::new(vec![0_i32; 4], [4]);
    let device = mesh.device().autodiff();
    for error in [
        Tensor::<2>::from_process_local(flat(), 4, &device).err(),
        Tensor::<2, Int>::from_process_local(flat(), 4, &device).err(),
        Tensor::<2, Bool>::from_process_local(flat(), 4, &device).err(),
    ] {
        let error = error.expect("one dim of two").to_string();
        assert!(
            error.contains("2 dim(s)") && error.contains("the rows given have 1"),
            "{error}"
        );
    }

    let errors = in_processes(2, |world| {
        let process = world.process();
        let mesh = builder("tp=2").world(world).build().expect("a mesh");
        // Ranks along tp hold the same rows.
        let data = TensorData::new(vec![process as f32; 4], [2, 2]);
        let x =
            Tensor::<2>::from_process_local(data, 2, &mesh.device().autodiff()).expect("2 rows");
        x.sum()
            .try_into_data()
            .expect_err("they differ")
            .to_string()
    });
    for error in errors {
        assert!(
            error.contains("processes 0 and 1") && error.contains("same rows"),
            "{error}"
        );
    }
}
