//! Small cases by hand, and laws over plans of the toy language.

use std::sync::Arc;

use super::*;
use crate::ir::{CollectiveRecord, CollectiveTask, Mark, Op, Task};
use crate::mesh::{DType, Split, collective};
use crate::plan::Plan;
use crate::policy::AsyncTp;
use crate::toy::{Builder, Kind, Toy, options};
use crate::{PlanOptions, Policy, Regions, plan};

/// A device whose times are easy to add up: a flop, a byte of memory and a byte of a link inside a node take a
/// nanosecond, one between nodes two.
fn simple() -> Hardware {
    let link = |gb_per_s, latency_us| DeviceLink {
        gb_per_s,
        efficiency: 1.0,
        latency_us,
    };
    Hardware {
        name: "simple".into(),
        devices_per_node: 4,
        products: Products {
            f64_tflops: 1e-3,
            f32_tflops: 1e-3,
            f16_tflops: 2e-3,
            f8_tflops: 4e-3,
            efficiency: 1.0,
            f8_efficiency: 1.0,
            half_gflop: 0.0,
            spread: 0.0,
        },
        memory: Memory {
            gib: 1.0,
            reserved_gib: 0.25,
            gb_per_s: 1.0,
            efficiency: 1.0,
        },
        kernels: Kernels {
            start_us: 0.0,
            compile: false,
            fusion: 1.0,
            collective_share: 0.0,
        },
        host: Host {
            operation_us: 0.0,
            collective_us: 0.0,
            gb_per_s: 1.0,
        },
        links: NodeLinks {
            inside: link(1.0, 0.01),
            between: link(0.5, 0.1),
        },
    }
}

#[test]
fn a_collective_takes_what_its_formula_says() {
    let hardware = simple();
    let time = |kind, nodes, per_node, bytes| {
        hardware.communication_ns(kind, Split { nodes, per_node }, bytes)
    };
    // Three steps of 10 ns, and a byte a nanosecond.
    assert_eq!(time(collective::Kind::AllGather, 1, 4, 300), 330.0);
    assert_eq!(time(collective::Kind::ReduceScatter, 1, 4, 300), 330.0);
    assert_eq!(time(collective::Kind::AllToAll, 1, 4, 300), 330.0);
    // Two passes.
    assert_eq!(time(collective::Kind::AllReduce, 1, 4, 600), 660.0);
    // One member on each of four nodes: every byte goes between nodes, and takes two nanoseconds.
    assert_eq!(time(collective::Kind::AllGather, 4, 1, 300), 300.0 + 600.0);
    // Four members on each of two nodes: one step of 100 ns and six of 10; four links share what goes between nodes.
    assert_eq!(time(collective::Kind::AllGather, 2, 4, 700), 160.0 + 700.0);
    assert_eq!(
        time(collective::Kind::AllReduce, 2, 4, 1400),
        320.0 + 1400.0
    );
    assert_eq!(time(collective::Kind::AllGather, 1, 1, 0), 0.0);
}

/// Between many nodes, a sum of few bytes takes a tree: four levels instead of fifteen steps, there and back. One of many
/// bytes takes a ring, and so does what is no sum.
#[test]
fn small_sums_over_many_nodes_take_a_tree() {
    let hardware = simple();
    let time = |kind, bytes| {
        let on = Split {
            nodes: 16,
            per_node: 4,
        };
        hardware.communication_ns(kind, on, bytes)
    };
    let up_and_down = 2.0 * (3.0 * 10.0 + 4.0 * 100.0);
    let around = (63.0 - 15.0) * 10.0 + 15.0 * 100.0;
    for (kind, bytes, expected) in [
        (collective::Kind::AllReduce, 0, up_and_down),
        (collective::Kind::AllReduce, 63, up_and_down + 64.0 / 0.92),
        (collective::Kind::AllReduce, 63_000, 2.0 * around + 63_000.0),
        (collective::Kind::ReduceScatter, 0, around),
        (collective::Kind::AllGather, 0, around),
    ] {
        let found = time(kind, bytes);
        assert!(
            (found - expected).abs() < 1e-6,
            "{kind:?}, {bytes} B: {found}, not {expected}"
        );
    }
}

#[test]
fn small_products_are_far_from_the_peak() {
    let mut hardware = simple();
    hardware.products.half_gflop = 1.0;
    let speed = |flops| flops / hardware.product_ns(flops, DType::F32);
    assert_eq!(speed(1e9), 0.5, "of one flop per nanosecond");
    assert!(speed(1e6) < 0.01 && speed(1e12) > 0.99);
    assert_eq!(
        hardware.product_ns(1e9, DType::BF16) * 2.0,
        hardware.product_ns(1e9, DType::F32)
    );
}

