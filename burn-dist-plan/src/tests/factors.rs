//! Updates that keep factors of a matrix: sums of its rows and of its columns, beside which the gradient is stretched.
//! They are computed on the pieces in which the matrix rests.

use std::sync::Arc;

use proptest::prelude::*;

use super::{MESHES, check};
use crate::facts::Facts;
use crate::ir::{InputState, ParamSpec, Role, TensorIndex};
use crate::layout::Layout;
use crate::plan::Plan;
use crate::toy::{Builder, Kind, Toy, options};
use crate::{Float, PlanOptions, Policy, Precision, plan, text_after};

/// A window, and values of its step.
struct Step {
    b: Builder,
    /// The factors of rows and of columns.
    factors: [TensorIndex; 2],
    /// The gradient, its squares, and what the gradient is scaled to.
    of_update: [TensorIndex; 3],
    new: TensorIndex,
}

/// Factors as an earlier window left them.
type Kept = [InputState; 2];

/// The description of the matrix; `split` is the dim that is split over tp, if the mesh has that axis.
fn spec(mesh: &str, shape: [usize; 2], split: usize) -> ParamSpec {
    let mut spec = Builder::spec("w", &shape, Some("unit"));
    if let Ok(tp) = Builder::new(mesh).mesh.axis("tp") {
        spec.layout.dims[split].factors[0].axes = vec![tp];
    }
    spec
}

/// A window of one step.
fn step(mesh: &str, spec: ParamSpec, kept: Option<Kept>) -> Step {
    let mut b = Builder::new(mesh);
    let shape = spec.layout.shape();
    let (rows, columns) = ([shape[0], 1], [1, shape[1]]);
    let w = b.param(spec);
    let kept = kept.map(|[of_rows, of_columns]| {
        let mut place = |shape: &[usize; 2], state| {
            let value = b.placed(shape, Layout::replicated(shape));
            let input = b.window.inputs.last_mut().expect("it was placed");
            input.state = state;
            value
        };
        [place(&rows, of_rows), place(&columns, of_columns)]
    });
    let (factors, of_update, new) = train(&mut b, w, kept);
    for value in factors.into_iter().chain([new]) {
        b.survive(value);
    }
    Step {
        b,
        factors,
        of_update,
        new,
    }
}

/// A layer, its loss and backward, and an update by factors: `w - g / sqrt(rows columns / mean)`, in other functions.
fn train(
    b: &mut Builder,
    w: TensorIndex,
    kept: Option<[TensorIndex; 2]>,
) -> ([TensorIndex; 2], [TensorIndex; 3], TensorIndex) {
    let shape = b.shape(w);
    let x = b.data(&[6, shape[0]]);
    let y = b.linear(x, w);
    b.read(y);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let (_, g) = b.linear_backward(x, w, g);
    let squares = b.pair(Kind::Mul, g, g);
    let mut sums = [b.sum_dim(squares, 1), b.sum_dim(squares, 0)];
    for (sum, (kept, scalar)) in sums.iter_mut().zip(kept.into_iter().flatten().zip([0, 2])) {
        let shape = b.shape(*sum);
        let old = b.op(Kind::Scale(scalar), &[kept], &shape);
        let new = b.op(Kind::Scale(scalar + 1), &[*sum], &shape);
        *sum = b.pair(Kind::Add, old, new);
    }
    let rows = b.shape(sums[0]);
    let mean = b.sum(sums[0]);
    let ratio = b.op(Kind::Mul, &[sums[0], mean], &rows);
    let of_rows = b.exp(ratio);
    let of_columns = b.exp(sums[1]);
    let scaled = b.op(Kind::Mul, &[g, of_rows], &shape);
    let scaled = b.op(Kind::Mul, &[scaled, of_columns], &shape);
    let of_all = b.pair(Kind::Mul, scaled, scaled);
    let norm = b.sum(of_all);
    let clipped = b.op(Kind::Mul, &[scaled, norm], &shape);
    let new = b.pair(Kind::Sub, w, clipped);
    (sums, [g, squares, scaled], new)
}

/// The second step of a matrix.
pub(crate) fn by_factors(mesh: &str, shape: [usize; 2]) -> Builder {
    let first = step(mesh, spec(mesh, shape, 0), None);
    next(&first, mesh, spec(mesh, shape, 0)).b
}

fn planned(step: &Step) -> Plan<Toy> {
    plan(&step.b.window, &step.b.mesh, &options(&step.b.mesh)).expect("a plan")
}

/// The step after `step`, of the same matrix.
fn next(step: &Step, mesh: &str, spec: ParamSpec) -> Step {
    let plan = planned(step);
    let kept = step.factors.map(|factor| {
        let mut outputs = plan.outputs.iter();
        let kept = outputs.find(|output| output.value == factor);
        let kept = kept.expect("it outlives the step");
        InputState::Placed {
            layout: kept.layout.clone(),
            role: kept.role.clone(),
            origin: kept.origin,
            stage: kept.stage.clone(),
        }
    });
    self::step(mesh, spec, Some(kept))
}

