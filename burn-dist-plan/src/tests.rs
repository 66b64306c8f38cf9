//! The law of the planner: the plan of a window on any mesh gives what the window gives on one device. Long for the
//! programs that it is checked with.

pub(crate) mod factors;
mod growth;
pub(crate) mod pipelines;
pub(crate) mod programs;
mod repeats;
mod schedules;
mod work;

use std::sync::Arc;

use proptest::prelude::*;

use crate::ir::{Mark, Task};
use crate::layout::{Factor, Layout, LayoutText, Partial};
use crate::mesh::{MeshShape, Nodes, ReduceOp};
use crate::plan::Plan;
use crate::toy::{Astray, Builder, Kind, Toy, nodes_of, options, planned, whole};
use crate::{
    ActivationCheckpoint, Float, PASSES, PlanOptions, Policy, Precision, Regions, plan, text_after,
};

/// Checks that records of communication say what the busiest of all ranks receives.
fn check_records(plan: &Plan<Toy>, what: &str) {
    let mut most: Vec<Option<u64>> = vec![None; plan.collectives.len()];
    let mut received = |record: u32, bytes: u64| {
        let most = &mut most[record as usize];
        *most = (*most).max(Some(bytes));
    };
    for task in plan.ranks.iter().flat_map(|rank| &rank.tasks) {
        match task {
            Task::Collective(task) => received(task.record, task.bytes()),
            Task::Launch { tasks, .. } => {
                for task in tasks {
                    received(task.record, task.bytes());
                }
            }
            Task::Receive(task) => received(task.record, task.bytes()),
            _ => {}
        }
    }
    for (record, most) in plan.collectives.iter().zip(most) {
        assert_eq!(
            record.bytes,
            most.unwrap_or(record.bytes),
            "{what}: {record:?}"
        );
    }
}

/// Plans and runs a window and compares, with elementwise work in regions and without.
pub(crate) fn check(b: &Builder, options: &PlanOptions, what: &str) {
    let expected = whole(&b.window);
    for regions in [Regions::Flex, Regions::Off, Regions::On] {
        let options = PlanOptions {
            regions,
            ..options.clone()
        };
        let plan = plan(&b.window, &b.mesh, &options).expect("a plan");
        check_records(&plan, what);
        let found = planned(&b.window, &plan, &b.mesh);
        assert_eq!(found.len(), expected.len(), "{what}, regions {regions}");
        for (value, expected) in &expected {
            assert_eq!(
                found[value], *expected,
                "value {value}: {what}, regions {regions}"
            );
        }
    }
}

pub(crate) const MESHES: [&str; 10] = [
    "",
    "dp=2",
    "fsdp=2",
    "tp=2",
    "fsdp=3",
    "dp=2,fsdp=2",
    "fsdp=2,tp=2",
    "dp=3,tp=2",
    "dp=2,fsdp=3",
    "dp=2,fsdp=2,tp=2",
];

/// Two layers, a loss, the backward and an update.
fn training_step(mesh: &str, rows: usize) -> Builder {
    let mut b = Builder::new(mesh);
    let mut spec = |name: &str, shape: &[usize], split: Option<usize>| {
        let mut spec = Builder::spec(&format!("{name}.weight"), shape, Some(name));
        if let (Some(dim), Ok(tp)) = (split, b.mesh.axis("tp")) {
            spec.layout.dims[dim].factors[0].axes = vec![tp];
        }
        b.param(spec)
    };
    let up = spec("up", &[6, 8], Some(1));
    let down = spec("down", &[8, 6], Some(0));
    let x = b.data(&[rows, 6]);
    let h = b.matmul(x, up);
    let a = b.exp(h);
    let y = b.matmul(a, down);
    let loss = b.pair(Kind::Mul, y, y);
    let loss = b.sum_dim(loss, 0);
    let loss = b.sum_dim(loss, 1);
    // d loss = 2 y, without the 2.
    let at = b.transpose(a);
    let g_down = b.matmul(at, y);
    let down_t = b.transpose(down);
    let g_a = b.matmul(y, down_t);
    let g_h = b.pair(Kind::Mul, g_a, h);
    let xt = b.transpose(x);
    let g_up = b.matmul(xt, g_h);
    for (weight, gradient) in [(up, g_up), (down, g_down)] {
        let updated = b.pair(Kind::Sub, weight, gradient);
        b.survive(updated);
    }
    b.read(loss);
    b
}

