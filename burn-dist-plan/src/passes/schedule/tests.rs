//! Reductions hide behind the work of a unit, in however many goes they are done.

use super::{Bucket, launch_last_early};
use crate::clock::{Hardware, simulate};
use crate::ir::ProgramStep;
use crate::mesh::Rank;
use crate::tests::pipelines::{Model, Norm};
use crate::toy::{self, Builder, Toy};
use crate::{PlanOptions, ScheduleKind, plan};

const LAYERS: usize = 24;

/// A step of equal layers, each with so many rows of data per rank.
fn step(mesh: &str, norm: Norm) -> Builder {
    let mut model = Model::new(mesh, ScheduleKind::default(), 1, 1);
    model.layers = vec![0; LAYERS];
    model.norm = norm;
    let ranks = Builder::new(mesh).mesh.num_ranks();
    model.step(16 * ranks)
}

/// Calls cost nothing, so that gradients are scattered first, however small.
fn options(b: &Builder) -> PlanOptions {
    let links = "dp:latency_us=0,gbps=8;fsdp:latency_us=0,gbps=8";
    PlanOptions {
        links: links.parse().expect("links"),
        ..toy::options(&b.mesh)
    }
}

/// The share of a step in which a rank waits for transfers that nothing hides.
fn exposed(mesh: &str, norm: Norm) -> f64 {
    let mut hardware = Hardware::preset("h100").expect("a preset");
    hardware.devices_per_node = 8;
    // A layer computes for longer than its gradient and its weight are under way.
    hardware.products.f32_tflops = 4e-6;
    hardware.products.half_gflop = 0.0;
    hardware.memory.gb_per_s = 1.0;
    hardware.links.inside.gb_per_s = 1e-3;
    let b = step(mesh, norm);
    let planned = plan(&b.window, &b.mesh, &options(&b)).expect("a plan");
    let ranks: Vec<_> = (0..).map(Rank).zip(planned.ranks).collect();
    let simulation = simulate(&ranks, &b.mesh, &hardware).expect("it ends");
    let rank = &simulation.ranks[0];
    rank.exposed_ns as f64 / rank.end_ns as f64
}

#[test]
fn a_second_reduction_exposes_no_more_than_the_first() {
    for norm in [Norm::None, Norm::Read, Norm::Scales] {
        for (mesh, without) in [("dp=2,fsdp=4", "fsdp=4"), ("dp=4,fsdp=2", "fsdp=2")] {
            let (with, without) = (exposed(mesh, norm), exposed(without, norm));
            assert!(
                with <= without + 0.01,
                "{norm:?} on {mesh}: {with:.4} of a step is exposed, and {without:.4} without dp"
            );
        }
    }
}

/// The operations between the launch of each reduction of gradients and its end, in the order of launches.
fn between(mesh: &str, is_meant: impl Fn(&crate::ir::Move) -> bool) -> Vec<usize> {
    let b = step(mesh, Norm::None);
    let options = options(&b);
    let mut planner = crate::planner::Planner::new(&b.window, &b.mesh, &options);
    planner.run(Some("schedule")).expect("a program");
    let steps = &planner.state.program().steps;
    let is_local = |step: &&ProgramStep<Toy>| matches!(step, ProgramStep::Local(_));
    let launches = steps
        .iter()
        .enumerate()
        .filter_map(|(at, step)| match step {
            ProgramStep::Launch { group, moves } if moves.iter().all(&is_meant) => {
                Some((at, *group))
            }
            _ => None,
        });
    let counts = launches.map(|(at, group)| {
        let is_end =
            |step: &ProgramStep<Toy>| matches!(step, ProgramStep::Finish { group: of, .. } if *of == group);
        let rest = &steps[at..];
        let end = rest.iter().position(is_end).expect("it is waited for");
        rest[..end].iter().filter(is_local).count()
    });
    counts.collect()
}

#[test]
fn both_reductions_have_the_work_of_a_unit() {
    use crate::layout::redistribute::StepKind;
    let scatters =
        |step: &crate::ir::Move| matches!(step.step.kind, StepKind::ReduceScatter { .. });
    let reduces = |step: &crate::ir::Move| matches!(step.step.kind, StepKind::AllReduce { .. });
    let first = between("dp=2,fsdp=2", scatters);
    let without = between("fsdp=2", scatters);
    assert_eq!(first.len(), LAYERS);
    // Those of the last units are waited for at the end.
    let units = ..LAYERS - 2;
    assert_eq!(first[units], without[units]);
    let second = between("dp=2,fsdp=2", reduces);
    let mut both = second[units].iter().zip(&without[units]);
    assert!(both.all(|(second, first)| second >= first), "{second:?}");
}

/// The last reductions of six gradients of one size: those that have four fifths of the bytes before the last one, the
/// rest of these, and the last one.
#[test]
fn the_last_reductions_start_in_three_goes() {
    for scatters in [false, true] {
        let bucket = Bucket {
            members: (10..16).collect(),
            place: 15,
            scatters,
            ..Bucket::default()
        };
        let buckets = launch_last_early(vec![bucket], |member| member, |_| 8);
        let mut goes: Vec<_> = buckets
            .iter()
            .map(|of| (of.place, of.members.clone()))
            .collect();
        goes.sort();
        let expected = [(13, vec![10, 11, 12, 13]), (14, vec![14]), (15, vec![15])];
        assert_eq!(goes, expected);
        assert!(
            buckets
                .iter()
                .all(|of| of.is_last && of.scatters == scatters)
        );
    }
}
