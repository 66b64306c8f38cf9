//! The rewrite of small windows made by hand: what is stored is the same function of what is loaded.

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::facts;
use crate::ir::{InputState, Op, ProgramStep, Role, Slot, rename};
use crate::layout::Policy;
use crate::planner::Planner;
use crate::toy::{self, Builder, Kind, Toy};

const SIZE: usize = 8;
const SHAPE: [usize; 2] = [SIZE, SIZE];

fn param(b: &mut Builder, unit: Option<&str>, checkpoint: ActivationCheckpoint) -> u32 {
    let path = format!("{}.weight", unit.unwrap_or("rest"));
    let mut spec = Builder::spec(&path, &SHAPE, unit);
    spec.policy = policy(checkpoint);
    b.param(spec)
}

fn policy(checkpoint: ActivationCheckpoint) -> Arc<Policy> {
    Arc::new(Policy {
        checkpoint,
        ..Policy::default()
    })
}

/// `x + mask * exp(x w)`; returns the result, and what the backward needs.
fn forward(b: &mut Builder, x: u32, w: u32) -> (u32, [u32; 3]) {
    let h = b.matmul(x, w);
    let e = b.exp(h);
    let mask = b.op(Kind::Random, &[], &SHAPE);
    let masked = b.pair(Kind::Mul, e, mask);
    let out = b.pair(Kind::Add, x, masked);
    (out, [x, e, mask])
}

/// The gradients of the block's input and weight.
fn backward(b: &mut Builder, g: u32, w: u32, [x, e, mask]: [u32; 3]) -> (u32, u32) {
    let ge = b.pair(Kind::Mul, g, mask);
    let gh = b.pair(Kind::Mul, ge, e);
    let wt = b.transpose(w);
    let gx = b.matmul(gh, wt);
    let xt = b.transpose(x);
    let gw = b.matmul(xt, gh);
    (b.pair(Kind::Add, g, gx), gw)
}

/// Returns the program before and after, and what was done; units that say nothing themselves are of `model`.
fn rewritten(b: &Builder, model: ActivationCheckpoint) -> (Program<Toy>, Program<Toy>, Recomputed) {
    let mut window = b.window.clone();
    for input in &mut window.inputs {
        if let InputState::Placed {
            role: Role::Parameter(spec),
            ..
        } = &mut input.state
            && spec.policy.checkpoint == ActivationCheckpoint::None
        {
            Arc::make_mut(spec).policy = policy(model);
        }
    }
    let options = toy::options(&b.mesh);
    let mut planner = Planner::new(&window, &b.mesh, &options);
    planner.run(Some("propagate")).expect("a program");
    let before = planner.state.program().clone();
    let mut after = before.clone();
    let done = checkpoint(&mut after, &planner.state.facts, &b.mesh);
    (before, after, done)
}

/// A training step over blocks: forward through `order`, a head, backward, an update of every weight.
fn step(
    mesh: &str,
    units: &[Option<&str>],
    order: &[usize],
    microbatches: usize,
    mark: Option<usize>,
) -> Builder {
    let mut b = Builder::new(mesh);
    let weights: Vec<u32> = units
        .iter()
        .enumerate()
        .map(|(index, unit)| {
            let marked = mark == Some(index);
            let own = if marked {
                ActivationCheckpoint::Full
            } else {
                ActivationCheckpoint::None
            };
            param(&mut b, *unit, own)
        })
        .collect();
    let head = param(&mut b, None, ActivationCheckpoint::None);
    let mut gradients: Vec<Option<u32>> = vec![None; weights.len()];
    for _ in 0..microbatches {
        let mut x = b.placed(&SHAPE, crate::layout::Layout::replicated(&SHAPE));
        let mut saved = Vec::new();
        for &block in order {
            let (next, needs) = forward(&mut b, x, weights[block]);
            x = next;
            saved.push((block, needs));
        }
        let y = b.matmul(x, head);
        let e = b.exp(y);
        let ht = b.transpose(head);
        let mut g = b.matmul(e, ht);
        for (block, needs) in saved.into_iter().rev() {
            let (next, gw) = backward(&mut b, g, weights[block], needs);
            g = next;
            gradients[block] = Some(match gradients[block] {
                Some(sum) => b.pair(Kind::Add, sum, gw),
                None => gw,
            });
        }
    }
    for (weight, gradient) in weights.iter().zip(gradients) {
        let updated = b.pair(Kind::Sub, *weight, gradient.expect("used"));
        b.survive(updated);
    }
    b
}

