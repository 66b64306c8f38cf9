//! Small cases of the choice: a rule, what its operands offer, what is chosen, and what is turned down at which cost.

use std::sync::Arc;

use super::*;
use crate::Accumulation;
use crate::cost::Network;
use crate::layout::Layout;
use crate::mesh::{DType, Links, ReduceOp, Topology};
use crate::passes::propagate::moves::Moves;
use crate::passes::propagate::view::{Hints, OperandView, ResultView};
use crate::rule::{FactorKind, FactorRule, RuleBuilder, Shapes};

const SIZE: usize = 64;
const MATMUL: &str = "i k, k j -> i j";
/// Every row of one operand meets every row of the other, in blocks that go round.
const MEET: &str = "q -, k - -> q -";

/// Returns a square operand: the layouts in which it exists, `shared` before them if others use it too, `pinned` if it
/// is a parameter that a style splits so, or `free` before the one that it takes where nothing else decides.
fn operand(text: &str, mesh: &MeshShape) -> OperandView {
    let (word, layouts) = match text.split_once(' ') {
        Some((word, layouts)) if !word.starts_with('[') => (word, layouts),
        _ => ("", text),
    };
    let is_free = word == "free";
    let layouts = layouts.split(" or ").map(|text| layout(text, mesh));
    let layouts: Vec<Arc<Layout>> = layouts.map(Arc::new).collect();
    let has_terms = layouts.iter().all(|layout| layout.has_partial());
    OperandView {
        dtype: DType::F32,
        own: is_free.then(|| layouts[0].clone()),
        resolved: has_terms.then(|| layouts[0].resolved()),
        pinned: match word {
            "pinned" => layouts[0].axes_used(),
            _ => Vec::new(),
        },
        versions: if is_free { Vec::new() } else { layouts },
        is_free,
        decides: !is_free,
        single_use: word != "shared",
    }
}

fn layout(text: &str, mesh: &MeshShape) -> Layout {
    Layout::parse(text, mesh, Some(&[SIZE, SIZE])).expect("a layout")
}

/// Returns an operation on square operands.
fn view(rule: &str, operands: &[&str], mesh: &MeshShape) -> OpView {
    let square = [SIZE, SIZE];
    let tensors = Shapes {
        inputs: vec![&square; operands.len()],
        outputs: vec![&square],
    };
    let rule = match rule {
        "add" => RuleBuilder::uniform(&tensors, "...")
            .elementwise()
            .joint_linear(&[0, 1]),
        MEET => RuleBuilder::notation(&tensors, MEET).along('k', 'q'),
        rule => RuleBuilder::notation(&tensors, rule)
            .contract(ReduceOp::Sum)
            .linear(),
    };
    let operands = operands.iter().map(|text| operand(text, mesh));
    let rule = rule.build();
    let on_pieces = matches!(&rule, OpRule::Factors(rule) if rule.on_pieces());
    OpView {
        rule: Arc::new(rule),
        inputs: operands.collect(),
        result: ResultView {
            dtypes: vec![DType::F32],
            tied: None,
            is_backward: false,
            accumulation: Accumulation::default(),
            context: ContextParallel::default(),
        },
        hints: Hints {
            flops: (2.0 * (SIZE as f64).powi(3)).into(),
            on_pieces,
            ..Hints::default()
        },
    }
}

