//! Programs whose parts repeat, but for what some of them have of their own.

use std::sync::Arc;

use super::random_layout;
use crate::ir::{InputState, Mark, Origin, ParamSpec, Role, TensorIndex};
use crate::layout::{Layout, LayoutText, Partial};
use crate::mesh::ReduceOp;
use crate::toy::{Builder, Kind};
use crate::{Accumulation, Policy, Reshard, ShardStrategy};

/// A training step of equal layers, over flat tokens, with gradients of several microbatches added up.
pub(crate) fn layers(mesh: &str, policy: &Policy, num: usize, microbatches: usize) -> Builder {
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

/// Shape of all that units work on.
pub(crate) const SQUARE: [usize; 2] = [4, 4];

/// Makes values of many kinds, which units may take.
pub(crate) fn from_outside(b: &mut Builder) -> Vec<TensorIndex> {
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
pub(crate) fn spec(
    b: &Builder,
    unit: usize,
    name: &str,
    kind: usize,
    policy: &Policy,
) -> ParamSpec {
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
pub(crate) fn units(mesh: &str, picks: &[u8], twists: &[(u8, u8)], policy: &Policy) -> Builder {
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
            let (kind, a, c) = (pick(28), pick(64), pick(64));
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
                24 => b.ones_for(a),
                at => {
                    let sum = b.sum_dim(c, at % 2);
                    b.op(Kind::Mul, &[a, sum], &SQUARE)
                }
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