/// What each stored value is a function of, as a term; equal numbers are equal terms.
fn terms(program: &Program<Toy>, interned: &mut HashMap<String, u64>) -> Vec<(u32, u64)> {
    let mut slots: HashMap<Slot, u64> = HashMap::new();
    let mut stored = Vec::new();
    for step in &program.steps {
        let ends = facts::flow::ends(step);
        let inputs: Vec<u64> = ends
            .reads
            .iter()
            .map(|slot| *slots.get(slot).expect("made before it is read"))
            .collect();
        let what = match step {
            ProgramStep::Load { value, .. } => format!("load {value}"),
            ProgramStep::Upload { value, .. } => format!("upload {value}"),
            ProgramStep::Random { stream, .. } => format!("random {stream}"),
            ProgramStep::Local(local) => {
                let mut op = local.op.clone();
                let zeros = |count| vec![0; count];
                let (inputs, outputs) = (zeros(op.inputs().count()), zeros(op.outputs().count()));
                rename(&mut op, &inputs, &outputs);
                format!("{op:?} {:?} {:?}", local.inputs, local.outputs)
            }
            ProgramStep::Move(step) => format!("{:?}", step.step),
            ProgramStep::Launch { .. }
            | ProgramStep::Finish { .. }
            | ProgramStep::Chunked(_)
            | ProgramStep::Send(_)
            | ProgramStep::Receive(_) => {
                unreachable!("scheduled later")
            }
            ProgramStep::Store { value, .. } => {
                stored.push((*value, inputs[0]));
                continue;
            }
            ProgramStep::Read { .. } => continue,
        };
        for (position, slot) in ends.writes.iter().enumerate() {
            let next = interned.len() as u64;
            let term = *interned
                .entry(format!("{what} {inputs:?} {position}"))
                .or_insert(next);
            assert_eq!(slots.insert(*slot, term), None, "slot {slot} is made twice");
        }
    }
    stored
}

fn count(program: &Program<Toy>, kind: &str) -> usize {
    let is = |step: &&ProgramStep<Toy>| matches!(step, ProgramStep::Local(local) if local.op.name() == kind);
    program.steps.iter().filter(is).count()
}

const POLICIES: [&str; 5] = ["full", "every=2", "selective", "bytes=0", "bytes=300"];

#[test]
fn what_is_stored_stays_the_same_function() {
    let units = [Some("0"), Some("1"), Some("2")];
    for mesh in ["", "fsdp=2", "tp=2", "fsdp=2,tp=2"] {
        for (order, microbatches) in [
            (&[0, 1, 2][..], 1),
            (&[0, 1, 2], 2),
            (&[0, 1, 2, 0, 1, 2], 1),
            (&[0, 0, 1], 1),
        ] {
            let window = step(
                mesh,
                &units[..=*order.iter().max().expect("some")],
                order,
                microbatches,
                None,
            );
            for policy in POLICIES {
                let policy = policy.parse().expect("a policy");
                let (before, after, done) = rewritten(&window, policy);
                let mut interned = HashMap::new();
                let expected = terms(&before, &mut interned);
                assert_eq!(
                    terms(&after, &mut interned),
                    expected,
                    "`{mesh}` {order:?} {policy}"
                );
                assert!(done.ops > 0, "`{mesh}` {order:?} {policy}");
            }
        }
    }
}

