//! Formulas of operations against Flex's own kernels, in every type, on numbers and on what is none.

#[cfg_attr(burn_021, path = "formulas/line_021.rs")]
mod line;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use burn_dist_plan::op::Op;
use burn_dist_plan::region::Pointwise;
use burn_ir::{BaseOperationIr, NumericOperationIr, OperationIr};

use crate::Recorded;
use crate::samples::samples;
use crate::visit::{family_name, kind_name};

fn named(op: &OperationIr) -> String {
    format!("{} {}", family_name(op), kind_name(op))
}

/// Returns an operation as it is where rows are what it reduces or repeats: along the last dim, or of a tensor that is
/// one row.
fn along_rows(op: &OperationIr) -> Option<OperationIr> {
    use BaseOperationIr::{RepeatDim, Scatter};
    use NumericOperationIr::*;
    let mut op = op.clone();
    match &mut op {
        OperationIr::NumericFloat(_, of) | OperationIr::NumericInt(_, of) => match of {
            Sum(op) | Mean(op) | Prod(op) | Max(op) | MaxAbs(op) | Min(op) => {
                op.input.shape = vec![op.input.shape.num_elements()].into();
            }
            SumDim(op) | MeanDim(op) | ProdDim(op) | MaxDim(op) | MaxAbsDim(op) | MinDim(op) => {
                let mut shape = op.input.shape.to_vec();
                op.axis = shape.len() - 1;
                shape[op.axis] = 1;
                op.out.shape = shape.into();
            }
            other => return line::along_rows(other).then_some(op),
        },
        OperationIr::BaseFloat(of) | OperationIr::BaseInt(of) | OperationIr::BaseBool(of) => {
            match of {
                RepeatDim(op) => {
                    let mut shape = op.tensor.shape.to_vec();
                    shape[op.dim] = 1;
                    op.tensor.shape = shape.clone().into();
                    shape[op.dim] = op.times;
                    op.out.shape = shape.into();
                }
                Scatter(op) => {
                    for of in [&mut op.indices, &mut op.value] {
                        let mut shape = of.shape.to_vec();
                        shape[op.dim] = 1;
                        of.shape = shape.into();
                    }
                }
                other => return line::base_along_rows(other).then_some(op),
            }
        }
        other => return line::module_along_rows(other).then_some(op),
    }
    Some(op)
}

/// Returns the samples, and those along rows.
fn all() -> Vec<OperationIr> {
    let samples = samples();
    let rows: Vec<OperationIr> = samples.iter().filter_map(along_rows).collect();
    [samples, rows].concat()
}

fn pointwise(op: &OperationIr) -> Option<Pointwise> {
    Recorded::from(op.clone()).pointwise()
}

#[test]
fn which_operations_have_no_formula() {
    let (mut with, mut without) = (BTreeSet::new(), BTreeSet::new());
    for op in all() {
        let names = match pointwise(&op) {
            Some(_) => &mut with,
            None => &mut without,
        };
        names.insert((family_name(&op), kind_name(&op)));
    }
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (family, name) in without.difference(&with) {
        found.entry(family).or_default().push(name);
    }
    let found: Vec<String> = found
        .into_iter()
        .map(|(family, names)| format!("{family}: {}", names.join(" ")))
        .collect();
    let expected: Vec<&str> = line::WITHOUT.lines().map(str::trim).collect();
    assert_eq!(found, expected);
}
