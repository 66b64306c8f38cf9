//! Small cases of the choice: a rule, what its operands offer, and what is chosen.

use super::*;
use crate::cost::Network;
use crate::passes::propagate::operands::Hints;
use crate::passes::propagate::view::{OperandView, ResultView};
use crate::rule::{OpRule, RuleBuilder, Shapes};

/// Returns an operand of that shape: the layouts in which it exists, `shared` before them if others use it too, or
/// `free` before the one that it takes where nothing else decides.
fn operand(text: &str, shape: &[usize], mesh: &MeshShape) -> OperandView {
    let (is_free, text) = match text.strip_prefix("free ") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (is_shared, text) = match text.strip_prefix("shared ") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let layouts = text.split(" or ");
    let layouts = layouts.map(|text| Layout::parse(text, mesh, Some(shape)).expect("a layout"));
    let layouts: Vec<Arc<Layout>> = layouts.map(Arc::new).collect();
    let has_terms = layouts.iter().all(|layout| layout.has_partial());
    let resolved = has_terms.then(|| Layout {
        partial: Vec::new(),
        ..layouts[0].as_ref().clone()
    });
    OperandView {
        dtype: DType::F32,
        own: is_free.then(|| layouts[0].as_ref().clone()),
        versions: if is_free { Vec::new() } else { layouts },
        is_free,
        decides: !is_free,
        single_use: !is_shared,
        resolved,
        pinned: Vec::new(),
    }
}

/// Returns what is chosen for an operation, as text: the layouts of its operands, and that of its result.
fn chosen(mesh: &str, rule: &str, shapes: &[&[usize]], offers: &[&str]) -> String {
    chosen_with(mesh, rule, shapes, offers, |_| {})
}

fn chosen_with(
    mesh: &str,
    rule: &str,
    shapes: &[&[usize]],
    offers: &[&str],
    edit: impl FnOnce(&mut OpView),
) -> String {
    let mesh = MeshShape::parse(mesh).expect("a mesh");
    let (out, inputs) = shapes.split_last().expect("a result");
    let tensors = Shapes {
        inputs: inputs.to_vec(),
        outputs: vec![out],
    };
    let rule = match rule {
        "add" => RuleBuilder::uniform(&tensors, "...")
            .elementwise()
            .joint_linear(&[0, 1]),
        rule => RuleBuilder::notation(&tensors, rule)
            .contract(ReduceOp::Sum)
            .linear(),
    };
    let OpRule::Factors(rule) = rule.build() else {
        panic!("a rule with factors")
    };
    let operands = offers.iter().zip(inputs);
    let mut view = OpView {
        inputs: operands
            .map(|(text, shape)| operand(text, shape, &mesh))
            .collect(),
        result: ResultView {
            dtypes: vec![DType::F32],
            tied: None,
            is_backward: false,
            accumulation: Accumulation::default(),
            context: ContextParallel::default(),
        },
        hints: Hints {
            forced: None,
            mirror: None,
            home: None,
            batch: None,
            joins_rows: false,
            flops: 2.0 * 64.0 * 64.0 * 64.0,
        },
    };
    edit(&mut view);
    let mut moves = Moves::new(&mesh, Network::unknown(&mesh));
    let Choice { assignment, .. } = choose(&rule, &view, &mut moves);
    let needed = (0..rule.inputs.len()).map(|position| needed(&rule, position, &assignment));
    let needed: Vec<String> = needed
        .map(|layout| layout.display(&mesh).to_string())
        .collect();
    let made = rule.output_layout(&rule.outputs[0], &assignment);
    format!("{} -> {}", needed.join(", "), made.display(&mesh))
}

const MATMUL: &str = "i k, k j -> i j";

#[test]
fn a_product_is_split_as_its_operands_are() {
    let shapes: [&[usize]; 3] = [&[64, 64], &[64, 64], &[64, 64]];
    for (mesh, offers, expected) in [
        ("", ["[-, -]", "[-, -]"], "[-, -], [-, -] -> [-, -]"),
        // Rows of data.
        (
            "dp=2",
            ["[{dp}, -]", "[-, -]"],
            "[{dp}, -], [-, -] -> [{dp}, -]",
        ),
        // Colwise, rowwise.
        (
            "tp=2",
            ["[-, -]", "[-, {tp}]"],
            "[-, -], [-, {tp}] -> [-, {tp}]",
        ),
        (
            "tp=2",
            ["[-, {tp}]", "[{tp}, -]"],
            "[-, {tp}], [{tp}, -] -> [-, -] + sum{tp}",
        ),
        // Rows stay, the weight is gathered.
        (
            "dp=2",
            ["[{dp}, -]", "[{dp}, -]"],
            "[{dp}, -], [-, -] -> [{dp}, -]",
        ),
        // Two axes, each where it is.
        (
            "dp=2,tp=2",
            ["[{dp}, -]", "[-, {tp}]"],
            "[{dp}, -], [-, {tp}] -> [{dp}, {tp}]",
        ),
    ] {
        let found = chosen(mesh, MATMUL, &shapes, &offers);
        assert_eq!(found, expected, "{offers:?} on {mesh}");
    }
}

#[test]
fn terms_pass_where_nobody_else_needs_them_added_up() {
    let shapes: [&[usize]; 3] = [&[64, 64], &[64, 64], &[64, 64]];
    let terms = "[-, -] + sum{tp}";
    let shared = &format!("shared {terms}");
    for (offers, expected) in [
        (
            [terms, terms],
            "[-, -] + sum{tp}, [-, -] + sum{tp} -> [-, -] + sum{tp}",
        ),
        ([terms, shared], "[-, -], [-, -] -> [-, -]"),
        ([terms, "[-, -]"], "[-, -], [-, -] -> [-, -]"),
    ] {
        let found = chosen("tp=2", "add", &shapes, &offers);
        assert_eq!(found, expected, "{offers:?}");
    }
}

#[test]
fn what_is_free_follows_what_decides() {
    let shapes: [&[usize]; 3] = [&[64, 64], &[64, 64], &[64, 64]];
    for (offers, expected) in [
        (
            ["[-, {tp}]", "free [{tp}, -]"],
            "[-, {tp}], [-, {tp}] -> [-, {tp}]",
        ),
        (["[-, -]", "free [{tp}, -]"], "[-, -], [-, -] -> [-, -]"),
        (
            ["free [{tp}, -]", "free [{tp}, -]"],
            "[{tp}, -], [{tp}, -] -> [{tp}, -]",
        ),
    ] {
        let found = chosen("tp=2", "add", &shapes, &offers);
        assert_eq!(found, expected, "{offers:?}");
    }
}

#[test]
fn what_a_module_asks_for_comes_before_time() {
    let shapes: [&[usize]; 3] = [&[64, 64], &[64, 64], &[64, 64]];
    let mesh = MeshShape::parse("tp=2").expect("a mesh");
    let offers = ["[{tp}, -]", "[-, -]"];
    let found = chosen("tp=2", MATMUL, &shapes, &offers);
    assert_eq!(found, "[{tp}, -], [-, -] -> [{tp}, -]");
    let asked = Layout::parse("[-, -]", &mesh, Some(shapes[0])).expect("a layout");
    let found = chosen_with("tp=2", MATMUL, &shapes, &offers, |view| {
        view.hints.forced = Some((0, asked));
    });
    assert_eq!(found, "[-, -], [-, -] -> [-, -]");
}