#[test]
fn a_unit_is_made_again_from_its_border() {
    let window = step("", &[Some("0"), Some("1")], &[0, 1], 1, None);
    let (before, after, done) = rewritten(&window, ActivationCheckpoint::Full);
    assert_eq!((done.visits, done.visits_seen), (2, 2));
    // Per unit: the product, its exponential, the mask. The sum is what the next unit takes.
    assert_eq!(done.ops, 2 * 3);
    for (kind, more) in [("linear", 2), ("exp", 2), ("mul", 0), ("add", 0)] {
        assert_eq!(count(&after, kind), count(&before, kind) + more, "{kind}");
    }
    let randoms = |program: &Program<Toy>| -> Vec<u64> {
        let stream = |step: &ProgramStep<Toy>| match step {
            ProgramStep::Random { stream, .. } => Some(*stream),
            _ => None,
        };
        program.steps.iter().filter_map(stream).collect()
    };
    assert_eq!(randoms(&before), [0, 1]);
    assert_eq!(
        randoms(&after),
        [0, 1, 1, 0],
        "the last unit is made again first, with its own mask"
    );
}

#[test]
fn products_are_kept_by_selective_and_by_bytes() {
    let window = step("", &[Some("0"), Some("1")], &[0, 1], 1, None);
    let (before, after, _) = rewritten(&window, ActivationCheckpoint::Selective);
    assert_eq!(count(&after, "linear"), count(&before, "linear"));
    assert_eq!(count(&after, "exp"), count(&before, "exp") + 2);
    let bytes = (SIZE * SIZE * 4) as u64;
    for (budget, products) in [(0, 2), (bytes - 1, 2), (bytes, 1), (2 * bytes, 0)] {
        let (before, after, _) = rewritten(&window, ActivationCheckpoint::Bytes(budget));
        assert_eq!(
            count(&after, "linear"),
            count(&before, "linear") + products,
            "{budget}"
        );
    }
    let (_, _, done) = rewritten(&window, ActivationCheckpoint::Bytes(1 << 20));
    assert_eq!(done.ops, 0, "a budget for everything keeps everything");
}

#[test]
fn a_gathered_parameter_serves_the_clones_and_the_backward() {
    let gathers = |program: &Program<Toy>| {
        program
            .steps
            .iter()
            .filter(|s| facts::flow::is_collective(s))
            .count()
    };
    let window = step("fsdp=2", &[Some("0"), Some("1")], &[0, 1], 1, None);
    let (before, after, _) = rewritten(&window, ActivationCheckpoint::Full);
    // So short a window keeps its gathered parameters: none is gathered again.
    assert_eq!(gathers(&after), gathers(&before));
}

#[test]
fn only_marked_units_without_a_policy() {
    let window = step(
        "",
        &[Some("0"), Some("1"), Some("2")],
        &[0, 1, 2],
        1,
        Some(1),
    );
    let (.., done) = rewritten(&window, ActivationCheckpoint::None);
    assert_eq!((done.visits, done.visits_seen, done.ops), (1, 3, 3));
    let (before, after, _) = rewritten(&window, ActivationCheckpoint::Selective);
    assert_eq!(
        count(&after, "linear"),
        count(&before, "linear") + 1,
        "a marked unit keeps nothing"
    );
}

#[test]
fn every_second_unit() {
    let window = step(
        "",
        &[Some("0"), Some("1"), Some("2"), Some("3")],
        &[0, 1, 2, 3],
        1,
        None,
    );
    let (.., done) = rewritten(&window, "every=2".parse().expect("a policy"));
    assert_eq!((done.visits, done.visits_seen), (2, 4));
}

#[test]
fn a_model_without_units_has_nothing_to_make_again() {
    let window = step("", &[None, None], &[0, 1], 1, None);
    let (.., done) = rewritten(&window, ActivationCheckpoint::Full);
    assert_eq!(done, Recomputed::default());
}

#[test]
fn policies_have_a_text_form() {
    for text in ["none", "full", "every=3", "selective", "bytes=1048576"] {
        let policy: ActivationCheckpoint = text.parse().expect("a policy");
        assert_eq!(policy.to_string(), text);
    }
    for text in ["", "all", "every", "every=0", "bytes=-1", "full=2"] {
        let error = text.parse::<ActivationCheckpoint>().expect_err(text);
        assert!(error.to_string().contains("every=N with N of at least 1"));
    }
}
