//! One model on both lines has one plan: what travels is the same, in order, and what is computed is, but for what a
//! line records otherwise.

use std::collections::BTreeMap;

use burn_dist::explanation::Explanation;

use super::decoder::{Case, LINES};

/// Operations that 0.22 records on their own, each with the one that 0.21 records in its place.
const OTHERWISE: [(&str, &str); 4] = [
    ("embedding", "select"),
    ("embedding_backward", "select_assign"),
    ("neg", "mul_scalar"),
    // One sum over several dims; on 0.21, sums over one after the other.
    ("sum_dims", "sum_dim"),
];

/// Operations that are not compared: views, of which those around an embedding are others, and what makes a constant.
const LEFT_OUT: [&str; 4] = ["reshape", "expand", "empty", "zeros"];

/// The tasks of ranks that are of one kind, in a text of the first rank's tasks.
struct Tasks {
    /// Collectives and transfers, in order, with ranks and shapes.
    moves: Vec<String>,
    /// How often each operation is there, with how many elements it makes.
    operations: BTreeMap<String, usize>,
}

/// Returns a text with every shape as rows of the last dim: those of a table are looked up with all dims of the indices
/// on 0.22, and with one on 0.21.
fn in_rows(text: &str) -> String {
    let mut parts = text.split('[');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let Some((shape, rest)) = part.split_once(']') else {
            out += part;
            continue;
        };
        let sizes: Vec<usize> = shape
            .split(", ")
            .filter_map(|size| size.parse().ok())
            .collect();
        let (last, rows) = sizes.split_last().unwrap_or((&1, &[]));
        out += &format!("[{}, {last}]{rest}", rows.iter().product::<usize>());
    }
    out
}

/// Returns how many elements a shape has: tokens that are looked up have both of their dims on 0.22, and one on 0.21.
fn elements(shape: &str) -> usize {
    let sizes = shape.trim().trim_matches(['[', ']']).split(", ");
    sizes
        .filter_map(|size| size.parse::<usize>().ok())
        .product()
}

/// Replaces the numbers of slots and values.
fn nameless(text: &str) -> String {
    let mut out = String::new();
    let mut last = ' ';
    for character in text.chars() {
        let is_number = character.is_ascii_digit() && (last == 's' || last == '%');
        if !is_number {
            out.push(character);
            last = character;
        }
    }
    out
}

impl Tasks {
    fn of(explanation: &Explanation) -> Self {
        let [text] = &explanation.after[..] else {
            panic!("a step is one window: {:?}", explanation.windows)
        };
        let mut tasks = Self {
            moves: Vec::new(),
            operations: BTreeMap::new(),
        };
        // Sums over a dim, by slot: one of such a sum is a part of a sum over several.
        let mut sums: BTreeMap<&str, String> = BTreeMap::new();
        for line in text.lines() {
            let line = line.trim();
            let moves = [" of ranks ", "send", "receive"];
            if moves.iter().any(|word| line.contains(word)) {
                tasks.moves.push(in_rows(&nameless(line)));
                continue;
            }
            let Some((made, (name, rest))) = line
                .split_once(" = ")
                .and_then(|(made, what)| Some((made, what.split_once('(')?)))
            else {
                continue;
            };
            let other = OTHERWISE.iter().find(|(current, _)| *current == name);
            let name = other.map_or(name, |(_, before)| before);
            if LEFT_OUT.contains(&name) {
                continue;
            }
            let (operands, shape) = rest.split_once(')').unwrap_or((rest, ""));
            let operation = format!("{name} of {} elements", elements(shape));
            if name == "sum_dim" {
                if let Some(part) = sums.get(operands.trim_end_matches('!')) {
                    *tasks.operations.entry(part.clone()).or_default() -= 1;
                }
                sums.insert(made, operation.clone());
            }
            *tasks.operations.entry(operation).or_default() += 1;
        }
        tasks.operations.retain(|_, count| *count > 0);
        tasks
    }
}

/// Returns what differs between two lists, each with its line.
fn difference<T: PartialEq + std::fmt::Debug>(names: [&str; 2], [one, two]: [&[T]; 2]) -> String {
    let at = one.iter().zip(two).position(|(one, two)| one != two);
    let at = at.unwrap_or(one.len().min(two.len()));
    let [first, second] = [one, two].map(|list| list.get(at));
    format!(
        "number {at}: {} {first:?}, {} {second:?}",
        names[0], names[1]
    )
}

#[test]
fn a_step_has_one_plan_on_both_lines() {
    for case in [
        Case::tiny("fsdp=4", [8, 32, 1]),
        Case::tiny("tp=2", [4, 32, 1]),
        Case::tiny("fsdp=2,tp=2", [8, 32, 1]),
        Case::tiny("dp=2,fsdp=2", [8, 32, 1]),
        Case::tiny("fsdp=2,cp=2", [8, 32, 1]),
        Case::tiny("pp=2", [8, 32, 4]),
        Case::tiny("pp=2,fsdp=2", [8, 32, 4]),
    ] {
        let [current, before] = LINES.map(|line| Tasks::of(&(line.explained)(case, "lower")));
        let names = [LINES[0].name, LINES[1].name];
        let what = case.mesh;
        assert!(!current.moves.is_empty(), "{what}");
        assert!(
            current.moves == before.moves,
            "{what}: {}",
            difference(names, [&current.moves, &before.moves])
        );
        let counts = [&current, &before].map(|tasks| {
            let counts = tasks.operations.iter();
            counts
                .map(|(op, count)| format!("{count} x {op}"))
                .collect::<Vec<_>>()
        });
        let only = |one: &[String], two: &[String]| {
            let only = one.iter().filter(|op| !two.contains(op));
            only.cloned().collect::<Vec<_>>()
        };
        let [one, two] = [only(&counts[0], &counts[1]), only(&counts[1], &counts[0])];
        assert!(
            one.is_empty() && two.is_empty(),
            "{what}: only {} {one:#?}, only {} {two:#?}",
            names[0],
            names[1]
        );
    }
}

/// Products run beside as many transfers along tensor-parallel axes on one line as on the other.
#[test]
fn products_run_beside_the_same_transfers() {
    for mesh in ["tp=2", "fsdp=2,tp=2"] {
        let case = Case {
            asks_async_tp: true,
            ..Case::tiny(mesh, [8, 32, 1])
        };
        let [current, before] = LINES.map(|line| (line.explained)(case, "async_tp").overlaps);
        assert!(
            current
                .iter()
                .filter(|overlap| overlap.whole.is_none())
                .count()
                >= 34
        );
        let along = |overlaps: &[burn_dist::explanation::Overlap]| {
            let all = overlaps.iter();
            all.map(|overlap| (overlap.kind, overlap.whole))
                .collect::<Vec<_>>()
        };
        assert_eq!(along(&current), along(&before), "{mesh}");
    }
}