#[test]
fn a_training_step_is_the_same_on_every_mesh() {
    for mesh in MESHES {
        for rows in [1, 4, 7, 12] {
            for checkpoint in ["none", "full", "selective"] {
                let b = training_step(mesh, rows).under(Policy {
                    checkpoint: checkpoint.parse().expect("a policy"),
                    ..Policy::default()
                });
                let what = format!("`{mesh}`, {rows} rows, {checkpoint}");
                check(&b, &options(&b.mesh), &what);
            }
        }
    }
}

/// Of 16 elements over more ranks, the last ones hold none and receive most.
#[test]
fn the_busiest_rank_may_be_any() {
    for mesh in ["fsdp=100", "dp=2,fsdp=70", "fsdp=70,tp=2"] {
        let b = three_layers(mesh, 4);
        check(&b, &options(&b.mesh), mesh);
    }
}

#[test]
fn what_is_placed_in_any_layout_gives_the_same() {
    for mesh in MESHES {
        let shape: MeshShape = mesh.parse().expect("a mesh");
        for split in 0..3 {
            let mut b = Builder::new(mesh);
            let mut layout = Layout::replicated(&[5, 6]);
            if split < 2 {
                layout.dims[split].factors[0].axes = shape.axis_indices().collect();
                layout.normalize(&shape);
            }
            let a = b.placed(&[5, 6], layout.clone());
            let c = b.placed(&[5, 6], Layout::replicated(&[5, 6]));
            let sum = b.pair(Kind::Add, a, c);
            let flat = b.reshape(sum, &[30]);
            let back = b.reshape(flat, &[6, 5]);
            let turned = b.transpose(back);
            let product = b.matmul(back, turned);
            let part = b.op(Kind::Slice(0, 1..4), &[product], &[3, 6]);
            let total = b.sum_dim(part, 1);
            b.survive(turned);
            b.read(total);
            check(&b, &options(&b.mesh), &format!("`{mesh}`, {split}"));
        }
    }
}

/// Two tensors of one layout that meet, in a unit whose policy says how.
fn meeting(mut b: Builder, kind: Kind, layout: Layout, context: &str) -> Builder {
    let shape = layout.shape();
    let weight = b.param(Builder::spec("w", &[shape[1], shape[1]], Some("unit")));
    let x = b.placed(&shape, layout.clone());
    let x = b.linear(x, weight);
    let y = b.placed(&shape, layout);
    let met = b.op(kind, &[x, y], &shape);
    b.survive(met);
    b.read(met);
    b.under(Policy {
        context: context.parse().expect("a policy"),
        ..Policy::default()
    })
}

/// Rows that are split in any way, and rows that each meet all others.
#[test]
fn what_goes_round_meets_everything() {
    let mut rings = 0;
    for mesh in MESHES {
        let shape: MeshShape = mesh.parse().expect("a mesh");
        for rows in [1, 2, 5, 6, 12] {
            for (kind, context) in ["auto", "ring", "gather"]
                .into_iter()
                .flat_map(|context| [Kind::Meet, Kind::MeetBack].map(|kind| (kind, context)))
            {
                for stripes in [false, true] {
                    let b = Builder::new(mesh);
                    let mut layout = Layout::replicated(&[rows, 3]);
                    let parts = shape.num_ranks();
                    let axes = shape.axis_indices().collect();
                    layout.dims[0].factors = match stripes && rows % parts == 0 {
                        true => vec![Factor::whole(rows / parts), Factor { size: parts, axes }],
                        false => vec![Factor { size: rows, axes }],
                    };
                    layout.normalize(&shape);
                    let b = meeting(b, kind.clone(), layout, context);
                    let what = format!("{kind:?} of {rows} on `{mesh}`, {context}, {stripes}");
                    check(&b, &options(&b.mesh), &what);
                    let planned = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
                    let mut found = planned.collectives.iter();
                    let shifts = found.any(|found| found.kind.name() == "shift");
                    match context {
                        "ring" => assert_eq!(shifts, parts > 1 && rows > 1, "{what}"),
                        "gather" => assert!(!shifts, "{what}"),
                        _ => rings += u32::from(shifts),
                    }
                }
            }
        }
    }
    assert!(rings > 0, "no ring is chosen");
}