/// One device waits for nobody; of e^2 and e^8 the slowest is behind by two and four times the spread.
#[test]
fn ranks_go_at_the_pace_of_the_slowest() {
    let mut hardware = simple();
    hardware.products.spread = 0.01;
    hardware.memory.gb_per_s = 1e9;
    for (devices, expected) in [(1, 1.0), (7, 1.02), (2981, 1.04)] {
        let found = hardware.slowest(devices);
        assert!((found - expected).abs() < 5e-4, "{devices}: {found}");
    }
    let (b, plan) = step("dp=2,fsdp=4", 8, "none");
    let mut alike = hardware.clone();
    alike.products.spread = 0.0;
    let [alike, apart] =
        [&alike, &hardware].map(|hardware| clock(&b, &plan, hardware).ranks.remove(0));
    let expected = alike.compute_ns as f64 * hardware.slowest(8);
    let more = apart.compute_ns as f64 - expected;
    // Each kernel ends with a whole nanosecond.
    let kernels = apart.lanes[COMPUTE].count as f64;
    assert!(more.abs() <= kernels, "{more} of {expected}");
    assert!(
        expected > alike.compute_ns as f64 + 2.0 * kernels,
        "{expected}"
    );
}

#[test]
fn presets_are_read_as_they_are_written() {
    for name in Hardware::preset_names() {
        let hardware = Hardware::preset(name).expect("a preset");
        assert_eq!(hardware.name, name);
        assert_eq!(Hardware::from_toml(&hardware.to_toml()), Ok(hardware));
    }
}

#[test]
fn hardware_that_cannot_be_is_refused() {
    let error = |text: &str| Hardware::from_toml(text).expect_err("an error").to_string();
    assert_eq!(
        Hardware::preset("h1000").expect_err("an error").to_string(),
        "there is no hardware `h1000`: the presets are a100, h100, h100-hbm2e-500w, h200; a file may describe any other"
    );
    let text = simple().to_toml();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from} is not in\n{text}");
        error(&text.replace(from, to))
    };
    let unknown = with("half_gflop", "half_gflops");
    assert!(unknown.contains("unknown field `half_gflops`"), "{unknown}");
    assert!(unknown.contains("presets a100, h100"), "{unknown}");
    let missing = with("gib = 1.0\n", "");
    assert!(missing.contains("missing field `gib`"), "{missing}");
    let text_for_number = with("gib = 1.0", "gib = \"much\"");
    assert!(
        text_for_number.contains("gib = \"much\"") && text_for_number.contains("line"),
        "{text_for_number}"
    );
    assert_eq!(
        with("fusion = 1.0", "fusion = 1.5"),
        "cannot read the hardware: `kernels.fusion` is 1.5, and has to be from 0 to 1"
    );
    assert_eq!(
        with("operation_us = 0.0", "operation_us = -1.0"),
        "cannot read the hardware: `host.operation_us` is -1, and has to be 0 or more"
    );
    assert_eq!(
        with("devices_per_node = 4", "devices_per_node = 0"),
        "cannot read the hardware: `devices_per_node` is 0, and has to be above 0"
    );
}

/// Two layers in units, a loss, their backward and an update.
fn step(mesh: &str, rows: usize, checkpoint: &str) -> (Builder, Plan<Toy>) {
    let mut b = Builder::new(mesh);
    let mut spec = |name: &str, shape: &[usize], split: usize| {
        let mut spec = Builder::spec(&format!("{name}.weight"), shape, Some(name));
        if let Ok(tp) = b.mesh.axis("tp") {
            spec.layout.dims[split].factors[0].axes = vec![tp];
        }
        b.param(spec)
    };
    let up = spec("up", &[12, 16], 1);
    let down = spec("down", &[16, 12], 0);
    let x = b.data(&[rows, 12]);
    let h = b.linear(x, up);
    let a = b.exp(h);
    let y = b.linear(a, down);
    let square = b.pair(Kind::Mul, y, y);
    let loss = b.sum_dim(square, 0);
    let loss = b.sum_dim(loss, 1);
    let one = b.ones_for(y);
    let g_y = b.pair(Kind::Mul, one, y);
    let (g_a, g_down) = b.linear_backward(a, down, g_y);
    let g_h = b.pair(Kind::Mul, g_a, a);
    let (_, g_up) = b.linear_backward(x, up, g_h);
    for (weight, gradient) in [(up, g_up), (down, g_down)] {
        let updated = b.pair(Kind::Sub, weight, gradient);
        b.survive(updated);
    }
    b.read(loss);
    let b = b.under(Policy {
        checkpoint: checkpoint.parse().expect("a policy"),
        ..Policy::default()
    });
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    (b, plan)
}

