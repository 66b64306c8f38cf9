//! The laws of counted work: the flops of the model are the closed form's, and those of the hardware are what the tasks
//! of all ranks do.

use super::pipelines::Model;
use super::{MESHES, check, three_layers};
use crate::facts::flow::{ends, is_collective, work};
use crate::ir::{Op, Task};
use crate::mesh::MeshShape;
use crate::plan::Plan;
use crate::planner::Planner;
use crate::toy::{Builder, Kind, Toy, options};
use crate::{FewRows, Policy, Redundancy, ScheduleKind, plan};

/// A step of three layers of 4 x 4, of which each row has three products each.
fn closed_form(rows: usize) -> f64 {
    (3 * 3 * 2 * rows * 4 * 4) as f64
}

fn step(mesh: &str, rows: usize, checkpoint: &str) -> Builder {
    three_layers(mesh, rows).under(Policy {
        checkpoint: checkpoint.parse().expect("a policy"),
        ..Policy::default()
    })
}

fn planned(b: &Builder) -> Plan<Toy> {
    plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan")
}

/// What the products of all ranks take.
fn executed(plan: &Plan<Toy>) -> f64 {
    let tasks = plan.ranks.iter().flat_map(|rank| &rank.tasks);
    let flops = tasks.filter_map(|task| match task {
        Task::Op(op, _) => op.product_flops(),
        _ => None,
    });
    flops.sum()
}

#[test]
fn flops_of_the_model_are_the_closed_form_and_those_of_the_hardware_are_done() {
    for mesh in MESHES {
        for rows in [1, 2, 7, 12] {
            for checkpoint in ["none", "full", "selective"] {
                let plan = planned(&step(mesh, rows, checkpoint));
                let (work, what) = (&plan.redundancy, format!("`{mesh}`, {rows}, {checkpoint}"));
                assert_eq!(work.model_flops, closed_form(rows), "{what}");
                assert_eq!(work.hardware_flops, executed(&plan), "{what}: {work}");
                assert!(work.flops > work.hardware_flops, "{what}: {work}");
            }
        }
    }
}

/// A step of three units of two layers each, and the gradients of all six.
fn units(mesh: &str, rows: usize, checkpoint: &str) -> Builder {
    let mut b = Builder::new(mesh);
    let mut x = b.data(&[rows, 4]);
    let mut saved = Vec::new();
    for unit in ["first", "second", "third"] {
        let mut weight = |name: &str| {
            let spec = Builder::spec(&format!("{unit}.{name}"), &[4, 4], Some(unit));
            b.param(spec)
        };
        let (up, down) = (weight("up"), weight("down"));
        let h = b.linear(x, up);
        let a = b.exp(h);
        saved.push((x, up, a, down));
        x = b.linear(a, down);
    }
    let squares = b.pair(Kind::Mul, x, x);
    let loss = b.sum_dim(squares, 1);
    let loss = b.sum_dim(loss, 0);
    let ones = b.ones_for(x);
    let mut g = b.pair(Kind::Mul, ones, x);
    for (x, up, a, down) in saved.into_iter().rev() {
        let (ga, g_down) = b.linear_backward(a, down, g);
        let gh = b.pair(Kind::Mul, ga, a);
        let (gx, g_up) = b.linear_backward(x, up, gh);
        g = gx;
        for (weight, gradient) in [(down, g_down), (up, g_up)] {
            let new = b.pair(Kind::Sub, weight, gradient);
            b.survive(new);
        }
    }
    b.read(loss);
    b.under(Policy {
        checkpoint: checkpoint.parse().expect("a policy"),
        ..Policy::default()
    })
}

#[test]
fn what_is_made_again_is_no_work_of_the_model() {
    let product = (2 * 4 * 4 * 4) as f64;
    for mesh in MESHES {
        let flops = |checkpoint| {
            let plan = planned(&units(mesh, 4, checkpoint));
            let work = plan.redundancy.clone();
            let what = format!("`{mesh}`, {checkpoint}: {work}");
            assert_eq!(work.model_flops, 18.0 * product, "{what}");
            assert_eq!(work.hardware_flops, executed(&plan), "{what}");
            work.hardware_flops
        };
        // What is between the two layers of a unit is made again, but for the last unit's.
        let times = flops("none") / (18.0 * product);
        assert_eq!(flops("full"), times * 20.0 * product, "`{mesh}`");
    }
}