#[test]
fn shifts_that_ranks_cannot_do_together_are_named() {
    for (astray, expected) in [
        (
            Astray::AllTheWay,
            "astray: rank 0 asks for a shift by 3 over dp of f32 [{dp}, -], which moves nothing among 3 ranks",
        ),
        (
            Astray::Forgets,
            "astray: rank 0 launches shifts that it never finishes",
        ),
        (
            Astray::Alone,
            "astray: rank 2 asks for a shift by 1 over dp of f32 [{dp}, -] where rank 0 asks for no further shift",
        ),
        (
            Astray::Farther,
            "astray: rank 2 asks for a shift by 2 over dp of f32 [{dp}, -] where rank 0 asks for a shift by 1 over dp of \
             f32 [{dp}, -]",
        ),
    ] {
        let b = Builder::new("dp=3");
        let layout = split(&b, &[6, 2], 0, "dp");
        let b = meeting(b, Kind::Astray(astray), layout, "ring");
        let error = plan(&b.window, &b.mesh, &options(&b.mesh)).expect_err("it goes astray");
        let text = error.to_string();
        assert!(text.starts_with(expected), "{text}");
    }
}

/// A plan whose nodes, prefetching, offload and accumulation are all in use.
#[test]
fn no_option_changes_a_value() {
    for mesh in ["fsdp=4", "dp=2,fsdp=2", "dp=2,tp=2", "dp=2,fsdp=2,tp=2"] {
        for policy in ["none", "full", "bytes=100"] {
            for nodes in [1, 2] {
                for (prefetch, offload) in
                    [(0, "none"), (1, "params,optimizer"), (2, "activations")]
                {
                    for reshard in ["always", "never"] {
                        let b = training_step(mesh, 8).under(Policy {
                            prefetch,
                            reshard: reshard.parse().expect("a policy"),
                            checkpoint: policy.parse().expect("a policy"),
                            offload: offload.parse().expect("a policy"),
                            ..Policy::default()
                        });
                        let per_node = b.mesh.num_ranks() / nodes;
                        let options = PlanOptions {
                            topology: Nodes::Each(per_node)
                                .topology(b.mesh.num_ranks(), &[])
                                .expect("nodes"),
                            hierarchy_bytes_min: Some(0),
                            ..options(&b.mesh)
                        };
                        let what =
                            format!("{mesh} {policy} {nodes} {prefetch} {offload} {reshard}");
                        check(&b, &options, &what);
                    }
                }
            }
        }
    }
}

/// Every rank brings back what it loads on the host, also one whose part has no elements.
#[test]
fn what_is_loaded_on_the_host_is_brought_back_however_small() {
    let mut b = Builder::new("fsdp=3");
    let w = b.param(Builder::spec("w", &[4, 6], None));
    let x = b.data(&[2, 4]);
    let y = b.linear(x, w);
    let turned = b.transpose(w);
    let new = b.transpose(turned);
    b.survive(new);
    b.read(y);
    let b = b.under(Policy {
        offload: "params".parse().expect("an offload"),
        ..Policy::default()
    });
    check(&b, &options(&b.mesh), "a part without elements");
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    for rank in &plan.ranks {
        let tasks = rank.tasks.iter();
        let loaded = tasks.filter_map(|task| match task {
            Task::Load {
                slot, host: true, ..
            } => Some(*slot),
            _ => None,
        });
        for slot in loaded {
            let is_back = |task: &Task<Toy>| matches!(task, Task::FromHost(of) if of.slot == slot);
            assert!(
                rank.tasks.iter().any(is_back),
                "s{slot} of {:?}",
                rank.tasks
            );
        }
    }
}

/// A training step of three layers, units of their own: `exp(x w)` each, and the sum of squares.
pub(crate) fn three_layers(mesh: &str, rows: usize) -> Builder {
    let mut b = Builder::new(mesh);
    let weight = |b: &mut Builder, name: &str| {
        b.param(Builder::spec(
            &format!("{name}.weight"),
            &[4, 4],
            Some(name),
        ))
    };
    let weights = ["first", "second", "third"].map(|name| weight(&mut b, name));
    let mut x = b.data(&[rows, 4]);
    let mut saved = Vec::new();
    for &w in &weights {
        let h = b.linear(x, w);
        let y = b.exp(h);
        saved.push((x, w, h));
        x = y;
    }
    let squares = b.pair(Kind::Mul, x, x);
    let rows = b.sum_dim(squares, 1);
    let loss = b.sum_dim(rows, 0);
    let ones = b.ones_for(x);
    let mut g = b.pair(Kind::Mul, ones, x);
    let mut updated = Vec::new();
    for (x, w, h) in saved.into_iter().rev() {
        // The slope of x x + 1, halved.
        let gh = b.pair(Kind::Mul, g, h);
        let (gx, gw) = b.linear_backward(x, w, gh);
        g = gx;
        updated.push((w, gw));
    }
    for (w, gw) in updated {
        let new = b.pair(Kind::Sub, w, gw);
        b.survive(new);
    }
    b.read(loss);
    b
}