fn numbered(b: &Builder, plan: &Plan<Toy>) -> Vec<(Rank, Arc<crate::ir::RankPlan<Toy>>)> {
    b.mesh.ranks().zip(plan.ranks.iter().cloned()).collect()
}

const MESHES: [&str; 7] = [
    "",
    "dp=2",
    "fsdp=3",
    "tp=2",
    "fsdp=2,tp=2",
    "dp=2,fsdp=4",
    "dp=2,fsdp=2,tp=2",
];

/// All of [`MESHES`], rows that split evenly and that do not, with and without checkpointing.
fn each(mut check: impl FnMut(&str, &Builder, &Plan<Toy>)) {
    for mesh in MESHES {
        for rows in [7, 8] {
            for checkpoint in ["none", "full"] {
                let (b, plan) = step(mesh, rows, checkpoint);
                check(&format!("`{mesh}`, {rows} rows, {checkpoint}"), &b, &plan);
            }
        }
    }
}

fn clock(b: &Builder, plan: &Plan<Toy>, hardware: &Hardware) -> Simulation {
    simulate(&numbered(b, plan), &b.mesh, hardware).expect("it ends")
}

/// How the backend stores 8 bits says nothing of how fast it multiplies them.
#[test]
fn products_in_8_bits_run_at_a_rate_of_their_own() {
    let mut hardware = simple();
    hardware.memory.gb_per_s = 1e9;
    hardware.products.f8_efficiency = 0.5;
    let [rows, width, classes] = [16, 32, 64];
    let time = |float8: Option<&str>| {
        let mut b = Builder::new("");
        let weight = b.param(Builder::spec("weight", &[width, classes], None));
        let (also, x) = (
            b.param(Builder::spec("also", &[classes, width], None)),
            b.data(&[rows, width]),
        );
        let y = b.linear(x, weight);
        let z = b.linear(y, also);
        b.read(z);
        let policy = Policy {
            float8: float8.map(|recipe| recipe.parse().expect("a recipe")),
            ..Policy::default()
        };
        let b = b.under(policy);
        let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
        let found = clock(&b, &plan, &hardware);
        let entries = found.ranks[0].entries.iter();
        let products = entries.filter(|entry| entry.name.ends_with("linear"));
        products
            .map(|entry| entry.end_ns - entry.start_ns)
            .sum::<u64>()
    };
    let flops = 2 * 2 * (rows * width * classes) as u64;
    assert_eq!(time(None), flops);
    for recipe in ["tensorwise", "rowwise"] {
        // The last one is the output, which float8 leaves as it is.
        let expected = flops / 2 / (4 / 2) + flops / 2;
        assert_eq!(time(Some(recipe)), expected, "{recipe}");
    }
}

/// Random numbers come from the host, unless a region's kernel draws them.
#[test]
fn a_device_waits_for_random_numbers_that_no_region_draws() {
    let mut hardware = simple();
    hardware.host.gb_per_s = 1e-3;
    let waits = |regions| {
        let mut b = Builder::new("");
        let (x, mask) = (b.data(&[16, 32]), b.op(Kind::Random, &[], &[16, 32]));
        let kept = b.op(Kind::Mul, &[x, mask], &[16, 32]);
        b.survive(kept);
        let options = PlanOptions {
            regions,
            ..options(&b.mesh)
        };
        let plan = plan(&b.window, &b.mesh, &options).expect("a plan");
        let tasks = plan.ranks[0].tasks.iter();
        let draws = tasks.filter(|task| matches!(task, Task::Random(_))).count();
        (draws, clock(&b, &plan, &hardware).ranks[0].host_ns)
    };
    let (alone, in_region) = (waits(Regions::Flex), waits(Regions::On));
    assert_eq!((alone.0, in_region.0), (1, 0));
    assert_eq!(alone.1, in_region.1 + 16 * 32 * 4 * 1000);
}

