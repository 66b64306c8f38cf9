//! Laws of the text form on programs of the toy language; and what an error says.

use proptest::prelude::*;

use super::{law, parse, print};
use crate::planner::Planner;
use crate::tests::pipelines::{Model, Norm};
use crate::tests::{MESHES, random_program, three_layers};
use crate::toy::{Builder, Kind, Toy, nodes_of, options};
use crate::{Float, PlanOptions, Policy, Precision, Regions, ScheduleKind};

/// Checks the [law](law::check) of a window of the toy language. Returns the texts.
pub(crate) fn check(b: &Builder, options: &PlanOptions, what: &str) -> Vec<String> {
    law::check(&b.window, &b.mesh, options, what)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_was_written_is_read_as_it_was(
        mesh in proptest::sample::select(&MESHES[..]),
        picks in proptest::collection::vec(any::<u8>(), 20..160),
        policy in proptest::sample::select(&["none", "full", "selective"][..]),
        offload in proptest::sample::select(&["none", "params,optimizer", "activations"][..]),
        float8 in proptest::sample::select(&[None, Some("tensorwise"), Some("rowwise")][..]),
        defer in any::<bool>(),
        precision in any::<bool>(),
        per_node in 1usize..4,
        regions in proptest::sample::select(&[Regions::On, Regions::Off, Regions::Flex][..]),
    ) {
        let precision = match precision {
            true => Precision::new(Float::BF16),
            false => Precision::default(),
        };
        let b = random_program(mesh, &picks).under(Policy {
            checkpoint: policy.parse().expect("a policy"),
            offload: offload.parse().expect("a policy"),
            float8: float8.map(|float8| float8.parse().expect("a policy")),
            precision,
            ..Policy::default()
        });
        let options = PlanOptions {
            defer,
            topology: nodes_of(&b.mesh, per_node),
            hierarchy_bytes_min: Some(0),
            regions,
            ..options(&b.mesh)
        };
        check(&b, &options, mesh);
    }
}

/// A parameter of which the update of another one is made, in another shape, is of that update in 16 bits too, be its
/// cast the first value that is added to the window.
#[test]
fn what_an_update_is_made_of_may_be_a_cast() {
    let mut b = Builder::new("fsdp=2");
    let rates = b.param(Builder::spec("rates", &[16], Some("unit")));
    let w = b.param(Builder::spec("w", &[4, 4], Some("unit")));
    let x = b.data(&[4, 4]);
    let y = b.linear(x, w);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let (_, gw) = b.linear_backward(x, w, g);
    let rates = b.reshape(rates, &[4, 4]);
    let step = b.pair(Kind::Mul, rates, gw);
    let new = b.pair(Kind::Sub, w, step);
    b.survive(new);
    let b = b.under(Policy {
        precision: Precision::new(Float::BF16),
        ..Policy::default()
    });
    check(&b, &options(&b.mesh), "rates of all elements");
}

#[test]
fn pipelines_are_read_as_they_were() {
    for (schedule, chunks) in [
        (ScheduleKind::OneFOneB, 1),
        (ScheduleKind::ZbH1, 1),
        (ScheduleKind::ZbV, 2),
    ] {
        for mesh in ["pp=2", "pp=2,fsdp=2", "pp=2,tp=2"] {
            let model = Model {
                norm: Norm::Scales,
                apart: true,
                ..Model::new(mesh, schedule, chunks, 4)
            };
            let b = model.step(2);
            let in_regions = PlanOptions {
                regions: Regions::On,
                ..options(&b.mesh)
            };
            check(&b, &in_regions, mesh);
            let b = Model {
                norm: Norm::None,
                ..model
            }
            .step(2);
            let more = PlanOptions {
                microbatches: Some(6),
                ..options(&b.mesh)
            };
            check(&b, &more, mesh);
        }
    }
}

/// An error has the line, what was expected there, and what was found.
#[test]
fn errors_say_where_what_was_expected() {
    let b = three_layers("fsdp=2", 4);
    let options = options(&b.mesh);
    let mut planner = Planner::new(&b.window, &b.mesh, &options);
    planner.run(Some("propagate")).expect("a pass");
    let text = print(&planner);
    let line = |part: &str| {
        text.lines()
            .position(|line| line.contains(part))
            .expect(part)
            + 1
    };
    for (from, to, expected) in [
        (
            "load %0 to s0",
            "lode %0 to s0",
            "expected `}` or `load` or `upload`",
        ),
        (
            "load %0 to s0",
            "load %0 in s0",
            "expected `to s`, found `in s0`",
        ),
        (
            "0: f32 [4{fsdp*}, 4] of %0",
            "1: f32 [4{fsdp*}, 4] of %0",
            "expected `}` or `0:`, found `1: f32",
        ),
        (
            "0: f32 [4{fsdp*}, 4] of %0",
            "0: f32 [4{tp}, 4] of %0",
            "expected an axis of fsdp=2, found `tp}",
        ),
        (
            "store s",
            "store s0 as %1 and s",
            "expected the end of the line, found `and s",
        ),
        (
            "  0: \"first.weight\"",
            "  0: first.weight",
            "expected a text in quotes, found `first.weight",
        ),
        (
            "parameter p2",
            "parameter p7",
            "expected the number of one of the params, found `7",
        ),
        ("\nreport ", "\n", "expected `report`, found `float8"),
    ] {
        assert!(text.contains(from), "{from}");
        let wrong = text.replacen(from, to, 1);
        let Err(error) = parse::<Toy>(&wrong, &b.mesh, &options) else {
            panic!("{to} is read")
        };
        let (line, error) = (line(from.trim()), error.to_string());
        assert!(
            error.starts_with(&format!("line {line}, column ")),
            "{line}: {error}"
        );
        assert!(error.contains(expected), "{error}");
    }
    let half = &text[..text.len() / 2];
    let Err(error) = parse::<Toy>(half, &b.mesh, &options) else {
        panic!("half of a text is read")
    };
    assert_eq!(error.line, half.lines().count(), "{error}");
}

/// A number that no tensor of a text has is an error, and asks for no memory.
#[test]
fn numbers_of_no_tensor_are_refused() {
    let b = three_layers("fsdp=2", 4);
    let options = options(&b.mesh);
    let mut planner = Planner::new(&b.window, &b.mesh, &options);
    planner.run(None).expect("all passes");
    let text = print(&planner);
    let values = format!(" of {}\nreads", b.window.dies.len());
    let slots = format!("\n  slots {}\n", planner.state.ranks[0].1.plan.num_slots);
    let many = "expected as many as the text has letters for, found `4294967295`";
    for (from, to, expected) in [
        (
            "linear [s",
            "linear [s4294967295, s",
            "the number of a tensor",
        ),
        (
            "linear [s",
            "linear [s4000000000: f32 [4], s",
            "the number of a tensor",
        ),
        (
            "linear [%",
            "linear [%4000000000: f32 [4], %",
            "expected more than 4000000000",
        ),
        (&values, " of 4294967295\nreads", many),
        (&values, " of 7\nreads", "expected more than "),
        (&slots, "\n  slots 4294967295\n", many),
        (&slots, "\n  slots 7\n", "expected more than "),
    ] {
        assert!(text.contains(from), "{from}");
        let wrong = text.replacen(from, to, 1);
        let Err(error) = parse::<Toy>(&wrong, &b.mesh, &options) else {
            panic!("{to} is read")
        };
        let error = error.to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}