/// What there is after each pass, of a training step on two nodes with activations made again in the backward.
#[test]
fn golden_plans() {
    let b = three_layers("fsdp=4", 8).under(Policy {
        checkpoint: ActivationCheckpoint::Full,
        offload: "params".parse().expect("an offload"),
        precision: Precision::new(Float::BF16),
        ..Policy::default()
    });
    let nodes = Nodes::Each(2).topology(4, &[]).expect("nodes");
    let options = PlanOptions {
        topology: nodes,
        hierarchy_bytes_min: Some(0),
        ..options(&b.mesh)
    };
    check(&b, &options, "three layers");
    let mut before = String::new();
    for (pass, _) in PASSES {
        let after = text_after(&b.window, &b.mesh, &options, pass).expect("a pass");
        if after != before {
            insta::assert_snapshot!(format!("after_{pass}"), after);
        }
        before = after;
    }
    let error = text_after(&b.window, &b.mesh, &options, "fuse").expect_err("no pass");
    let text = error.to_string();
    assert!(
        text.contains("the passes are layers, precision, float8, propagate"),
        "{text}"
    );
}

/// Returns a layout in which every axis splits a dim, holds terms of a sum, or does nothing.
pub(crate) fn random_layout(
    mesh: &MeshShape,
    shape: &[usize],
    pick: &mut impl FnMut(usize) -> usize,
) -> Layout {
    let mut layout = Layout::replicated(shape);
    for axis in mesh.axis_indices() {
        let op = ReduceOp::Sum;
        match pick(shape.len() + 2) {
            0 => {}
            1 => layout.partial.push(Partial { axis, op }),
            dim => layout.dims[dim - 2].factors[0].axes.push(axis),
        }
    }
    layout.normalize(mesh);
    layout
}