#[test]
fn a_rank_computes_communicates_waits_or_is_idle() {
    let mut hardware = simple();
    hardware.host.operation_us = 0.05;
    hardware.host.collective_us = 0.1;
    each(|what, b, plan| {
        let found = clock(b, plan, &hardware);
        let ranks: usize = found.ranks.iter().map(|rank| rank.ranks.len()).sum();
        assert_eq!(ranks, b.mesh.num_ranks(), "{what}");
        for rank in &found.ranks {
            let sum = rank.compute_ns + rank.exposed_ns + rank.host_ns + rank.idle_ns;
            assert_eq!(sum, rank.end_ns, "{what}");
            assert!(rank.end_ns <= found.step_ns, "{what}");
            assert_eq!(rank.lanes[0].busy_ns, rank.compute_ns, "{what}");
        }
    });
}

/// Collectives of one kind among the same ranks that are launched together: one latency, one hand-out, all bytes.
#[test]
fn what_starts_together_is_one_call() {
    let mut together = 0;
    each(|what, b, plan| {
        let found = clock(b, plan, &simple());
        for rank in &found.ranks {
            let tasks = &plan.ranks[rank.ranks[0].0 as usize].tasks;
            let (mut calls, mut bytes) = (0, 0);
            for task in tasks {
                let of = task.collectives();
                let mut kinds: Vec<_> = of.iter().map(|of| (of.group.clone(), of.kind())).collect();
                kinds.sort_unstable();
                kinds.dedup();
                calls += kinds.len() as u64;
                together += of.len() - kinds.len();
                bytes += of.iter().map(CollectiveTask::bytes).sum::<u64>();
                if let Task::Send(of) | Task::Receive(of) = task {
                    calls += 1;
                    bytes += of.bytes();
                }
            }
            let lanes = &rank.lanes[1..];
            let found = (
                lanes.iter().map(|lane| lane.count).sum::<u64>(),
                lanes.iter().map(|lane| lane.bytes).sum::<u64>(),
            );
            assert_eq!(found, (calls, bytes), "{what}");
        }
    });
    assert!(together > 0);
}

/// Two weights of one unit: one gather of both in front of it.
#[test]
fn the_weights_of_a_unit_are_gathered_with_one_latency() {
    let mut b = Builder::new("fsdp=2");
    let [up, down] = ["up", "down"].map(|name| {
        let spec = Builder::spec(&format!("block.{name}.weight"), &[16, 16], Some("block"));
        b.param(spec)
    });
    let x = b.data(&[8, 16]);
    let h = b.linear(x, up);
    let y = b.linear(h, down);
    b.survive(y);
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    let found = clock(&b, &plan, &simple());
    let gathers: Vec<_> = found.ranks[0]
        .entries
        .iter()
        .filter(|e| e.name == "all_gather")
        .collect();
    let times: Vec<_> = gathers
        .iter()
        .map(|e| (e.ops, e.end_ns - e.start_ns))
        .collect();
    // Half of two weights in f32, and a step of the ring.
    assert_eq!(times, [(2, 2 * 16 * 16 * 4 / 2 + 10)]);
}

/// Time that a rank computes, less what collectives take of it, is what it would be alone.
#[test]
fn collectives_take_their_part_of_what_is_computed_beside_them() {
    let mut shared = simple();
    shared.kernels.collective_share = 0.25;
    let mut slowed = 0;
    each(|what, b, plan| {
        let [alone, beside] = [&simple(), &shared].map(|hardware| clock(b, plan, hardware));
        for (alone, beside) in alone.ranks.iter().zip(&beside.ranks) {
            let (kernels, calls): (Vec<_>, Vec<_>) = beside
                .entries
                .iter()
                .partition(|entry| entry.lane == COMPUTE);
            let both = |a: &Entry, b: &Entry| {
                let end = a.end_ns.min(b.end_ns);
                end.saturating_sub(a.start_ns.max(b.start_ns))
            };
            let overlap = kernels
                .iter()
                .flat_map(|a| calls.iter().map(|b| both(a, b)))
                .sum::<u64>();
            let left = beside.compute_ns as f64 - 0.25 * overlap as f64;
            // Each kernel ends with a whole nanosecond.
            let more = left - alone.compute_ns as f64;
            assert!(
                (0.0..=kernels.len() as f64).contains(&more),
                "{what}: {more}"
            );
            slowed += overlap;
        }
    });
    assert!(slowed > 0);
}