/// Rows that are too few to be split, and are joined to more, are made by the ranks whose part of these they are.
#[test]
fn what_is_joined_is_made_by_whom_it_falls_to() {
    for (mesh, ranks) in [("dp=2", 2), ("dp=2,tp=2", 4)] {
        let mut b = Builder::new(mesh);
        let rows = [(); 2].map(|()| {
            let (x, w) = (b.data(&[1, 4]), b.op(Kind::Random, &[], &[4, 4]));
            b.linear(x, w)
        });
        let joined = b.op(Kind::Concat(0), &rows, &[2, 4]);
        let y = b.exp(joined);
        b.read(y);
        check(&b, &options(&b.mesh), mesh);
        let plan = planned(&b);
        let work = &plan.redundancy;
        // Two products of a row, over again on ranks along tp alone.
        let products = (2 * 2 * 4 * 4) as f64;
        assert_eq!(work.model_flops, products, "{mesh}: {work}");
        assert_eq!(executed(&plan), f64::from(ranks / 2) * products, "{mesh}");
        assert_eq!(work.hardware_flops, executed(&plan), "{mesh}: {work}");
    }
}

#[test]
fn work_is_done_once_by_the_ranks_of_all_stages_together() {
    for mesh in ["pp=2", "pp=2,fsdp=2", "pp=4"] {
        let model = Model::new(mesh, ScheduleKind::default(), 1, 4);
        let plan = planned(&model.step(4));
        let work = &plan.redundancy;
        assert_eq!(work.hardware_flops, executed(&plan), "{mesh}: {work}");
        assert_eq!(work.model_flops, work.hardware_flops, "{mesh}: {work}");
    }
}

/// The share of the work that is done more than once, over all axes that split rows together.
fn repeated(work: &Redundancy, mesh: &MeshShape) -> f64 {
    let once = |axis| 1.0 - work.share(mesh.name(axis));
    1.0 - mesh.data_axes().into_iter().map(once).product::<f64>()
}

#[test]
fn fewer_rows_than_ranks_are_work_done_more_than_once() {
    for (mesh, ranks) in [
        ("dp=2", 2),
        ("fsdp=4", 4),
        ("dp=2,fsdp=2", 4),
        ("fsdp=4,tp=2", 4),
    ] {
        for rows in [1, ranks - 1, ranks, ranks + 1] {
            let b = step(mesh, rows, "none");
            let work = planned(&b).redundancy;
            let what = format!("`{mesh}`, {rows} rows: {work}");
            let (share, warning) = (repeated(&work, &b.mesh), work.warning());
            match rows < ranks {
                true => {
                    assert_eq!(work.few_rows, Some(FewRows { rows, ranks }), "{what}");
                    let expected = 1.0 - 1.0 / ranks as f64;
                    assert!((share - expected).abs() < 0.05, "{share} of {what}");
                    let warning = warning.expect("it is told");
                    let figures = format!("{rows} row(s) of data cannot be split over the {ranks}");
                    assert!(warning.contains(&figures), "{warning}");
                }
                false => {
                    assert_eq!(work.few_rows, None, "{what}");
                    assert!(share < 0.05, "{share} of {what}");
                }
            }
        }
    }
}

/// A collective of 16 elements, and of one, takes as long as a hundred times as many operations.
#[test]
fn moving_an_element_takes_as_long_as_many_operations() {
    let b = three_layers("fsdp=2", 4);
    let options = options(&b.mesh);
    let mut planner = Planner::new(&b.window, &b.mesh, &options);
    planner.run(Some("propagate")).expect("a pass");
    let program = &planner.state.programs[0];
    let steps = program.steps.iter().filter(|step| is_collective(step));
    let mut works: Vec<f64> = steps
        .map(|step| work(step, &ends(step), program, &b.mesh))
        .collect();
    works.sort_by(f64::total_cmp);
    works.dedup();
    assert_eq!(works, [100.0, 1600.0]);
}