/// Returns a split as text, with the nanoseconds that it takes and what is asked for and it does not keep.
fn priced(of: &Priced, offers: &Offers, mesh: &MeshShape) -> String {
    let texts = |layouts: &[Arc<Layout>]| {
        let texts = layouts.iter().map(|of| of.display(mesh).to_string());
        texts.collect::<Vec<_>>().join(", ")
    };
    let split = &offers.splits[of.offer].split;
    let (needs, makes) = (texts(&split.inputs), texts(&split.outputs));
    let Cost {
        asked,
        gathered,
        moved,
        ns,
    } = of.cost;
    let mut text = format!("{needs} -> {makes}: {ns:.0}");
    for (count, what) in [(asked, "asked"), (gathered, "gathered"), (moved, "moved")] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

/// A case: the mesh and its links, a rule, its operands, and the splits that it is offered with their costs: first the
/// one that is chosen, then those that are turned down.
type Case = (
    (&'static str, &'static str),
    &'static str,
    [&'static str; 2],
    &'static [&'static str],
);

fn check(cases: &[Case], edit: impl Fn(&mut OpView, &MeshShape)) {
    let mut wrong = String::new();
    for ((mesh, links), rule, operands, expected) in cases {
        let mesh = MeshShape::parse(mesh).expect("a mesh");
        let links: Links = match *links {
            "" => Links::default(),
            links => links.parse().expect("links"),
        };
        let mut view = view(rule, operands, &mesh);
        edit(&mut view, &mesh);
        let topology = Topology::single(mesh.num_ranks());
        let mut moves = Moves::new(Network::new(&mesh, &links, &topology));
        let offers = Offers::new(&view, &mut moves);
        let choice = choose(&view, &offers);
        let all = [choice.taken].into_iter().chain(choice.turned_down.clone());
        let all: Vec<String> = all.map(|of| priced(&of, &offers, &mesh)).collect();
        if all != *expected {
            wrong += &format!("{operands:?} on {mesh}: {all:#?}\n");
        }
        // Nothing but what it is given decides.
        assert_eq!(choose(&view.clone(), &offers.clone()), choice);
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_product_is_split_as_its_operands_are() {
    let cases: &[Case] = &[
        (
            ("", ""),
            MATMUL,
            ["[-, -]", "[-, -]"],
            &["[-, -], [-, -] -> [-, -]: 22"],
        ),
        // Rows of data.
        (
            ("dp=2", ""),
            MATMUL,
            ["[{dp}, -]", "[-, -]"],
            &[
                "[{dp}, -], [-, -] -> [{dp}, -]: 11",
                "[-, -], [-, -] -> [-, -]: 8726",
            ],
        ),
        // Colwise, rowwise.
        (
            ("tp=2", ""),
            MATMUL,
            ["[-, -]", "[-, {tp}]"],
            &[
                "[-, -], [-, {tp}] -> [-, {tp}]: 11",
                "[-, -], [-, -] -> [-, -]: 8726",
            ],
        ),
        (
            ("tp=2", ""),
            MATMUL,
            ["[-, {tp}]", "[{tp}, -]"],
            &[
                "[-, {tp}], [{tp}, -] -> [-, -] + sum{tp}: 8211",
                "[-, -], [-, -] -> [-, -]: 17430",
            ],
        ),
        // Rows stay, the weight is gathered.
        (
            ("dp=2", ""),
            MATMUL,
            ["[{dp}, -]", "[{dp}, -]"],
            &[
                "[{dp}, -], [-, -] -> [{dp}, -]: 8715",
                "[-, {dp}], [{dp}, -] -> [-, -] + sum{dp}: 12819",
                "[-, -], [-, -] -> [-, -]: 17430",
            ],
        ),
        // Two axes, each where it is.
        (
            ("dp=2,tp=2", ""),
            MATMUL,
            ["[{dp}, -]", "[-, {tp}]"],
            &[
                "[{dp}, -], [-, {tp}] -> [{dp}, {tp}]: 5",
                "[{dp}, -], [-, -] -> [{dp}, -]: 8715",
                "[-, -], [-, {tp}] -> [-, {tp}]: 8715",
                "[-, -], [-, -] -> [-, -]: 17430",
            ],
        ),
        // What is on a slow link stays, what is on a fast one moves.
        (
            (
                "a:model=2,b:model=2",
                "a:latency_us=1,gbps=1;b:latency_us=1,gbps=1000",
            ),
            MATMUL,
            ["[{a}, -]", "[-, {a}] or [-, {b}]"],
            &[
                "[{a}, -], [-, {b}] -> [{a}, {b}]: 5",
                "[{a}, -], [-, -] -> [{a}, -]: 1076",
                "[-, -], [-, {a}] -> [-, {a}]: 66547",
                "[-, -], [-, {b}] -> [-, {b}]: 66547",
                "[-, -], [-, -] -> [-, -]: 67623",
            ],
        ),
        // A style keeps its parameter where it is, whatever that takes.
        (
            ("tp=2", ""),
            MATMUL,
            ["[{tp}, -]", "pinned [-, {tp}]"],
            &[
                "[-, -], [-, {tp}] -> [-, {tp}]: 8715",
                "[{tp}, -], [-, -] -> [{tp}, -]: 8715, 1 moved",
                "[-, -], [-, -] -> [-, -]: 17430, 1 moved",
            ],
        ),
    ];
    check(cases, |_, _| {});
}

/// Blocks go round all other ranks, behind the work on those that are there.
#[test]
fn rows_that_meet_go_round_or_are_gathered() {
    let split = ["[{cp}, -]", "[{cp}, -]"];
    let cases: &[Case] = &[
        (
            ("cp=2", ""),
            MEET,
            split,
            &[
                "[{cp}, -], [-, -] -> [{cp}, -]: 8715",
                "[{cp}, -], [{cp}, -] -> [{cp}, -]: 8722",
                "[-, -], [-, -] -> [-, -]: 17430",
            ],
        ),
        (
            ("cp=4", ""),
            MEET,
            split,
            &[
                "[{cp}, -], [-, -] -> [{cp}, -]: 12805",
                "[{cp}, -], [{cp}, -] -> [{cp}, -]: 12817",
                "[-, -], [-, -] -> [-, -]: 25622",
            ],
        ),
    ];
    check(cases, |_, _| {});
}

#[test]
fn terms_pass_where_nobody_else_needs_them_added_up() {
    let cases: &[Case] = &[
        (
            ("tp=2", ""),
            "add",
            ["[-, -] + sum{tp}", "[-, -] + sum{tp}"],
            &["[-, -] + sum{tp}, [-, -] + sum{tp} -> [-, -] + sum{tp}: 22"],
        ),
        (
            ("tp=2", ""),
            "add",
            ["[-, -] + sum{tp}", "shared [-, -] + sum{tp}"],
            &["[-, -], [-, -] -> [-, -]: 33814"],
        ),
        (
            ("tp=2", ""),
            "add",
            ["[-, -] + sum{tp}", "[-, -]"],
            &["[-, -], [-, -] -> [-, -]: 16918"],
        ),
    ];
    check(cases, |_, _| {});
}

#[test]
fn what_is_free_follows_what_decides() {
    let cases: &[Case] = &[
        (
            ("tp=2", ""),
            "add",
            ["[-, {tp}]", "free [{tp}, -]"],
            &[
                "[-, {tp}], [-, {tp}] -> [-, {tp}]: 11",
                "[-, -], [-, -] -> [-, -]: 8726",
            ],
        ),
        (
            ("tp=2", ""),
            "add",
            ["[-, -]", "free [{tp}, -]"],
            &["[-, -], [-, -] -> [-, -]: 22"],
        ),
        (
            ("tp=2", ""),
            "add",
            ["free [{tp}, -]", "free [{tp}, -]"],
            &[
                "[{tp}, -], [{tp}, -] -> [{tp}, -]: 11",
                "[-, -], [-, -] -> [-, -]: 22",
            ],
        ),
    ];
    check(cases, |_, _| {});
}

#[test]
fn what_a_module_asks_for_comes_before_time() {
    let cases: &[Case] = &[(
        ("tp=2", ""),
        MATMUL,
        ["[{tp}, -]", "[-, -]"],
        &[
            "[-, -], [-, -] -> [-, -]: 8726",
            "[{tp}, -], [-, -] -> [{tp}, -]: 11, 1 asked",
        ],
    )];
    check(cases, |view, mesh| {
        view.hints.forced = Some((0, layout("[-, -]", mesh)));
    });
}

/// The gradient of a weight: each rank sums its own rows.
#[test]
fn rows_are_summed_where_they_are() {
    let cases: &[Case] = &[(
        ("dp=2", ""),
        "r i, r j -> i j",
        ["[{dp}, -]", "[{dp}, -]"],
        &[
            "[{dp}, -], [{dp}, -] -> [-, -] + sum{dp}: 8211",
            "[-, -], [-, -] -> [-, -]: 17430, 1 gathered",
        ],
    )];
    check(cases, |_, _| {});
}

/// Costs by hand: constraints come before time, the gravest first, and of equal costs the first is taken.
#[test]
fn costs_are_compared_in_order() {
    let mesh = MeshShape::parse("tp=2").expect("a mesh");
    let view = view(MATMUL, &["[-, -]", "[-, -]"], &mesh);
    let asked = OpView {
        hints: Hints {
            forced: Some((0, layout("[-, -]", &mesh))),
            ..view.hints.clone()
        },
        ..view.clone()
    };
    let OpRule::Factors(rule) = view.rule.as_ref() else {
        panic!("a product has factors")
    };
    let tp = mesh.axis("tp").expect("an axis");
    let is_summed = |factor: &FactorRule| factor.kind != FactorKind::Map;
    let summed = rule.factors.iter().position(is_summed).expect("a sum");
    // Each offer: whether it splits what is summed, what of parameters it moves, and nanoseconds.
    for (view, terms, offers, expected) in [
        (
            &view,
            false,
            &[(false, 0, 5.0), (false, 0, 3.0), (false, 0, 3.0)][..],
            1,
        ),
        (&view, false, &[(false, 1, 1.0), (false, 0, 9.0)][..], 1),
        (&view, true, &[(false, 0, 1.0), (true, 7, 9.0)][..], 1),
        (&view, false, &[(false, 0, 1.0), (true, 0, 9.0)][..], 0),
        (&asked, true, &[(true, 0, 1.0), (false, 7, 9.0)][..], 1),
        (&view, false, &[(false, 0, 4.0)][..], 0),
    ] {
        let splits = offers.iter().map(|&(is_split, moved, ns)| {
            let mut assignment = rule.unsplit();
            if is_split {
                assignment.factors[summed].factors[0].axes = vec![tp];
            }
            Offer {
                split: Split::new(rule, assignment),
                moved,
                times: vec![(Part::Work, 1.0), (Part::Operand(0), ns - 1.0)],
            }
        });
        let offers = Offers {
            splits: splits.collect(),
            terms: if terms {
                vec![(tp, summed as u8)]
            } else {
                Vec::new()
            },
        };
        let choice = choose(view, &offers);
        assert_eq!(choice.taken.offer, expected, "{offers:?}");
        let others: Vec<usize> = choice.turned_down.iter().map(|other| other.offer).collect();
        let all = (0..offers.splits.len()).filter(|offer| *offer != expected);
        assert_eq!(others, all.collect::<Vec<_>>(), "{offers:?}");
    }
}
