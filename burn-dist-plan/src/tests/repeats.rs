//! The law of repeated microbatches: a plan of a few, repeated, takes the time and the memory of a plan of all.

use super::pipelines::{Model, chunks};
use crate::clock::{Hardware, Simulation, simulate};
use crate::ir::Task;
use crate::mesh::Rank;
use crate::toy::{Builder, options};
use crate::{
    ActivationCheckpoint, PlanError, PlanOptions, Policy, Redundancy, Reshard, ScheduleKind, plan,
};

/// Devices on which work, transfers and hosts all take time, in that order.
fn hardware() -> Hardware {
    let mut hardware = Hardware::preset("h100").expect("a preset");
    hardware.devices_per_node = 4;
    hardware.products.f32_tflops = 1e-6;
    hardware.memory.gb_per_s = 1e-4;
    hardware.links.inside.gb_per_s = 1e-3;
    hardware.links.between.gb_per_s = 1e-3;
    hardware
}

fn simulated(
    b: &Builder,
    microbatches: Option<u32>,
) -> Result<(Simulation, Redundancy), PlanError> {
    let options = PlanOptions {
        microbatches,
        ..options(&b.mesh)
    };
    let plan = plan(&b.window, &b.mesh, &options)?;
    let ranks: Vec<_> = (0..).map(Rank).zip(plan.ranks).collect();
    let simulation = simulate(&ranks, &b.mesh, &hardware()).expect("it ends");
    Ok((simulation, plan.redundancy))
}

/// Checks the law: everything that the clock says is equal, task by task.
fn check(model: &Model, policy: &Policy, planned: usize, microbatches: u32) {
    let step = |microbatches: usize| {
        let model = Model {
            microbatches,
            ..model.clone()
        };
        model.step(4).under(policy.clone())
    };
    let what = format!("{model:?}, {policy:?}, {planned} of {microbatches}");
    let (whole, work) = simulated(&step(microbatches as usize), None).expect("a plan");
    let repeated = simulated(&step(planned), Some(microbatches));
    let (repeated, work_repeated) = repeated.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(work, work_repeated, "{what}");
    assert_eq!(whole.step_ns, repeated.step_ns, "{what}");
    assert!(whole == repeated, "{what}:\n{whole}\n{repeated}");
}

fn model(mesh: &str, schedule: ScheduleKind) -> Model {
    Model {
        apart: true,
        ..Model::new(mesh, schedule, chunks(schedule), 1)
    }
}

#[test]
fn a_repeated_microbatch_takes_the_time_and_the_memory_of_those_it_stands_for() {
    for mesh in [
        "pp=2",
        "pp=3",
        "pp=4",
        "pp=2,fsdp=2",
        "dp=2,pp=2",
        "pp=2,tp=2",
    ] {
        for schedule in ScheduleKind::ALL {
            for microbatches in [5, 6, 7, 9] {
                check(&model(mesh, schedule), &Policy::default(), 4, microbatches);
            }
        }
    }
}

#[test]
fn without_a_pipeline_too() {
    for mesh in ["", "dp=2", "fsdp=2", "fsdp=2,tp=2", "dp=2,fsdp=2"] {
        for microbatches in [5, 8] {
            let model = model(mesh, ScheduleKind::default());
            check(&model, &Policy::default(), 4, microbatches);
        }
    }
}

/// Under checkpointing, every second microbatch makes again what stands between it and the one before it.
#[test]
fn whatever_the_policy() {
    let policies = [
        Policy {
            checkpoint: "full".parse::<ActivationCheckpoint>().expect("a policy"),
            ..Policy::default()
        },
        Policy {
            reshard: Reshard::Always,
            ..Policy::default()
        },
        Policy {
            accumulation: "microbatch".parse().expect("a policy"),
            ..Policy::default()
        },
    ];
    for policy in policies {
        for mesh in ["pp=2,fsdp=2", "fsdp=2", "dp=2,pp=3"] {
            for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbV] {
                let model = Model {
                    skip: (policy.checkpoint == ActivationCheckpoint::None).then_some(1),
                    ..model(mesh, schedule)
                };
                check(&model, &policy, 6, 10);
                check(&model, &policy, 7, 9);
            }
        }
    }
}

/// More are planned than need be, and the schedule is a table.
#[test]
fn a_table_is_of_all_microbatches() {
    let schedule = ScheduleKind::ZbH2.schedule(3, 1, 7).expect("a schedule");
    let b = |microbatches| {
        let model = Model {
            choice: Some(schedule.clone().into()),
            microbatches,
            ..model("pp=3", ScheduleKind::default())
        };
        model.step(4)
    };
    let whole = simulated(&b(7), None).expect("a plan");
    for planned in [4, 5, 6, 7] {
        let repeated = simulated(&b(planned), Some(7)).expect("a plan");
        assert!(whole == repeated, "{planned} planned");
    }
}

#[test]
fn a_microbatch_unlike_the_one_before_stands_for_none() {
    let b = |microbatches| {
        let model = Model {
            microbatches,
            ..model("pp=2", ScheduleKind::default())
        };
        model.step(4)
    };
    let error = |planned| {
        let error = simulated(&b(planned), Some(9)).expect_err("unlike");
        error.to_string()
    };
    insta::assert_snapshot!([error(1), error(2)].join("\n"));
}

/// The host reads each microbatch, also those that others stand for.
#[test]
fn every_microbatch_is_read() {
    let reads = |planned: usize, microbatches: Option<u32>| {
        let model = Model {
            microbatches: planned,
            apart: false,
            ..model("pp=2", ScheduleKind::default())
        };
        let b = model.step(4);
        let options = PlanOptions {
            microbatches,
            ..options(&b.mesh)
        };
        let plan = plan(&b.window, &b.mesh, &options).expect("a plan");
        let tasks = plan.ranks.iter().flat_map(|rank| &rank.tasks);
        let reads = |task: &&Task<_>| matches!(task, Task::Read { .. });
        tasks.filter(reads).count()
    };
    assert_eq!(reads(7, None), 7);
    assert_eq!(reads(4, Some(7)), reads(7, None));
}
