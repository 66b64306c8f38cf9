//! What is stamped out is what would have been planned.

use std::fmt::{self, Write};
use std::hash::Hasher;
use std::sync::Arc;

use proptest::prelude::*;
use rustc_hash::FxHasher;

use crate::ir::{InputState, Mark, Origin, ParamSpec, Role, Runs, TensorIndex};
use crate::layout::{Layout, LayoutText, Partial};
use crate::mesh::ReduceOp;
use crate::planner::Planner;
use crate::tests::{MESHES, random_layout};
use crate::toy::{Builder, Kind, options};
use crate::{Accumulation, Float, PlanOptions, Policy, Precision, Reshard, ShardStrategy, plan};

/// The text of a value, of which a number alone is kept.
#[derive(Default)]
struct Digest(FxHasher);

impl Digest {
    fn of(value: &impl fmt::Debug) -> u64 {
        let mut digest = Self::default();
        write!(digest, "{value:?}").expect("nothing fails");
        digest.0.finish()
    }
}

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Plans a window with and without stamping, compares, and returns what was stamped.
fn check(b: &Builder, options: &PlanOptions, what: &str) -> Runs {
    let planned = |stamp| {
        let options = PlanOptions {
            stamp,
            ..options.clone()
        };
        let mut planner = Planner::new(&b.window, &b.mesh, &options);
        let result = planner.run(Some("propagate"));
        let mut state = planner.state;
        let runs = state.programs.first_mut().map(|program| &mut program.runs);
        let runs = runs.map(std::mem::take).unwrap_or_default();
        (result, state.programs, runs)
    };
    let (expected, expected_programs, without) = planned(false);
    let (found, programs, runs) = planned(true);
    assert_eq!(without.stamped, 0, "{what}");
    assert_eq!(without.planned, runs.planned + runs.stamped, "{what}");
    let expected = (expected, expected_programs);
    let found = (found, programs);
    if Digest::of(&found) == Digest::of(&expected) {
        return runs;
    }
    let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
    let mut pairs = found.bytes().zip(expected.bytes());
    if let Some(at) = pairs.position(|(found, expected)| found != expected) {
        let around = |text: &str| {
            text[at.saturating_sub(300)..]
                .chars()
                .take(400)
                .collect::<String>()
        };
        let (found, expected) = (around(&found), around(&expected));
        panic!("{what}: after {at} bytes, it is\n{found}\nnot\n{expected}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
    runs
}

/// A training step of equal layers, over flat tokens, with gradients of several microbatches added up.
fn layers(mesh: &str, policy: &Policy, num: usize, microbatches: usize) -> Builder {
    let mut b = Builder::new(mesh);
    let policy = Arc::new(policy.clone());
    let mut scalars = 0..;
    let weights: Vec<[TensorIndex; 2]> = (0..num)
        .map(|layer| {
            let mut weight = |name: &str, shape: &[usize], dim: usize| {
                let path = format!("layers.{layer}.{name}.weight");
                let mut spec = Builder::spec(&path, shape, Some(&format!("layers.{layer}")));
                if let Ok(tp) = b.mesh.axis("tp") {
                    spec.layout.dims[dim].factors[0].axes = vec![tp];
                    let output = LayoutText::parse("[-, {tp}, -]").expect("a layout");
                    spec.output = (name == "down").then_some(output);
                }
                spec.policy = policy.clone();
                b.param(spec)
            };
            [weight("up", &[4, 8], 1), weight("down", &[8, 4], 0)]
        })
        .collect();
    let mut gradients: Vec<Option<[TensorIndex; 2]>> = vec![None; num];
    for _ in 0..microbatches {
        let mut x = b.data(&[4, 2, 4]);
        let mut saved = Vec::new();
        for &[up, down] in &weights {
            let flat = b.reshape(x, &[8, 4]);
            let h = b.linear(flat, up);
            let a = b.exp(h);
            let mask = b.op(Kind::Random, &[], &[8, 8]);
            let a = b.pair(Kind::Mul, a, mask);
            let y = b.linear(a, down);
            let y = b.reshape(y, &[4, 2, 4]);
            let y = b.op(
                Kind::Scale(scalars.next().expect("no end")),
                &[y],
                &[4, 2, 4],
            );
            saved.push((flat, h, a));
            x = b.pair(Kind::Add, x, y);
        }
        let ones = b.ones_for(x);
        let g = b.pair(Kind::Mul, ones, x);
        let mut g = b.reshape(g, &[8, 4]);
        for (layer, (flat, h, a)) in saved.into_iter().enumerate().rev() {
            let [up, down] = weights[layer];
            let (ga, gdown) = b.linear_backward(a, down, g);
            let gh = b.pair(Kind::Mul, ga, h);
            let (gx, gup) = b.linear_backward(flat, up, gh);
            g = b.pair(Kind::Add, g, gx);
            let [so_far_up, so_far_down] = match gradients[layer] {
                Some([of_up, of_down]) => [
                    b.pair(Kind::Add, of_up, gup),
                    b.pair(Kind::Add, of_down, gdown),
                ],
                None => [gup, gdown],
            };
            gradients[layer] = Some([so_far_up, so_far_down]);
        }
        b.read(x);
    }
    for (weights, gradients) in weights.iter().zip(gradients) {
        for (weight, gradient) in weights.iter().zip(gradients.into_iter().flatten()) {
            let shape = b.shape(*weight);
            let scalar = scalars.next().expect("no end");
            let step = b.op(Kind::Scale(scalar), &[gradient], &shape);
            let new = b.pair(Kind::Sub, *weight, step);
            b.survive(new);
        }
    }
    b
}

#[test]
fn layers_that_repeat_are_planned_once() {
    for mesh in ["fsdp=2", "fsdp=2,tp=2", "dp=2,fsdp=2,tp=2"] {
        let policy = Policy {
            reshard: Reshard::Always,
            ..Policy::default()
        };
        let of = |num| {
            let b = layers(mesh, &policy, num, 1);
            check(&b, &options(&b.mesh), mesh)
        };
        let (few, many) = (of(5), of(9));
        assert!(few.stamped > 0, "{mesh}: {few:?}");
        assert_eq!(few.planned, many.planned, "{mesh}: {few:?}, {many:?}");
        assert_eq!(
            few.planned + few.stamped + 3 * 4,
            many.planned + many.stamped,
            "{mesh}"
        );
    }
}

#[test]
fn the_steps_of_a_training_step_are_the_same() {
    for mesh in MESHES {
        for reshard in ["always", "last", "every=2", "never"] {
            for (accumulation, strategy) in [
                (Accumulation::PerStep, ShardStrategy::Full),
                (Accumulation::PerMicrobatch, ShardStrategy::Full),
                (Accumulation::PerStep, ShardStrategy::Replicate),
            ] {
                for (precision, defer, scatter_bytes_min) in [
                    (Precision::default(), true, 0),
                    (Precision::default(), false, 0),
                    (Precision::new(Float::BF16), true, 1 << 20),
                ] {
                    let policy = Policy {
                        reshard: reshard.parse().expect("a policy"),
                        accumulation,
                        strategy,
                        precision,
                        ..Policy::default()
                    };
                    let b = layers(mesh, &policy, 4, 3);
                    let options = PlanOptions {
                        defer,
                        scatter_bytes_min,
                        ..options(&b.mesh)
                    };
                    let what = format!("`{mesh}` {policy:?} {defer}");
                    let runs = check(&b, &options, &what);
                    assert!(runs.stamped > 0, "{what}: {runs:?}");
                }
            }
        }
    }
}

#[test]
fn a_plan_is_the_same() {
    let b = layers("fsdp=2,tp=2", &Policy::default(), 6, 2);
    let planned = |stamp| {
        let options = PlanOptions {
            stamp,
            ..options(&b.mesh)
        };
        let mut plan = plan(&b.window, &b.mesh, &options).expect("a plan");
        let runs = std::mem::take(&mut plan.runs);
        (format!("{plan:?}"), runs.stamped > 0)
    };
    let (with, without) = (planned(true), planned(false));
    assert!(with.1 && !without.1);
    assert!(with.0 == without.0);
}

/// Shape of all that units work on.
const SQUARE: [usize; 2] = [4, 4];

/// Makes values of many kinds, which units may take.
fn from_outside(b: &mut Builder) -> Vec<TensorIndex> {
    let whole = Layout::replicated(&SQUARE);
    let (mut rows, mut terms) = (whole.clone(), whole.clone());
    if let Some(axis) = b.mesh.axis_indices().next() {
        rows.dims[0].factors[0].axes = vec![axis];
        let op = ReduceOp::Sum;
        terms.partial = vec![Partial { axis, op }];
    }
    let placed_from = |b: &mut Builder, from: Origin| {
        let value = b.placed(&SQUARE, Layout::replicated(&SQUARE));
        if let Some(input) = b.window.inputs.last_mut()
            && let InputState::Placed { origin, .. } = &mut input.state
        {
            *origin = Some(from);
        }
        value
    };
    let data = b.data(&SQUARE);
    let row = b.data(&[1, 4]);
    let placed = b.placed(&SQUARE, whole.clone());
    let full = b.op(Kind::Full(3), &[], &SQUARE);
    let ones = b.ones_for(data);
    let met = b.data(&SQUARE);
    b.pair(Kind::Add, met, placed);
    vec![
        placed,
        b.placed(&SQUARE, whole.clone()),
        b.mark(Mark::Redistribute(Arc::new(whole.clone())), placed),
        b.placed(&SQUARE, rows),
        b.placed(&SQUARE, terms),
        data,
        b.data(&SQUARE),
        b.exp(data),
        b.op(Kind::Expand, &[row], &SQUARE),
        full,
        b.exp(full),
        b.op(Kind::Random, &[], &SQUARE),
        b.pair(Kind::Mul, ones, data),
        b.placed_as(&SQUARE, whole, Role::Gradient(None)),
        placed_from(b, Origin::Data),
        placed_from(b, Origin::Constants),
        met,
        b.param(Builder::spec("alone", &SQUARE, None)),
    ]
}

/// What is known of the parameter of a unit; unit 0 of each kind is as the others.
fn spec(b: &Builder, unit: usize, name: &str, kind: usize, policy: &Policy) -> ParamSpec {
    let path = format!("units.{unit}.{name}");
    let mut spec = Builder::spec(&path, &SQUARE, Some(&format!("units.{unit}")));
    let mut policy = policy.clone();
    let tp = b.mesh.axis("tp").ok();
    let text = |text: &str| Some(LayoutText::parse(text).expect("a layout"));
    match (kind, tp) {
        (1 | 2, Some(tp)) => spec.layout.dims[kind - 1].factors[0].axes = vec![tp],
        (3, _) => spec.at_rest = false,
        (4, _) => spec.input = text("[-, -]"),
        (5, Some(_)) => spec.output = text("[{tp}, -]"),
        (6, None) => spec.output = text("[-, -, -]"),
        (6, Some(_)) => spec.output = text("[-, {tp}, -]"),
        (7, _) => policy.strategy = ShardStrategy::Replicate,
        (8, _) => policy.accumulation = Accumulation::PerMicrobatch,
        (9, _) => policy.reshard = Reshard::Never,
        (10, Some(_)) => spec.input = text("[-, {tp}]"),
        _ => {}
    }
    spec.policy = Arc::new(policy);
    spec
}

/// Writes units of random operations, the same for all but for what `twists` says of each.
fn units(mesh: &str, picks: &[u8], twists: &[(u8, u8)], policy: &Policy) -> Builder {
    let mut b = Builder::new(mesh);
    let outside = from_outside(&mut b);
    let mut picks = picks.iter().map(|&pick| usize::from(pick));
    let mut pick = |bound: usize| picks.next().unwrap_or(0) % bound;
    // What the units have in common.
    let taken = [pick(outside.len()), pick(outside.len())];
    let kinds = [pick(11), pick(11)];
    let updates = pick(2);
    let later = pick(3);
    let indices = [b.data(&[4]), b.data(&[4])];
    let ops: Vec<(usize, usize, usize, Layout)> = (0..2 + pick(8))
        .map(|_| {
            let (kind, a, c) = (pick(26), pick(64), pick(64));
            (kind, a, c, random_layout(&b.mesh, &SQUARE, &mut pick))
        })
        .collect();
    let mut x = outside[pick(outside.len())];
    let mut scalars = 0..;
    let mut before: Option<Vec<TensorIndex>> = None;
    let mut visited = Vec::new();
    for (unit, (what, to)) in twists.iter().enumerate() {
        let to = usize::from(*to);
        let (mut taken, mut kinds, mut updates) = (taken, kinds, updates);
        match what {
            0 => taken[0] = to % outside.len(),
            1 => taken[1] = to % outside.len(),
            2 => kinds[0] = to % 11,
            3 => kinds[1] = to % 11,
            4 => updates = to % 2,
            5 => x = outside[to % outside.len()],
            _ => {}
        }
        let mut weight = |name: &str, kind: usize| {
            let spec = spec(&b, unit, name, kind, policy);
            b.param(spec)
        };
        let (w, v) = (weight("w", kinds[0]), weight("v", kinds[1]));
        let first = b.linear(x, w);
        let mut local = vec![first, w, v, x, outside[taken[0]], outside[taken[1]]];
        local.push(before.as_ref().map_or(x, |before| before[before.len() / 2]));
        for (kind, a, c, layout) in &ops {
            // What was made last is used most.
            let of = |at: usize| match at {
                0..24 => local[local.len() - 1],
                at => local[at % local.len()],
            };
            let (a, c) = (of(*a), of(*c));
            let made = match kind {
                0 => b.pair(Kind::Add, a, c),
                1 => b.pair(Kind::Sub, a, c),
                2 => b.pair(Kind::Mul, a, c),
                3 => b.exp(a),
                4 => b.op(Kind::Scale(scalars.next().expect("no end")), &[a], &SQUARE),
                5 | 6 => b.linear(a, w),
                7 => b.linear(a, v),
                8 => b.op(Kind::LinearX, &[w, a], &SQUARE),
                9 => b.op(Kind::LinearW, &[a, c], &SQUARE),
                10 => b.op(Kind::LinearW, &[x, a], &SQUARE),
                11 => b.transpose(a),
                12 => {
                    let sum = b.sum_dim(a, 0);
                    b.op(Kind::Expand, &[sum], &SQUARE)
                }
                13 => {
                    let sum = b.sum_dim(a, 1);
                    b.op(Kind::Expand, &[sum], &SQUARE)
                }
                14 => b.op(Kind::Random, &[], &SQUARE),
                15 => b.op(Kind::Full(2), &[], &SQUARE),
                16 => b.op(Kind::Cast, &[a], &SQUARE),
                17 => b.mark(Mark::Redistribute(Arc::new(layout.clone())), a),
                18 | 19 => {
                    let deep = b.reshape(a, &[2, 2, 4]);
                    let back = b.reshape(deep, &SQUARE);
                    local.push(back);
                    back
                }
                20 => b.matmul(a, c),
                21 => b.lookup(a, indices[usize::from(*what == 8)]),
                22 => {
                    let zeros = b.op(Kind::Full(0), &[], &SQUARE);
                    b.sum_at(zeros, indices[usize::from(*what == 9)], a)
                }
                23 => {
                    let spec = spec(&b, unit, "placed", kinds[0], policy);
                    b.mark(Mark::Param(Arc::new(spec)), a)
                }
                _ => b.ones_for(a),
            };
            local.push(made);
        }
        let last = local[local.len() - 1];
        for weight in [w, v] {
            let new = b.pair(Kind::Sub, weight, last);
            if updates == 1 {
                b.survive(new);
            }
        }
        match what {
            6 => b.survive(local[to % local.len()]),
            7 => b.read(local[to % local.len()]),
            _ => {}
        }
        visited.push((w, local[to % local.len()], *what));
        x = last;
        before = Some(local);
    }
    // Other visits of the same units, of all or of some.
    for (w, saved, what) in visited.into_iter().rev() {
        if later == 0 || (later == 1 && what < 16) {
            x = b.op(Kind::LinearX, &[w, x], &SQUARE);
            x = b.pair(Kind::Mul, x, saved);
        }
    }
    b.survive(x);
    b
}

/// Units in whose runs nothing but one value differs.
#[test]
fn what_is_known_of_a_value_counts() {
    for mesh in ["dp=2", "fsdp=2", "fsdp=2,tp=2"] {
        let kinds = from_outside(&mut Builder::new(mesh)).len();
        let policy = Policy {
            accumulation: Accumulation::PerStep,
            ..Policy::default()
        };
        // Each of a pair is used after the other, so a pair need not be turned round.
        let pairs = (0..kinds).flat_map(|one| (one + 1..kinds).map(move |other| (one, other)));
        for (one, other) in pairs {
            for consumer in 0..8 {
                let mut b = Builder::new(mesh);
                let outside = from_outside(&mut b);
                let x = b.data(&SQUARE);
                for (unit, turn) in [one, one, other, one, other].into_iter().enumerate() {
                    let w = spec(&b, unit, "w", 1, &policy);
                    let w = b.param(w);
                    let (h, s) = (b.linear(x, w), outside[turn]);
                    let made = match consumer {
                        0 => b.pair(Kind::Add, s, outside[1]),
                        1 => b.pair(Kind::Mul, h, s),
                        2 => b.linear(s, w),
                        3 => b.exp(s),
                        4 => b.transpose(s),
                        5 => b.sum_dim(s, 0),
                        6 => b.op(Kind::LinearX, &[w, s], &SQUARE),
                        _ => {
                            let terms = [s, x].map(|x| b.op(Kind::LinearW, &[x, h], &SQUARE));
                            b.pair(Kind::Add, terms[0], terms[1])
                        }
                    };
                    b.survive(made);
                }
                let what = format!("{mesh}: {one} and {other} used by {consumer}");
                check(&b, &options(&b.mesh), &what);
            }
        }
    }
}

/// Units whose first visits differ, and whose second ones but for what the first have left behind do not.
#[test]
fn what_another_run_left_behind_counts() {
    for mesh in MESHES {
        for (kinds, takes) in (0..11 * 18).map(|case| ([0, case % 11], case / 11)) {
            let mut b = Builder::new(mesh);
            let outside = from_outside(&mut b);
            let data = b.data(&SQUARE);
            let mut first = Vec::new();
            for (unit, turn) in [0, 0, 1, 0, 1, 1].into_iter().enumerate() {
                let mut weight = |name: &str, kind: usize| {
                    let spec = spec(&b, unit, name, kind, &Policy::default());
                    b.param(spec)
                };
                let (w, v) = (weight("w", kinds[turn]), weight("v", 2));
                let x = [data, outside[takes % outside.len()]][turn];
                let y = b.linear(x, w);
                let z = b.linear(data, v);
                if turn == 1 {
                    b.survive(z);
                }
                let z = b.exp(z);
                first.push((w, y, z));
            }
            let alone = b.param(Builder::spec("last", &SQUARE, None));
            b.transpose(alone);
            for (w, y, z) in first {
                let g = b.op(Kind::LinearX, &[w, z], &SQUARE);
                let g = b.exp(g);
                let deep = b.reshape(y, &[2, 2, 4]);
                let deep = b.exp(deep);
                b.survive(deep);
                b.survive(g);
            }
            check(
                &b,
                &options(&b.mesh),
                &format!("{mesh}: {kinds:?}, {takes}"),
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn what_units_have_in_common_is_planned_once(
        mesh in proptest::sample::select(&MESHES[..]),
        picks in proptest::collection::vec(any::<u8>(), 20..90),
        twists in proptest::collection::vec((0u8..24, any::<u8>()), 3..7),
        reshard in proptest::sample::select(&["always", "last", "every=2", "never"][..]),
        scatter in 0usize..2,
        defer in any::<bool>(),
        precision in any::<bool>(),
    ) {
        let policy = Policy {
            reshard: reshard.parse().expect("a policy"),
            precision: match precision {
                true => Precision::new(Float::BF16),
                false => Precision::default(),
            },
            ..Policy::default()
        };
        let b = units(mesh, &picks, &twists, &policy);
        let options = PlanOptions {
            scatter_bytes_min: scatter << 20,
            defer,
            ..options(&b.mesh)
        };
        check(&b, &options, mesh);
    }
}
