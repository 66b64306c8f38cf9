//! The law of the planner: the plan of a window on any mesh gives what the window gives on one device.

use crate::layout::Layout;
use crate::mesh::MeshShape;
use crate::toy::{Builder, Kind, options, planned, whole};
use crate::{Checkpoint, PlanOptions, plan};

/// Plans and runs a window and compares.
fn check(b: &Builder, options: &PlanOptions, what: &str) {
    let plan = plan(&b.window, &b.mesh, options).expect("a plan");
    let expected = whole(&b.window);
    let found = planned(&b.window, &plan, &b.mesh);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (value, expected) in expected {
        assert_eq!(found[&value], expected, "value {value}: {what}");
    }
}

const MESHES: [&str; 10] = [
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
            let b = training_step(mesh, rows);
            for policy in ["none", "full", "selective"] {
                let options = PlanOptions {
                    checkpoint: policy.parse::<Checkpoint>().expect("a policy"),
                    ..options(&b.mesh)
                };
                check(&b, &options, &format!("`{mesh}`, {rows} rows, {policy}"));
            }
        }
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