/// Writes a random program of up to 24 operations on what fits together.
pub(crate) fn random_program(mesh: &str, picks: &[u8]) -> Builder {
    let mut b = Builder::new(mesh);
    let mut picks = picks.iter().map(|&pick| usize::from(pick));
    let mut pick = |bound: usize| picks.next().unwrap_or(0) % bound;
    let unit = |index: usize| if index < 2 { Some("first") } else { None };
    for (index, shape) in [[6, 6], [6, 4], [4, 6]].iter().enumerate() {
        let mut spec = Builder::spec(&format!("w{index}"), shape, unit(index));
        if let (Ok(tp), dim @ 0..2) = (b.mesh.axis("tp"), pick(3)) {
            spec.layout.dims[dim].factors[0].axes = vec![tp];
        }
        b.param(spec);
    }
    let rows = [4, 6, 5][pick(3)];
    let indices = b.data(&[rows]);
    let mut last = b.data(&[rows, 6]);
    for _ in 0..4 + pick(20) {
        let a = pick(last as usize + 1) as u32;
        let a = if a == indices { last } else { a };
        let shape = b.shape(a);
        let fits = |b: &Builder, fits: &dyn Fn(&[usize]) -> bool, from: usize| {
            let values = (0..=last).map(|offset| (offset + from as u32) % (last + 1));
            values.into_iter().find(|value| fits(&b.shape(*value)))
        };
        let alike = fits(&b, &|other| other == shape, pick(8));
        let right = fits(
            &b,
            &|other| other.len() == 2 && other[0] == shape[1],
            pick(8),
        );
        let terms = fits(&b, &|other| other == [rows, shape[1]], pick(8));
        last = match (pick(15), alike, right) {
            (11, ..) => b.lookup(a, indices),
            (12, ..) if terms.is_some() => b.sum_at(a, indices, terms.unwrap_or(a)),
            (10, ..) => {
                let layout = random_layout(&b.mesh, &shape, &mut pick);
                b.mark(Mark::Redistribute(Arc::new(layout)), a)
            }
            (0 | 1, Some(c), _) => b.pair(Kind::Add, a, c),
            (2, Some(c), _) => b.pair(Kind::Sub, a, c),
            (3, Some(c), _) => b.pair(Kind::Mul, a, c),
            (14, Some(c), _) => b.pair(Kind::Like, a, c),
            (4 | 5, _, Some(c)) => b.linear(a, c),
            (6, ..) => {
                let is_wider = |other: &[usize]| {
                    let mut sizes = other.iter().zip(&shape);
                    other.len() == shape.len()
                        && other != shape
                        && sizes.all(|(wide, size)| wide == size || *size == 1)
                };
                match fits(&b, &is_wider, 0) {
                    Some(wider) => {
                        let wide = b.shape(wider);
                        b.op(Kind::Expand, &[a], &wide)
                    }
                    None => b.transpose(a),
                }
            }
            (7, ..) => b.sum_dim(a, pick(2)),
            (8, ..) if shape[0] > 2 => b.op(Kind::Slice(0, 1..3), &[a], &[2, shape[1]]),
            (13, _, _) => {
                let wide = fits(
                    &b,
                    &|other| other.len() == 2 && other[1] == shape[1],
                    pick(8),
                );
                let kind = [Kind::Meet, Kind::MeetBack][pick(2)].clone();
                let other = wide.unwrap_or(a);
                let out = match kind {
                    Kind::Meet => shape.clone(),
                    _ => b.shape(other),
                };
                b.op(kind, &[a, other], &out)
            }
            (9, ..) if pick(2) == 0 => b.reshape(a, &[shape[1], shape[0]]),
            (9, ..) => b.op(Kind::Random, &[], &shape),
            _ => b.exp(a),
        };
        match pick(6) {
            0 => b.survive(last),
            1 => b.read(last),
            _ => {}
        }
    }
    b.survive(last);
    b
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_program_is_the_same_on_any_mesh(
        mesh in proptest::sample::select(&MESHES[..]),
        picks in proptest::collection::vec(any::<u8>(), 20..160),
        policy in proptest::sample::select(&["none", "full", "selective"][..]),
        scatter in 0usize..2,
        defer in any::<bool>(),
        everyone_reads in any::<bool>(),
        precision in any::<bool>(),
        per_node in 1usize..4,
    ) {
        let precision = match precision {
            true => Precision::new(Float::BF16),
            false => Precision::default(),
        };
        let b = random_program(mesh, &picks).under(Policy {
            checkpoint: policy.parse().expect("a policy"),
            precision,
            ..Policy::default()
        });
        let options = PlanOptions {
            scatter_bytes_min: scatter << 20,
            defer,
            everyone_reads,
            topology: nodes_of(&b.mesh, per_node),
            hierarchy_bytes_min: Some(0),
            ..options(&b.mesh)
        };
        check(&b, &options, mesh);
    }
}

/// A step that waits for a reduction stays in the program where a gather waits for the same one.
#[test]
fn what_waits_for_a_reduction_is_run() {
    let mut b = Builder::new("fsdp=2");
    let first = b.param(Builder::spec("first", &[6, 6], Some("unit")));
    let last = b.param(Builder::spec("last", &[4, 6], None));
    let indices = b.data(&[6]);
    let x = b.data(&[6, 6]);
    let once = b.lookup(x, indices);
    let twice = b.lookup(once, indices);
    let sum = b.pair(Kind::Add, twice, first);
    b.survive(sum);
    b.lookup(first, indices);
    b.linear(last, twice);
    let options = PlanOptions {
        scatter_bytes_min: 0,
        defer: false,
        ..options(&b.mesh)
    };
    check(&b, &options, "a gather of what a reduction makes");
}

/// A value that becomes terms of a sum is the sum of these.
#[test]
fn terms_add_up_to_the_value() {
    for mesh in ["dp=2", "tp=3", "dp=2,tp=3"] {
        let mut b = Builder::new(mesh);
        let a = b.placed(&[4, 6], Layout::replicated(&[4, 6]));
        let mut layout = Layout::replicated(&[4, 6]);
        let op = ReduceOp::Sum;
        layout.partial = b
            .mesh
            .axis_indices()
            .map(|axis| Partial { axis, op })
            .collect();
        let terms = b.mark(Mark::Redistribute(Arc::new(layout)), a);
        let sum = b.sum_dim(terms, 1);
        let square = b.pair(Kind::Mul, terms, terms);
        b.survive(sum);
        b.survive(terms);
        b.read(square);
        check(&b, &options(&b.mesh), mesh);
    }
}

