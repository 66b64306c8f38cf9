//! Operations that repeat are split once, and as they would be if none did.

use std::fmt::Write;
use std::hash::Hasher;

use proptest::prelude::*;
use rustc_hash::FxHasher;

use super::*;
use crate::ir::{Mark, Move};
use crate::layout::redistribute::StepKind;
use crate::planner::Planner;
use crate::tests::MESHES;
use crate::tests::programs::{SQUARE, from_outside, layers, spec, units};
use crate::toy::{Builder, Kind, options};
use crate::{Accumulation, Float, Policy, Precision, Reshard, ShardStrategy};

/// The text of a value, of which a number alone is kept.
#[derive(Default)]
struct Digest(FxHasher);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Plans a window, with what was chosen for operations before or without it; returns the program and how many splits
/// were chosen.
fn propagated(b: &Builder, options: &PlanOptions, forgets: bool) -> (Result<u64, String>, usize) {
    let mut planner = Planner::new(&b.window, &b.mesh, options);
    let mut run = || -> Result<(Program<_>, usize), PlanError> {
        planner.run(Some("float8"))?;
        let mut propagator = Propagator::new(&planner.state, &planner.context);
        let mut chosen = 0;
        for index in 0..planner.state.window.ops.len() {
            propagator.operation(index as OpIndex)?;
            if forgets {
                chosen += propagator.chosen.len();
                propagator.chosen.clear();
            }
        }
        chosen += propagator.chosen.len();
        Ok((propagator.finish()?, chosen))
    };
    match run() {
        Ok((program, chosen)) => {
            let mut digest = Digest::default();
            write!(digest, "{program:?}").expect("nothing fails");
            (Ok(digest.0.finish()), chosen)
        }
        Err(error) => (Err(error.to_string()), 0),
    }
}

/// Checks that nothing but its view says how an operation is split; returns how many splits were chosen.
fn check(b: &Builder, options: &PlanOptions, what: &str) -> usize {
    let (found, chosen) = propagated(b, options, false);
    let (expected, all) = propagated(b, options, true);
    assert_eq!(found, expected, "{what}");
    assert!(chosen <= all, "{what}: {chosen} of {all}");
    chosen
}

#[test]
fn layers_that_repeat_are_split_once() {
    for mesh in ["fsdp=2", "fsdp=2,tp=2", "dp=2,fsdp=2,tp=2"] {
        let policy = Policy {
            reshard: Reshard::Always,
            ..Policy::default()
        };
        let of = |num| {
            let b = layers(mesh, &policy, num, 2);
            check(&b, &options(&b.mesh), mesh)
        };
        let few = of(3);
        assert_eq!(few, of(9), "{mesh}");
        assert!(few > 10, "{mesh}: {few}");
    }
}

#[test]
fn a_training_step_is_split_by_views_alone() {
    for mesh in MESHES {
        for (accumulation, strategy, precision) in [
            (Accumulation::PerStep, ShardStrategy::Full, Float::F32),
            (Accumulation::PerMicrobatch, ShardStrategy::Full, Float::F32),
            (Accumulation::PerStep, ShardStrategy::Replicate, Float::BF16),
        ] {
            for (defer, scatter_bytes_min) in [(true, 0), (false, 1 << 20)] {
                let policy = Policy {
                    accumulation,
                    strategy,
                    precision: Precision::new(precision),
                    ..Policy::default()
                };
                let b = layers(mesh, &policy, 4, 3);
                let options = PlanOptions {
                    defer,
                    scatter_bytes_min,
                    ..options(&b.mesh)
                };
                check(&b, &options, &format!("`{mesh}` {policy:?} {defer}"));
            }
        }
    }
}

/// Units in which nothing but one value differs.
#[test]
fn what_is_known_of_a_value_counts() {
    for mesh in ["dp=2", "fsdp=2", "fsdp=2,tp=2"] {
        let kinds = from_outside(&mut Builder::new(mesh)).len();
        let policy = Policy::default();
        let pairs = (0..kinds).flat_map(|one| (one + 1..kinds).map(move |other| (one, other)));
        for (one, other) in pairs {
            let mut b = Builder::new(mesh);
            let outside = from_outside(&mut b);
            let x = b.data(&SQUARE);
            for (unit, turn) in [one, other, one].into_iter().enumerate() {
                let w = spec(&b, unit, "w", 1, &policy);
                let w = b.param(w);
                let (h, s) = (b.linear(x, w), outside[turn]);
                let terms = [s, x].map(|x| b.op(Kind::LinearW, &[x, h], &SQUARE));
                for made in [
                    b.pair(Kind::Add, s, outside[1]),
                    b.pair(Kind::Mul, h, s),
                    b.linear(s, w),
                    b.exp(s),
                    b.transpose(s),
                    b.sum_dim(s, 0),
                    b.op(Kind::LinearX, &[w, s], &SQUARE),
                    b.pair(Kind::Add, terms[0], terms[1]),
                ] {
                    b.survive(made);
                }
            }
            check(&b, &options(&b.mesh), &format!("{mesh}: {one} and {other}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_units_are_split_by_views_alone(
        mesh in proptest::sample::select(&MESHES[..]),
        picks in proptest::collection::vec(any::<u8>(), 20..90),
        twists in proptest::collection::vec((0u8..24, any::<u8>()), 3..7),
        reshard in proptest::sample::select(&["always", "last", "every=2", "never"][..]),
        scatter in 0usize..2,
        defer in any::<bool>(),
    ) {
        let policy = Policy {
            reshard: reshard.parse().expect("a policy"),
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

/// Between two steps of which the first is an all-to-all, a value is nowhere that others could take it from.
#[test]
fn what_is_between_two_moves_is_not_used_again() {
    let mut b = Builder::new("dp=2,tp=2");
    let [from, to] = ["[{dp}, {tp}, -]", "[{tp}, -, {dp}]"]
        .map(|text| Layout::parse(text, &b.mesh, Some(&[4, 4, 4])).expect("a layout"));
    let x = b.placed(&[4, 4, 4], from);
    let moved = b.mark(Mark::Redistribute(Arc::new(to)), x);
    b.survive(moved);
    let options = options(&b.mesh);
    let mut planner = Planner::new(&b.window, &b.mesh, &options);
    planner.run(Some("propagate")).expect("a pass");
    let program = &planner.state.programs[0];
    let moves: Vec<&Move> = program
        .steps
        .iter()
        .filter_map(|step| match step {
            ProgramStep::Move(step) => Some(step),
            _ => None,
        })
        .collect();
    let mut on_the_way = 0;
    for step in &moves {
        let goes_on = moves.iter().any(|next| next.from == step.to);
        let is_first = goes_on && matches!(step.step.kind, StepKind::AllToAll { .. });
        let mut versions = program.values.iter().flat_map(|value| &value.versions);
        let version = versions.find(|version| version.slot == step.to);
        let until = version.and_then(|version| version.until);
        assert_eq!(until.is_some(), is_first, "{:?}", step.step);
        on_the_way += usize::from(is_first);
    }
    assert!(on_the_way > 0, "{moves:?}");
}
