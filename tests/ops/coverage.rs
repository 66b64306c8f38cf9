//! Every operation that Burn can record occurs in some case.

use std::collections::BTreeSet;

use burn_dist::DeviceMesh;
use burn_dist_engine::ops::visit::FAMILIES;

use super::harness::{Case, recorded};
use super::{index, linalg, module, nn, pointwise, quantized, reduce, view};

const TAKEN_APART: &str = "Burn's dispatch records products, of which the planner makes layers";

/// Operations without a case, each with the reason: no program can record them.
const OUT_OF_REACH: &[(&str, &str, &str)] = &[
    (
        "numeric_float",
        "powi",
        "Burn takes a tensor of floats to the power of a tensor by powf",
    ),
    ("numeric_float", "argtopk", "Flex has no kernel for it"),
    ("numeric_int", "argtopk", "Flex has no kernel for it"),
    (
        "base_bool",
        "cast",
        "Burn casts from bools by `into_int` and `into_float`",
    ),
    (
        "base_bool",
        "gather_nd",
        "Burn has no such function for bools",
    ),
    (
        "base_bool",
        "scatter_nd",
        "Burn has no such function for bools",
    ),
    (
        "numeric_float",
        "random",
        "floats have a random operation of their own",
    ),
    ("numeric_int", "sum_dims", "Burn adds up ints dim by dim"),
    ("module", "linear", TAKEN_APART),
    ("module", "linear_x_backward", TAKEN_APART),
    ("module", "linear_weight_backward", TAKEN_APART),
    ("module", "linear_bias_backward", TAKEN_APART),
    (
        "module",
        "ctc_loss_backward",
        "only where the inner backend has a kernel for it, which Flex does not",
    ),
    ("init", "init", "data announces itself otherwise"),
    (
        "custom",
        "custom",
        "layouts that are asked for: tests/layouts.rs",
    ),
    ("drop", "drop", "the recorder keeps a list"),
];

fn cases() -> Vec<Case> {
    let tables = [
        index::table(),
        linalg::table(),
        module::table(),
        nn::table(),
        pointwise::table(),
        quantized::table(),
        reduce::table(),
        view::table(),
    ];
    tables.into_iter().flatten().collect()
}

#[test]
fn every_operation_has_a_case() {
    let mesh = DeviceMesh::builder().build().expect("one rank");
    let found = recorded(&mesh.device().autodiff(), cases());
    let families = FAMILIES.iter();
    let wanted: BTreeSet<(&str, &str)> = families
        .flat_map(|(family, kinds)| kinds.iter().map(move |kind| (*family, *kind)))
        .collect();
    let out_of_reach: BTreeSet<_> = OUT_OF_REACH.iter().map(|(f, k, _)| (*f, *k)).collect();
    let missing: Vec<_> = wanted
        .difference(&found)
        .filter(|op| !out_of_reach.contains(*op))
        .collect();
    assert!(missing.is_empty(), "no case records {missing:?}");
    let reached: Vec<_> = out_of_reach.intersection(&found).collect();
    assert!(reached.is_empty(), "not out of reach: {reached:?}");
}