/// The gradient of what a layer takes goes where that is, also where the layer computes in 16 bits: rows of a sequence
/// stay split over the ranks of the layer, and are gathered once.
#[test]
fn the_gradient_of_an_input_goes_where_the_input_is() {
    for float in [Float::F32, Float::BF16] {
        let mut b = Builder::new("tp=2");
        let tp = b.mesh.axis("tp").expect("an axis");
        let mut spec = Builder::spec("up.weight", &[6, 8], Some("up"));
        spec.layout.dims[1].factors[0].axes = vec![tp];
        let up = b.param(spec);
        let scale = b.param(Builder::spec("scale", &[1, 6], None));
        let x = b.data(&[4, 6]);
        let mut rows = Layout::replicated(&[4, 6]);
        rows.dims[0].factors[0].axes = vec![tp];
        let x = b.mark(Mark::Redistribute(Arc::new(rows)), x);
        let wide = b.op(Kind::Expand, &[scale], &[4, 6]);
        let x = b.pair(Kind::Mul, x, wide);
        let x = b.reshape(x, &[1, 4, 6]);
        let x = b.reshape(x, &[4, 6]);
        let y = b.linear(x, up);
        let ones = b.ones_for(y);
        let g = b.pair(Kind::Mul, ones, y);
        let (gx, gw) = b.linear_backward(x, up, g);
        let gx = b.reshape(gx, &[1, 4, 6]);
        let squared = b.pair(Kind::Mul, gx, gx);
        b.survive(squared);
        let new = b.pair(Kind::Sub, up, gw);
        b.survive(new);
        let b = b.under(Policy {
            precision: Precision::new(float),
            ..Policy::default()
        });
        let options = PlanOptions {
            scatter_bytes_min: 0,
            ..options(&b.mesh)
        };
        check(&b, &options, "an input whose rows are split");
        let text = text_after(&b.window, &b.mesh, &options, "propagate").expect("a pass");
        assert!(text.contains("reduce_scatter over tp"), "{text}");
        assert!(!text.contains("all_reduce"), "{text}");
        assert_eq!(text.matches("= all_gather over tp").count(), 1, "{text}");
    }
}

/// What there is of a window after `propagate`, checked to be right.
fn propagated(b: &Builder) -> String {
    let options = PlanOptions {
        scatter_bytes_min: 0,
        ..options(&b.mesh)
    };
    check(b, &options, "a window of few operations");
    text_after(&b.window, &b.mesh, &options, "propagate").expect("a pass")
}

fn split(b: &Builder, shape: &[usize], dim: usize, axis: &str) -> Layout {
    let mut layout = Layout::replicated(shape);
    layout.dims[dim].factors[0].axes = vec![b.mesh.axis(axis).expect("an axis")];
    layout
}

/// Softmax of a row that is split: what a sum's gradient is spread over is made where it meets the rest, not whole.
#[test]
fn what_a_sum_is_spread_over_is_split_as_what_it_meets() {
    for sum_is_first in [false, true] {
        let mut b = Builder::new("fsdp=2,tp=2");
        let mut layout = split(&b, &[6, 8], 0, "fsdp");
        layout.dims[1] = split(&b, &[6, 8], 1, "tp").dims.remove(1);
        let x = b.placed(&[6, 8], layout);
        let e = b.exp(x);
        let sum = b.sum_dim(e, 1);
        let wide = b.op(Kind::Expand, &[sum], &[6, 8]);
        let (again, wide) = match sum_is_first {
            true => (b.exp(x), wide),
            false => (e, b.exp(wide)),
        };
        let product = b.pair(Kind::Mul, wide, again);
        b.survive(product);
        let text = propagated(&b);
        let whole = text.lines().filter(|line| line.contains("[{fsdp}, -]"));
        assert!(
            whole
                .clone()
                .all(|line| line.contains("sum_dim") || line.contains("all_reduce")),
            "{text}"
        );
        assert!(text.contains("expand(s3)  f32 [{fsdp}, {tp}]"), "{text}");
    }
}

