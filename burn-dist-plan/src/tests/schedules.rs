//! What is known of a program before its schedule: how long actions take, and what they leave behind.

use std::collections::BTreeSet;

use super::check;
use super::pipelines::{Model, chunks};
use crate::cost::Network;
use crate::facts::flow::Flow;
use crate::ir::{Program, ProgramStep, ScheduleChoice};
use crate::mesh::{Links, Topology};
use crate::passes::staging::parts::Part;
use crate::passes::staging::{costs, parts};
use crate::pipeline::Costs;
use crate::pipeline::{Action, Kind, Limits, Schedule};
use crate::planner::Planner;
use crate::toy::{Builder, Toy, options};
use crate::{PlanOptions, Regions, ScheduleKind, plan};

/// The costs of a step, by the program before it is split.
fn costs_of(b: &Builder, options: &PlanOptions) -> Costs {
    let mut planner = Planner::new(&b.window, &b.mesh, options);
    planner.run(Some("checkpoint")).expect("a program");
    let state = planner.state;
    let stages = crate::facts::stages::stages(&b.window, &state.facts).expect("stages");
    let stages = stages.expect("a pipeline");
    let parts = parts(&b.window, &state.facts, Some(&stages));
    let flow = Flow::new(state.program(), &state.facts, &b.mesh);
    let network = Network::new(&b.mesh, &options.links, &options.topology);
    costs(state.program(), &flow, &parts, &stages.pipeline, &network)
}

/// The most that a coordinate holds between actions for those to come, by its own program: memory that one microbatch
/// alone uses, from the action of a stage that makes it or first uses it until the last one of that stage that does.
/// What is on its way from one stage to another is not counted.
fn held(
    program: &Program<Toy>,
    planner: &Planner<'_, Toy>,
    parts: &[Part],
    order: &[Action],
) -> u64 {
    let flow = Flow::new(program, &planner.state.facts, planner.context.mesh);
    let action = |step: usize| {
        let step: &ProgramStep<Toy> = &program.steps[step];
        let part = parts[step.at()? as usize];
        let (stage, kind, microbatch) = (part.stage?, part.kind?, part.microbatch);
        let is_it = |action: &Action| {
            let full = kind != Kind::Forward && action.kind == Kind::Full;
            (action.stage, action.microbatch) == (stage, microbatch)
                && (action.kind == kind || full)
        };
        order.iter().position(is_it)
    };
    let mut change = vec![0i64; order.len() + 1];
    for root in 0..flow.root.len() {
        let same = (0..flow.root.len()).filter(|slot| flow.root[*slot] as usize == root);
        let uses = same.flat_map(|slot| &flow.uses[slot]).copied();
        let uses = uses.filter(|step| !matches!(program.steps[*step], ProgramStep::Send(_)));
        let Some(mut all) = uses.map(action).collect::<Option<Vec<_>>>() else {
            continue;
        };
        let maker = &program.steps[flow.maker[root]];
        if maker.writes().contains(&(root as u32)) {
            all.extend(action(flow.maker[root]));
        }
        let microbatches: BTreeSet<u32> = all.iter().map(|at| order[*at].microbatch).collect();
        let stages: BTreeSet<u32> = all.iter().map(|at| order[*at].stage).collect();
        for stage in stages.into_iter().filter(|_| microbatches.len() == 1) {
            let ends = all.iter().filter(|at| order[**at].stage == stage);
            let (first, last) = (ends.clone().min(), ends.max());
            change[*first.expect("a use")] += flow.bytes[root] as i64;
            change[*last.expect("a use")] -= flow.bytes[root] as i64;
        }
    }
    let mut now = 0;
    let after = change.into_iter().map(|change| {
        now += change;
        now
    });
    after.max().unwrap_or(0) as u64
}

/// Law: what the validator says that a rank holds is what its program holds.
#[test]
fn a_rank_holds_what_the_validator_says() {
    for mesh in ["pp=2", "pp=3", "pp=2,fsdp=2", "pp=2,tp=2"] {
        for kind in ScheduleKind::ALL {
            for microbatches in [1, 3, 4, 6] {
                let model = Model::new(mesh, kind, chunks(kind), microbatches);
                let b = model.step(4);
                let options = options(&b.mesh);
                let bytes = costs_of(&b, &options).bytes;
                let mut planner = Planner::new(&b.window, &b.mesh, &options);
                planner.run(Some("staging")).expect("programs");
                let state = &planner.state;
                let stages = state.stages.as_ref().expect("stages");
                let parts = parts(&b.window, &state.facts, Some(stages));
                let pipeline = &stages.pipeline;
                let per_rank = pipeline.stages / pipeline.ranks;
                let schedule = kind.schedule(pipeline.ranks, per_rank, microbatches as u32);
                let schedule = schedule.expect("a schedule");
                let said = schedule.validate(Limits::default(), |stage| bytes[stage as usize]);
                let found = state.programs.iter().zip(&schedule.order);
                let found = found.map(|(program, order)| held(program, &planner, &parts, order));
                let found: Vec<u64> = found.collect();
                assert_eq!(
                    found,
                    said.expect("valid"),
                    "{kind} of {microbatches} on {mesh}"
                );
                assert!(found.iter().all(|held| *held > 0));
            }
        }
    }
}