/// Each collective of a plan, by its kind, its axes, and the bytes that a rank receives.
fn collectives(plan: &Plan<Toy>) -> Vec<(&'static str, u64)> {
    let records = plan.collectives.iter();
    records.map(|of| (of.kind.name(), of.bytes)).collect()
}

/// The layout of a value that outlives a step.
fn left(step: &Step, value: TensorIndex) -> String {
    let plan = planned(step);
    let mut outputs = plan.outputs.iter();
    let output = outputs.find(|output| output.value == value);
    let output = output.expect("it outlives the step");
    output.layout.display(&step.b.mesh).to_string()
}

#[test]
fn an_update_by_factors_is_computed_on_pieces() {
    const SHAPE: [usize; 2] = [64, 8192];
    let mesh = "fsdp=2";
    let first = step(mesh, spec(mesh, SHAPE, 0), None);
    let second = next(&first, mesh, spec(mesh, SHAPE, 0));
    for step in [first, second] {
        let found = collectives(&planned(&step));
        let of = |kind: &str| -> Vec<u64> {
            let found = found.iter().filter(|(other, _)| *other == kind);
            found.map(|(_, bytes)| *bytes).collect()
        };
        assert_eq!(of("reduce_scatter"), [1 << 20], "{found:?}");
        assert_eq!(of("all_gather"), [1 << 20], "{found:?}");
        // The columns' sums, of which each rank has terms, and two numbers.
        let mut reduced = of("all_reduce");
        reduced.sort_unstable();
        assert_eq!(reduced, [4, 4, 4 * 8192], "{found:?}");
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(left(&step, step.new), "[{fsdp*}, -]");
        assert_eq!(left(&step, step.factors[0]), "[{fsdp*}, -]");
        assert_eq!(left(&step, step.factors[1]), "[-, -]");
    }
}

#[test]
fn so_are_updates_of_several_steps_in_a_window() {
    for shape in [[6, 8], [64, 8192]] {
        let mut b = Builder::new("fsdp=2");
        let w = b.param(spec("fsdp=2", shape, 0));
        let (mut kept, mut new) = (None, w);
        for _ in 0..3 {
            let (factors, _, updated) = train(&mut b, new, kept);
            (kept, new) = (Some(factors), updated);
        }
        for value in kept.into_iter().flatten().chain([new]) {
            b.survive(value);
        }
        if shape == [6, 8] {
            check(&b, &options(&b.mesh), "three steps");
        }
        let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
        let of_matrix = 4 * (shape[0] * shape[1] / 2) as u64;
        let found = collectives(&plan);
        let large = found.iter().filter(|(_, bytes)| *bytes >= of_matrix);
        let mut large: Vec<&str> = large.map(|(kind, _)| *kind).collect();
        large.sort_unstable();
        let [gather, scatter] = ["all_gather", "reduce_scatter"];
        let expected = [gather, gather, gather, scatter, scatter, scatter];
        assert_eq!(large, expected, "{found:?}");
    }
}

#[test]
fn factors_are_what_an_update_is_made_of() {
    let mesh = "fsdp=2";
    let first = step(mesh, spec(mesh, [6, 8], 0), None);
    let second = next(&first, mesh, spec(mesh, [6, 8], 0));
    for step in [first, second] {
        let facts = Facts::new(&step.b.window);
        let of = |value: TensorIndex| {
            let role = &facts.roles[value as usize];
            (role.name(), role.belongs_to().map(|spec| spec.path.clone()))
        };
        let w = Some("w".to_string());
        for factor in step.factors {
            assert_eq!(of(factor), ("state", w.clone()), "{factor}");
        }
        for value in step.of_update {
            assert_eq!(of(value), ("gradient", w.clone()), "{value}");
        }
        assert_eq!(of(step.new), ("parameter", w), "{}", step.new);
    }
}

/// Rows that are cut unevenly, or along another dim, or of which some ranks have none.
#[test]
fn factors_give_the_same_on_every_mesh() {
    for mesh in MESHES {
        for (shape, split) in [
            ([6, 8], 0),
            ([6, 8], 1),
            ([5, 7], 0),
            ([1, 8], 1),
            ([2, 9], 1),
            ([7, 1], 0),
        ] {
            for precision in [Float::F32, Float::BF16] {
                let policy = Arc::new(Policy {
                    precision: Precision::new(precision),
                    ..Policy::default()
                });
                let spec = ParamSpec {
                    policy,
                    ..spec(mesh, shape, split)
                };
                let first = step(mesh, spec.clone(), None);
                let second = next(&first, mesh, spec);
                for step in [first, second] {
                    let what = format!("`{mesh}`, {shape:?}, {split}, {precision:?}");
                    check(&step.b, &options(&step.b.mesh), &what);
                }
            }
        }
    }
}