/// The gradient of a read at indices where the table is split: each rank adds to the part that the rest is in.
#[test]
fn what_is_added_at_indices_is_made_where_it_is_used() {
    let mut b = Builder::new("tp=2");
    let layout = split(&b, &[6, 4], 0, "tp");
    let x = b.placed(&[6, 4], layout);
    let indices = b.data(&[3]);
    let zeros = b.op(Kind::Full(0), &[], &[6, 4]);
    let terms = b.op(Kind::Full(3), &[], &[3, 4]);
    let sum = b.sum_at(zeros, indices, terms);
    let all = b.pair(Kind::Add, x, sum);
    b.survive(all);
    let text = propagated(&b);
    assert!(!text.contains("slice"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.contains("sum_at") && line.ends_with("[{tp}, -]")),
        "{text}"
    );
}

/// Rows are split over the ranks of a layer, so each has terms of the gradient of a scale: they are added up while the
/// backward goes on.
#[test]
fn gradients_are_reduced_over_model_axes_as_soon_as_they_are_there() {
    for mesh in ["tp=2", "fsdp=2,tp=2"] {
        let mut b = Builder::new(mesh);
        let first = b.param(Builder::spec("first.weight", &[6, 6], Some("first")));
        let scale = b.param(Builder::spec("norm.scale", &[1, 6], Some("norm")));
        let x = b.data(&[8, 6]);
        let h = b.linear(x, first);
        let axes = b.mesh.axis_indices().collect();
        let mut rows = Layout::replicated(&[8, 6]);
        rows.dims[0].factors[0].axes = axes;
        let h = b.mark(Mark::Redistribute(Arc::new(rows)), h);
        let wide = b.op(Kind::Expand, &[scale], &[8, 6]);
        let y = b.pair(Kind::Mul, h, wide);
        let ones = b.ones_for(y);
        let g = b.pair(Kind::Mul, ones, y);
        let terms = b.pair(Kind::Mul, g, h);
        let of_scale = b.sum_dim(terms, 0);
        let of_h = b.pair(Kind::Mul, g, wide);
        let (_, of_first) = b.linear_backward(x, first, of_h);
        for (weight, gradient) in [(scale, of_scale), (first, of_first)] {
            let new = b.pair(Kind::Sub, weight, gradient);
            b.survive(new);
        }
        let options = options(&b.mesh);
        check(&b, &options, mesh);
        let text = text_after(&b.window, &b.mesh, &options, "schedule").expect("a pass");
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
        let of_scale = text
            .lines()
            .find(|line| line.contains("all_reduce over") && line.contains("norm"));
        assert!(
            at(of_scale.unwrap_or("a reduction")) < at("linear_w("),
            "{text}"
        );
    }
}

/// Sequence parallelism beside a context axis: of its stripes of a sequence, each rank has a part, equal or not; so it
/// has of a range where there are none.
#[test]
fn rows_that_are_stripes_are_split_once_more() {
    for (rows, dim) in [
        (8, "(4{tp} . 2{cp})"),
        (10, "(5{tp} . 2{cp})"),
        (9, "{cp, tp}"),
    ] {
        let mut b = Builder::new("cp=2,tp=2");
        let tp = b.mesh.axis("tp").expect("an axis");
        let mut spec = Builder::spec("down.weight", &[4, 6], Some("down"));
        spec.layout.dims[0].factors[0].axes = vec![tp];
        spec.output = Some(LayoutText::parse("[-, {tp}, -]").expect("a layout"));
        let down = b.param(spec);
        let x = b.data(&[3, rows, 4]);
        let y = b.linear(x, down);
        let z = b.exp(y);
        b.survive(z);
        let text = propagated(&b);
        assert!(text.contains("reduce_scatter over tp"), "{text}");
        assert!(text.contains(&format!("f32 [-, {dim}, -]")), "{text}");
    }
}

/// A module takes its input in the layout that is asked for, though another one would be cheaper.
#[test]
fn layouts_that_are_asked_for_come_first() {
    let mut b = Builder::new("tp=2");
    let mut spec = Builder::spec("up.weight", &[6, 8], Some("up"));
    spec.input = Some(LayoutText::parse("[-, -]").expect("a layout"));
    let up = b.param(spec);
    let rows = split(&b, &[64, 6], 0, "tp");
    let x = b.placed(&[64, 6], rows);
    let y = b.linear(x, up);
    b.survive(y);
    let text = propagated(&b);
    assert!(text.contains("linear(s2, s0)  f32 [-, -]"), "{text}");
}