fn auto(mesh: &str, chunks: u32, microbatches: usize, bytes_max: Option<u64>) -> Model {
    Model {
        choice: Some(ScheduleChoice::Auto { bytes_max }),
        ..Model::new(mesh, ScheduleKind::Interleaved, chunks, microbatches)
    }
}

#[test]
fn what_is_chosen_gives_what_one_device_gives() {
    for (mesh, chunks) in [
        ("pp=2", 1),
        ("pp=3", 1),
        ("pp=2", 2),
        ("pp=2,fsdp=2", 1),
        ("pp=2,tp=2", 1),
    ] {
        for microbatches in [1, 2, 5, 8] {
            let model = auto(mesh, chunks, microbatches, None);
            let b = model.step(4);
            check(&b, &options(&b.mesh), &format!("{model:?}"));
        }
    }
}

#[test]
fn none_with_a_name_is_faster_than_what_is_chosen() {
    for (mesh, chunks) in [("pp=2", 1), ("pp=4", 1), ("pp=2", 2)] {
        for microbatches in [1u32, 2, 5, 8] {
            let b = auto(mesh, chunks, microbatches as usize, None).step(4);
            let options = options(&b.mesh);
            let ranks = b.mesh.num_ranks() as u32;
            let Costs { times, bytes } = costs_of(&b, &options);
            let span = |schedule: &Schedule| schedule.simulate(&times).expect("it runs").span();
            let chosen = crate::pipeline::choose(
                (ranks, chunks, microbatches),
                Some(crate::pipeline::Placement::Loop),
                &times,
                Limits::default(),
                |stage| bytes[stage as usize],
            );
            let chosen = chosen.expect("one");
            let planned = plan(&b.window, &b.mesh, &options).expect("a plan");
            let named = planned.scheduled.expect("a schedule");
            assert!(
                named.ends_with(&format!("auto: {}", chosen.name)),
                "{named}"
            );
            for kind in ScheduleKind::ALL
                .into_iter()
                .filter(|kind| chunks == 1 || !kind.is_v())
            {
                if let Ok(schedule) = kind.schedule(ranks, chunks, microbatches) {
                    assert!(
                        chosen.timeline.span() <= span(&schedule),
                        "{named} and {kind}"
                    );
                }
            }
        }
    }
}

#[test]
fn memory_bounds_what_is_chosen() {
    let chosen = |bytes_max| {
        let b = auto("pp=2", 1, 6, bytes_max).step(4);
        let planned = plan(&b.window, &b.mesh, &options(&b.mesh));
        planned.map(|plan| plan.scheduled.expect("a schedule"))
    };
    let error = chosen(Some(1)).expect_err("nothing fits").to_string();
    assert!(error.contains("auto within 1 B"), "{error}");
    let least: u64 = error
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .max()
        .expect("what the smallest needs");
    assert_ne!(
        chosen(Some(least)).expect("it fits"),
        chosen(None).expect("it fits")
    );
    assert!(chosen(Some(least - 1)).is_err());
}

#[test]
fn transfers_take_time_where_the_link_is_known() {
    let b = auto("pp=2,fsdp=2", 1, 3, None).step(4);
    let of = |links: &str| {
        let links: Links = links.parse().expect("links");
        let options = PlanOptions {
            links,
            topology: Topology::single(4),
            ..options(&b.mesh)
        };
        costs_of(&b, &options).times.transfers
    };
    // Half a batch of four columns, there and back: 4 x 4 / 2 x 4 bytes each way.
    assert_eq!(of("pp:latency_us=1,gbps=8"), [1032]);
    assert_eq!(of("fsdp:latency_us=1,gbps=8"), [0]);
}

/// Every rank does the actions of its schedule in order on the clock, and a chart of them has the time that they take.
#[test]
fn the_clock_shows_the_actions() {
    the_clock_shows_them(Regions::Flex);
    the_clock_shows_them(Regions::On);
}

fn the_clock_shows_them(regions: Regions) {
    let model = Model::new("pp=3", ScheduleKind::ZbH1, 1, 5);
    let b = model.step(4);
    let options = PlanOptions {
        regions,
        ..options(&b.mesh)
    };
    let planned = plan(&b.window, &b.mesh, &options).expect("a plan");
    let ranks: Vec<_> = b.mesh.ranks().zip(planned.ranks).collect();
    let hardware = crate::clock::Hardware::preset("h100").expect("a preset");
    let simulation = crate::clock::simulate(&ranks, &b.mesh, &hardware).expect("it ends");
    let timeline = simulation.pipeline().expect("stages");
    let order = ScheduleKind::ZbH1
        .schedule(3, 1, 5)
        .expect("a schedule")
        .order;
    assert_eq!(timeline.ranks.len(), 3);
    for (spans, order) in timeline.ranks.iter().zip(order) {
        let mut actions: Vec<Action> = spans.iter().map(|span| span.action).collect();
        actions.dedup();
        assert_eq!(actions, order);
    }
    assert!(timeline.end() <= simulation.step_ns);
    let drawn = crate::pipeline::Timeline::svg_of(&[("one", &timeline), ("two", &timeline)]);
    assert_eq!(drawn.matches(">stage 2<").count(), 2);
    assert!(drawn.contains("s</text>"), "a unit of time:\n{drawn}");
}