/// An update of random operations on what is as large as a matrix, as its rows, as its columns, or one number.
fn random_update(mesh: &str, shape: [usize; 2], policy: &Policy, picks: &[u8]) -> Builder {
    let mut picks = picks.iter().map(|&pick| usize::from(pick));
    let mut pick = |bound: usize| picks.next().unwrap_or(0) % bound;
    let spec = ParamSpec {
        policy: Arc::new(policy.clone()),
        ..spec(mesh, shape, pick(2))
    };
    let mut b = Builder::new(mesh);
    let w = b.param(spec);
    let x = b.data(&[6, shape[0]]);
    let y = b.linear(x, w);
    b.read(y);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let (_, g) = b.linear_backward(x, w, g);
    let factors = [[shape[0], 1], [1, shape[1]], [1, 1]];
    let mut made = vec![g];
    for factor in &factors[..pick(4)] {
        made.push(b.placed(factor, Layout::replicated(factor)));
    }
    for _ in 0..2 + pick(14) {
        let one = made[made.len() - 1 - pick(made.len().min(4))];
        let of = b.shape(one);
        let other = made[pick(made.len())];
        let other_of = b.shape(other);
        let both: Vec<usize> = of.iter().zip(&other_of).map(|(a, b)| *a.max(b)).collect();
        made.push(match pick(8) {
            0 => b.sum_dim(one, 0),
            1 | 2 => b.sum_dim(one, 1),
            3 => b.exp(one),
            4 if pick(4) == 0 => b.sum(one),
            5 if of == other_of => b.pair(Kind::Add, one, other),
            6 if pick(4) == 0 => b.op(Kind::Expand, &[one], &shape),
            _ => b.op(Kind::Mul, &[one, other], &both),
        });
        match (made[made.len() - 1], pick(6)) {
            (last, 0) => b.survive(last),
            (last, 1) if pick(4) == 0 => b.read(last),
            _ => {}
        }
    }
    let last = made.iter().rev().find(|value| b.shape(**value) == shape);
    let last = *last.expect("the gradient is as large");
    let new = b.pair(Kind::Sub, w, last);
    b.survive(new);
    b
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_update_is_the_same_on_any_mesh(
        mesh in proptest::sample::select(&MESHES[..]),
        shape in proptest::sample::select(&[[6, 8], [5, 4], [1, 6], [2, 7], [6, 1]][..]),
        picks in proptest::collection::vec(any::<u8>(), 20..140),
        precision in proptest::sample::select(&[Float::F32, Float::BF16][..]),
        accumulation in proptest::sample::select(&["step", "microbatch"][..]),
        strategy in proptest::sample::select(&["fsdp", "zero2", "zero1", "ddp"][..]),
        scatter in 0usize..2,
        defer in any::<bool>(),
    ) {
        let policy = Policy {
            precision: Precision::new(precision),
            accumulation: accumulation.parse().expect("a policy"),
            strategy: strategy.parse().expect("a policy"),
            ..Policy::default()
        };
        let b = random_update(mesh, shape, &policy, &picks);
        let options = PlanOptions {
            scatter_bytes_min: scatter << 20,
            defer,
            ..options(&b.mesh)
        };
        check(&b, &options, mesh);
    }
}

/// An update has no part in what it stretches, or sums, where anything else needs that whole.
#[test]
fn what_is_needed_elsewhere_is_no_factor() {
    let mesh = "fsdp=2";
    let mut step = step(mesh, spec(mesh, [6, 8], 0), None);
    let b = &mut step.b;
    let wide = b.op(Kind::Expand, &[step.factors[0]], &[6, 8]);
    let sums = b.sum_dim(step.of_update[1], 1);
    b.read(wide);
    b.read(sums);
    let facts = Facts::new(&b.window);
    for value in [step.factors[0], step.of_update[1]] {
        assert_eq!(facts.update_of[value as usize], None, "{value}");
    }
    let gradient = &facts.roles[step.of_update[0] as usize];
    assert!(matches!(gradient, Role::Gradient(Some(_))), "{gradient:?}");
    check(b, &options(&b.mesh), "some are needed whole");
}

/// The sum of rows that is the gradient of a bias of two dims is no update of what it sums.
#[test]
fn a_gradient_that_is_summed_is_made_by_the_backward() {
    let mut b = Builder::new("fsdp=2");
    let bias = b.param(Builder::spec("bias", &[1, 8], Some("unit")));
    let x = b.data(&[6, 8]);
    let y = b.op(Kind::Mul, &[x, bias], &[6, 8]);
    b.read(y);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let g = b.pair(Kind::Mul, g, x);
    let gradient = b.sum_dim(g, 0);
    let new = b.pair(Kind::Sub, bias, gradient);
    b.survive(new);
    let facts = Facts::new(&b.window);
    assert_eq!(facts.update_of[g as usize], None);
    assert!(facts.update_of[gradient as usize].is_some());
    check(&b, &options(&b.mesh), "a bias");
    let text = text_after(&b.window, &b.mesh, &options(&b.mesh), "propagate").expect("a pass");
    assert!(!text.contains("all_to_all"), "{text}");
}