/// Rows are summed where they are, though few of them would be cheaper to gather than a large sum to reduce.
#[test]
fn rows_are_summed_where_they_are() {
    let mut b = Builder::new("dp=2");
    let w = b.param(Builder::spec("w", &[64, 64], None));
    let x = b.data(&[2, 64]);
    let y = b.linear(x, w);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let (_, gw) = b.linear_backward(x, w, g);
    let new = b.pair(Kind::Sub, w, gw);
    b.survive(new);
    let text = propagated(&b);
    assert!(text.contains("all_reduce over dp"), "{text}");
    assert!(!text.contains("all_gather"), "{text}");
}

/// A parameter stays on the axes over which it is split, though it would be cheaper to gather than what it is applied
/// to.
#[test]
fn parameters_stay_where_they_are_split() {
    let mut b = Builder::new("tp=2");
    let mut spec = Builder::spec("up.weight", &[6, 8], Some("up"));
    spec.layout = split(&b, &[6, 8], 1, "tp");
    let up = b.param(spec);
    let rows = split(&b, &[640, 6], 0, "tp");
    let x = b.placed(&[640, 6], rows);
    let y = b.linear(x, up);
    b.survive(y);
    let text = propagated(&b);
    assert!(text.contains("linear(s2, s0)  f32 [-, {tp}]"), "{text}");
}

/// Functions of data that a mark has laid out follow that, where nothing else decides: they are no batch.
#[test]
fn what_is_made_of_data_follows_the_data() {
    let mut b = Builder::new("dp=2,tp=2");
    let x = b.data(&[4, 6]);
    let columns = split(&b, &[4, 6], 1, "tp");
    let seen = b.mark(Mark::Redistribute(Arc::new(columns)), x);
    let y = b.exp(x);
    b.survive(seen);
    b.survive(y);
    let text = propagated(&b);
    assert!(text.contains("exp(s0)  f32 [-, {tp}]"), "{text}");
}

/// Terms of a new parameter are made where that rests, also where all that they are made of is whole.
#[test]
fn an_update_is_made_where_its_parameter_rests() {
    let mut b = Builder::new("fsdp=2");
    let w = b.param(Builder::spec("w", &[4, 6], None));
    let mask = b.placed(&[4, 6], Layout::replicated(&[4, 6]));
    let scaled = b.op(Kind::Scale(0), &[mask], &[4, 6]);
    let new = b.pair(Kind::Sub, w, scaled);
    b.survive(new);
    let text = propagated(&b);
    let made = text.lines().find(|line| line.contains("scale("));
    assert!(made.is_some_and(|line| line.contains("{fsdp*}")), "{text}");
}

/// Elementwise work on terms of gradients is done where parameters of their shape rest, and at rest.
#[test]
fn squares_of_gradients_rest() {
    let mut b = Builder::new("fsdp=2");
    let w = b.param(Builder::spec("w", &[6, 6], None));
    let x = b.data(&[4, 6]);
    let y = b.linear(x, w);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let (_, gw) = b.linear_backward(x, w, g);
    let squares = b.pair(Kind::Mul, gw, gw);
    b.survive(squares);
    b.survive(w);
    let text = propagated(&b);
    let made = text.lines().rfind(|line| line.contains("mul("));
    assert!(made.is_some_and(|line| line.contains("{fsdp*}")), "{text}");
}

/// Terms over a data axis are added up everywhere, though the activation is split along it that they are the gradient
/// of.
#[test]
fn terms_over_data_axes_are_added_up_everywhere() {
    let mut b = Builder::new("dp=2");
    let mut spec = Builder::spec("w", &[6, 8], None);
    spec.layout = split(&b, &[6, 8], 1, "dp");
    let w = b.param(spec);
    let rows = split(&b, &[4, 6], 0, "dp");
    let x = b.placed(&[4, 6], rows);
    let y = b.linear(x, w);
    let columns = split(&b, &[4, 8], 1, "dp");
    let y = b.mark(Mark::Redistribute(Arc::new(columns)), y);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let (gx, _) = b.linear_backward(x, w, g);
    let slope = b.exp(gx);
    b.survive(slope);
    let text = propagated(&b);
    assert!(text.contains("all_reduce over dp"), "{text}");
    assert!(!text.contains("reduce_scatter over dp"), "{text}");
}
