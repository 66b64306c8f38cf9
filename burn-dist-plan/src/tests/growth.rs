//! The law of growth: a plan, and the work of making it, are as large as the program.

use super::pipelines::{Model, Norm};
use crate::ir::RankPlan;
use crate::plan::Plan;
use crate::toy::{Builder, Toy, looks, options};
use crate::{ActivationCheckpoint, PlanOptions, Policy, Regions, ScheduleKind, plan};

/// One mesh of each kind.
const KINDS: [&str; 10] = [
    "",
    "dp=2",
    "fsdp=2",
    "dp=2,fsdp=2",
    "tp=2",
    "cp=2",
    "ep=2",
    "pp=2",
    "pp=2,fsdp=2",
    "pp=2,tp=2",
];

const LAYERS: [u32; 5] = [4, 8, 16, 32, 64];

/// A model of so many layers.
fn model(mesh: &str, layers: u32, norm: Norm) -> Model {
    let mut model = Model::new(mesh, ScheduleKind::OneFOneB, 1, 3);
    let stages = model.layers.len() as u32;
    model.layers = (0..layers).map(|layer| layer * stages / layers).collect();
    model.norm = norm;
    model
}

/// What grows with a plan.
#[derive(Debug)]
struct Size {
    /// Operands and results that were looked at to make it.
    looks: u64,
    tasks: u64,
    slots: u64,
    collectives: u64,
    bytes: u64,
}

fn planned(b: &Builder, options: &PlanOptions) -> (Size, Plan<Toy>) {
    let before = looks();
    let plan = plan(&b.window, &b.mesh, options).expect("a plan");
    let of_ranks = |count: &dyn Fn(&RankPlan<Toy>) -> usize| {
        plan.ranks.iter().map(|rank| count(rank) as u64).sum()
    };
    let size = Size {
        looks: looks() - before,
        tasks: of_ranks(&|rank| rank.tasks.len()),
        slots: of_ranks(&|rank| rank.num_slots as usize),
        collectives: plan.collectives.len() as u64,
        bytes: plan.collectives.iter().map(|record| record.bytes).sum(),
    };
    (size, plan)
}

/// Checks that what is twice as large grows twice as fast: ten percent are for what is rounded.
fn grows_linearly(sizes: &[u64], what: &str) {
    let steps: Vec<u64> = sizes
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .collect();
    for pair in steps.windows(2) {
        let most = 2 * pair[0] + pair[0] / 5 + 4;
        assert!(pair[1] <= most, "{what}: {sizes:?} for {LAYERS:?} layers");
    }
}

/// Plans a program of every size, and checks each figure.
fn check_growth(build: impl Fn(u32) -> Builder, what: &str, edit: impl Fn(&mut PlanOptions)) {
    let sizes = LAYERS.map(|layers| {
        let b = build(layers);
        let mut options = options(&b.mesh);
        edit(&mut options);
        planned(&b, &options).0
    });
    for (name, figure) in [
        ("looks", (|size| size.looks) as fn(&Size) -> u64),
        ("tasks", |size| size.tasks),
        ("slots", |size| size.slots),
        ("collectives", |size| size.collectives),
        ("bytes", |size| size.bytes),
    ] {
        let figures: Vec<u64> = sizes.iter().map(figure).collect();
        grows_linearly(&figures, &format!("{name} of {what}"));
    }
}

#[test]
fn plans_grow_as_their_programs_do() {
    for mesh in KINDS {
        for norm in [Norm::None, Norm::Read, Norm::Scales] {
            let build = |layers| model(mesh, layers, norm).step(4);
            check_growth(build, &format!("a step on `{mesh}`, {norm:?}"), |_| {});
            let what = format!("a step in regions on `{mesh}`, {norm:?}");
            check_growth(build, &what, |options| options.regions = Regions::On);
        }
        let validation = |layers| model(mesh, layers, Norm::None).validation(4);
        check_growth(validation, &format!("a validation on `{mesh}`"), |_| {});
        let checkpoint = |layers| model(mesh, layers, Norm::None).checkpoint();
        check_growth(checkpoint, &format!("a checkpoint on `{mesh}`"), |_| {});
    }
}

/// So they do with activations that are made again or moved to the host, and weights that are not kept gathered.
#[test]
fn plans_grow_as_their_programs_do_under_any_policy() {
    for (checkpoint, offload) in [
        ("full", "none"),
        ("selective", "activations"),
        ("bytes=4096", "params,optimizer"),
    ] {
        for mesh in ["fsdp=2", "dp=2,fsdp=2", "pp=2,fsdp=2"] {
            let policy = Policy {
                checkpoint: checkpoint
                    .parse::<ActivationCheckpoint>()
                    .expect("a policy"),
                offload: offload.parse().expect("a policy"),
                prefetch: 2,
                ..Policy::default()
            };
            let build = |layers| {
                let step = model(mesh, layers, Norm::Scales).step(4);
                step.under(policy.clone())
            };
            let what = format!("a step on `{mesh}`, {checkpoint}, {offload}");
            check_growth(build, &what, |_| {});
        }
    }
}

/// What is read of a step changes nothing that is sent but single numbers.
#[test]
fn a_norm_costs_single_numbers() {
    for mesh in KINDS {
        for layers in LAYERS {
            let large = |norm| {
                let b = model(mesh, layers, norm).step(4);
                let (_, plan) = planned(&b, &options(&b.mesh));
                let large = plan.collectives.iter().filter(|record| {
                    let elements: usize = record.shape.iter().product();
                    elements > 4
                });
                let mut large: Vec<_> = large
                    .map(|record| {
                        (
                            record.kind.name(),
                            &*record.axes,
                            &record.shape,
                            record.bytes,
                        )
                    })
                    .map(|(kind, axes, shape, bytes)| format!("{kind} {axes} {shape:?} {bytes}"))
                    .collect();
                large.sort();
                large
            };
            let without = large(Norm::None);
            for norm in [Norm::Read, Norm::Scales] {
                assert_eq!(
                    large(norm),
                    without,
                    "{norm:?} of {layers} layers on `{mesh}`"
                );
            }
        }
    }
}