/// Async TP moves chunks by copy engines: what is computed beside them has the whole device.
#[test]
fn shifts_slow_nothing() {
    let mut b = Builder::new("tp=2");
    let up = b.split_weight("up", [6, 8], 1);
    let x = b.data(&[3, 8, 6]);
    let tp = b.mesh.axis("tp").expect("an axis");
    let mut layout = crate::layout::of_batch(&b.mesh, &[3, 8, 6]);
    layout.dims[1].factors[0].axes = vec![tp];
    layout.normalize(&b.mesh);
    let x = b.mark(Mark::Redistribute(Arc::new(layout)), x);
    let y = b.linear(x, up);
    b.survive(y);
    let b = b.under(Policy {
        async_tp: AsyncTp::On,
        ..Policy::default()
    });
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    let mut shared = simple();
    shared.kernels.collective_share = 0.25;
    let [alone, beside] = [&simple(), &shared].map(|hardware| clock(&b, &plan, hardware));
    let rank = &beside.ranks[0];
    let both: u64 = rank.lanes.iter().map(|lane| lane.busy_ns).sum();
    assert!(
        both > rank.end_ns,
        "something runs beside a shift: {beside}"
    );
    let names = rank.entries.iter().filter(|entry| entry.lane != COMPUTE);
    assert!(
        names.map(|entry| entry.name).all(|name| name == "shift"),
        "{beside}"
    );
    assert_eq!(alone, beside);
}

#[test]
fn memory_is_what_the_plan_says() {
    each(|what, b, plan| {
        for compile in [false, true] {
            let found = clock(b, plan, &simple().compiled(compile));
            for rank in &found.ranks {
                let index = rank.ranks[0].0 as usize;
                let expected = &plan.memory[index];
                assert_eq!(rank.memory, *expected, "{what}");
                assert_eq!(rank.peak_bytes, expected.peak_bytes + (1 << 28), "{what}");
                let over_time = &rank.memory_over_time;
                let most = over_time.iter().map(|at| at.bytes.total()).max();
                assert_eq!(most, Some(expected.peak_bytes), "{what}");
                assert!(over_time.is_sorted_by_key(|at| at.ns), "{what}");
                assert_eq!(over_time.len(), plan.ranks[index].tasks.len(), "{what}");
            }
        }
    });
}

#[test]
fn nothing_is_faster_than_the_peak_and_the_bandwidth() {
    each(|what, b, plan| {
        let found = clock(b, plan, &simple());
        for rank in &found.ranks {
            let tasks = &plan.ranks[rank.ranks[0].0 as usize].tasks;
            let ops = tasks.iter().filter_map(|task| match task {
                Task::Op(op, _) => Some(op),
                _ => None,
            });
            let flops: f64 = ops.filter_map(Op::product_flops).sum();
            assert_eq!(rank.flops, flops, "{what}");
            assert!(rank.compute_ns as f64 >= flops, "{what}");
            for lane in &rank.lanes[1..] {
                assert!(lane.busy_ns >= lane.bytes, "{what}: {lane:?}");
            }
            assert!(rank.end_ns >= rank.compute_ns, "{what}");
        }
    });
}

/// Makes one constant of some hardware better.
type Change = fn(&mut Hardware);

#[test]
fn better_hardware_is_never_slower() {
    let mut base = simple();
    base.host.operation_us = 0.05;
    base.host.collective_us = 0.1;
    base.kernels.start_us = 0.03;
    base.kernels.compile = true;
    base.kernels.fusion = 0.5;
    base.devices_per_node = 2;
    let changes: [(&str, Change); 11] = [
        ("flops", |h| h.products.f32_tflops *= 2.0),
        ("memory", |h| h.memory.gb_per_s *= 2.0),
        ("inside", |h| h.links.inside.gb_per_s *= 2.0),
        ("between", |h| h.links.between.gb_per_s *= 2.0),
        ("latency", |h| h.links.between.latency_us /= 2.0),
        ("operations", |h| h.host.operation_us = 0.0),
        ("collectives", |h| h.host.collective_us = 0.0),
        ("copies", |h| h.host.gb_per_s *= 2.0),
        ("starts", |h| h.kernels.start_us = 0.0),
        ("fusion", |h| h.kernels.fusion = 1.0),
        ("nodes", |h| h.devices_per_node = 8),
    ];
    each(|what, b, plan| {
        let before = clock(b, plan, &base).step_ns;
        let eager = clock(b, plan, &base.clone().compiled(false)).step_ns;
        assert!(before <= eager, "compile: {what}: {before} and {eager}");
        for (name, change) in changes {
            let mut better = base.clone();
            change(&mut better);
            let after = clock(b, plan, &better).step_ns;
            assert!(after <= before, "{name}: {what}: {after} and {before}");
        }
    });
}

#[test]
fn one_rank_of_each_kind_stands_for_all() {
    let hardware = simple();
    let mut fewer = 0;
    each(|what, b, plan| {
        let ranks = numbered(b, plan);
        let found = clock(b, plan, &hardware);
        fewer += usize::from(found.ranks.len() < ranks.len());
        // Every rank by itself, calls among all of them.
        let nodes = topology(&b.mesh, &hardware).expect("nodes");
        let mut lanes = rank::Lanes::new(&b.mesh, nodes);
        let all: Vec<Vec<Action>> = ranks
            .iter()
            .map(|(rank, plan)| {
                let mut of = rank::actions(*rank, plan, &hardware, &mut lanes);
                let calls = of.actions.iter_mut().filter_map(|action| match action {
                    Action::Start { call, .. } => Some(call),
                    _ => None,
                });
                for (call, group) in calls.zip(&of.groups) {
                    call.members = group.iter().map(|rank| rank.0 as usize).collect();
                    call.members.sort_unstable();
                }
                of.actions
            })
            .collect();
        let timelines = run(&all).expect("it ends");
        for rank in &found.ranks {
            for number in &rank.ranks {
                let end = timelines[number.0 as usize].end;
                assert_eq!(end, rank.end_ns, "{what}: rank {}", number.0);
            }
        }
    });
    assert!(fewer > 10, "{fewer}");
}

/// `exp(exp(x w))`, whose rows are added up: 96 bytes of x, 64 of w, 96 of each result, 16 of the sum.
#[test]
fn a_chain_reads_and_writes_once_what_is_used_outside() {
    let mut b = Builder::new("");
    let x = b.placed(&[6, 4], crate::layout::Layout::replicated(&[6, 4]));
    let w = b.placed(&[4, 4], crate::layout::Layout::replicated(&[4, 4]));
    let y = b.op(Kind::Matmul, &[x, w], &[6, 4]);
    let once = b.exp(y);
    let twice = b.exp(once);
    let sum = b.sum_dim(twice, 0);
    b.survive(sum);
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    let time = |compile, fusion| {
        let mut hardware = simple().compiled(compile);
        hardware.kernels.fusion = fusion;
        clock(&b, &plan, &hardware)
    };
    let product = 96 + 64 + 96;
    assert!(product >= 2 * 6 * 4 * 4, "bytes decide, not flops");
    let apart = (96 + 96) + (96 + 96) + (96 + 16);
    let eager = time(false, 1.0);
    assert_eq!(eager.step_ns, product + apart);
    assert_eq!(eager.ranks[0].lanes[0].count, 4);
    let compiled = time(true, 1.0);
    assert_eq!(compiled.step_ns, product + 96 + 16);
    assert_eq!(compiled.ranks[0].lanes[0].count, 2);
    let names: Vec<_> = compiled.ranks[0]
        .entries
        .iter()
        .map(|e| (e.name, e.ops))
        .collect();
    assert_eq!(names, [("matmul", 1), ("exp", 3)]);
    assert_eq!(
        time(true, 0.5).step_ns,
        product + 96 + 16 + (apart - 112) / 2
    );
}

/// A gather in front of each layer, by hand: the second one is hidden behind the first layer.
#[test]
fn a_gather_ahead_of_its_use_is_hidden() {
    let (b, plan) = step("fsdp=2", 8, "none");
    let found = clock(&b, &plan, &simple());
    let [rank] = &found.ranks[..] else {
        panic!("both ranks do the same: {found}")
    };
    let over = &rank.lanes[1];
    assert_eq!(over.name, "fsdp");
    let received: u64 = plan.collectives.iter().map(|record| record.bytes).sum();
    assert_eq!(over.bytes, received);
    assert_eq!(over.count as usize, plan.collectives.len());
    // A step of the ring each, two for the loss.
    let rounds = plan.collectives.iter().map(CollectiveRecord::rounds);
    assert_eq!(over.busy_ns, received + 10 * rounds.sum::<u64>());
    assert!(rank.exposed_ns < over.busy_ns, "some of it is hidden");
    assert!(rank.exposed_ns > 0, "the first gather is not");
}

#[test]
fn the_report_says_where_the_time_goes() {
    let (b, plan) = step("fsdp=2", 8, "none");
    insta::assert_snapshot!(clock(&b, &plan, &simple()));
}
