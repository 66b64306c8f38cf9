//! Every rule against the op on whole tensors: split by the rule, run on every rank, put together again.
//!
//! For each sample, each mesh and every assignment of a family (see [`mod@splits`]), partial inputs included: whatever
//! the layouts say about a block must hold for the block that the local operations make.

mod samples;
mod splits;

use super::*;
use crate::layout::Partial;
use crate::mesh::{AxisIndex, BoolStore, MeshShape, Rank, ReduceOp};
use crate::ops::rules::{Assignment, PartialRule, rule};
use crate::ops::samples::inputs;
use crate::ops::visit::kind_name;
use crate::run::execute::{Env, execute, from_data, into_data};
use burn_backend::{DType, Scalar, TensorData};
use burn_flex::Flex;
use burn_std::future::block_on;
use std::collections::HashMap;

type Handle = <Flex as BackendIr>::Handle;

fn meshes() -> Vec<MeshShape> {
    let texts = ["a=2", "a=3", "a=2,b=2", "a=2,b=3"];
    texts.map(|text| MeshShape::parse(text).unwrap()).to_vec()
}

/// Tensors by id.
#[derive(Default)]
struct Map {
    handles: HashMap<TensorId, Handle>,
    device: <Flex as burn_backend::BackendTypes>::Device,
}

impl Env<Flex> for Map {
    fn take(&mut self, tensor: &TensorIr) -> Handle {
        assert_eq!(
            tensor.status,
            TensorStatus::ReadOnly,
            "last uses are found later"
        );
        let handle = self.handles.get(&tensor.id);
        handle
            .unwrap_or_else(|| panic!("no tensor {}", tensor.id))
            .clone()
    }
    fn put(&mut self, tensor: &TensorIr, handle: Handle) {
        assert_eq!(tensor.status, TensorStatus::NotInit);
        let before = self.handles.insert(tensor.id, handle);
        assert!(before.is_none(), "tensor {} is made twice", tensor.id);
    }
    fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        (*scalar).into()
    }
    fn device(&self) -> &<Flex as burn_backend::BackendTypes>::Device {
        &self.device
    }
}

/// The values of a tensor in row-major order. All dtypes of the samples are exact in f64.
type Values = Vec<f64>;

fn values(data: TensorData) -> Values {
    match data.dtype {
        DType::Bool(_) => data.iter::<bool>().map(f64::from).collect(),
        _ => data.iter::<f64>().collect(),
    }
}

fn data(values: &[f64], shape: Vec<usize>, dtype: DType) -> TensorData {
    match dtype {
        DType::Bool(_) => TensorData::new(values.iter().map(|&v| v != 0.0).collect(), shape),
        _ => TensorData::new(values.to_vec(), shape).convert_dtype(dtype),
    }
}

/// Runs `ops` with `inputs` in place and returns `outputs`, whose shapes and dtypes must be as they say.
fn run(ops: &[Recorded], inputs: &[(TensorId, TensorData)], outputs: &[TensorIr]) -> Vec<Values> {
    let mut env = Map::default();
    for (id, data) in inputs {
        let handle = from_data::<Flex>(data.clone(), &env.device);
        env.handles.insert(*id, handle);
    }
    for op in ops {
        execute::<Flex, _>(op.step(), &mut env).unwrap();
    }
    let read = |out: &TensorIr| {
        let handle = env.handles[&out.id].clone();
        let data = block_on(into_data::<Flex>(handle, out.shape.clone(), out.dtype)).unwrap();
        assert_eq!(data.shape, out.shape);
        assert_eq!(data.dtype, out.dtype);
        values(data)
    };
    outputs.iter().map(read).collect()
}

/// An op with its inputs and what it computes from them on one device.
struct Case {
    op: OperationIr,
    rule: OpRule,
    inputs: Vec<Values>,
    outputs: Vec<Values>,
}

impl Case {
    fn new(op: OperationIr) -> Self {
        let inputs = inputs(&op, 7);
        let named: Vec<_> = op
            .inputs()
            .map(|t| t.id)
            .zip(inputs.iter().cloned())
            .collect();
        let outputs: Vec<_> = op.outputs().cloned().collect();
        let outputs = run(&[op.clone().into()], &named, &outputs);
        Self {
            rule: rule(&op),
            op,
            inputs: inputs.into_iter().map(values).collect(),
            outputs,
        }
    }

    /// Runs the op split as given on every rank and compares.
    fn check(
        &self,
        mesh: &MeshShape,
        assignment: Option<&Assignment>,
        inputs: &[Layout],
        outputs: &[Layout],
    ) {
        let context = || {
            let text = |layouts: &[Layout]| {
                let texts: Vec<_> = layouts
                    .iter()
                    .map(|l| l.display(mesh).to_string())
                    .collect();
                texts.join(", ")
            };
            format!(
                "{}: {} -> {} on {mesh}\n{:?}",
                kind_name(&self.op),
                text(inputs),
                text(outputs),
                self.op
            )
        };
        for layout in inputs.iter().chain(outputs) {
            layout
                .validate(mesh)
                .unwrap_or_else(|error| panic!("{error}\n{}", context()));
        }
        let ranks: Vec<Vec<Values>> = mesh
            .ranks()
            .map(|rank| {
                self.run_rank(&LocalView {
                    rule: &self.rule,
                    assignment,
                    inputs,
                    outputs,
                    mesh,
                    rank,
                    bool_store: BoolStore::Native,
                })
            })
            .collect();
        for (index, (layout, out)) in outputs.iter().zip(self.op.outputs()).enumerate() {
            let axes: Vec<_> = layout.partial.iter().map(|p| p.axis).collect();
            for rank in mesh.ranks() {
                let terms = mesh.group_of(rank, &axes);
                let terms = terms.iter().map(|term| &ranks[term.0 as usize][index]);
                let op = layout.partial.first().map(|p| p.op);
                let here = combine(terms, op);
                let elements: Vec<_> = layout.elements(mesh, rank).collect();
                assert_eq!(here.len(), elements.len(), "{}", context());
                for (value, element) in here.iter().zip(elements) {
                    let expected = self.outputs[index][element];
                    assert!(
                        close(*value, expected, &self.op, out),
                        "output {index}, element {element}, rank {}: {value} instead of {expected}\n{}",
                        rank.0,
                        context()
                    );
                }
            }
        }
    }

    fn run_rank(&self, local: &LocalView<'_>) -> Vec<Values> {
        let mut next = 1 << 31;
        let mut temps = || {
            next += 1;
            next
        };
        let mut ops = Vec::new();
        lower(&self.op, local, &mut temps, &mut ops);
        let shape_only = |index: usize| match &self.rule {
            OpRule::Factors(rule) => rule.inputs[index].shape_only,
            _ => false,
        };
        // Inputs of which only the shape is read are missing: using them fails.
        let blocks: Vec<_> = self
            .op
            .inputs()
            .enumerate()
            .filter(|(index, _)| !shape_only(*index))
            .map(|(index, tensor)| {
                let layout = &local.inputs[index];
                let block: Values = layout
                    .elements(local.mesh, local.rank)
                    .map(|element| term(&self.inputs[index], element, layout, tensor.dtype, local))
                    .collect();
                let shape = layout.local_shape(local.mesh, local.rank);
                (tensor.id, data(&block, shape, tensor.dtype))
            })
            .collect();
        run(
            &ops,
            &blocks,
            &Local {
                op: &self.op,
                view: local,
            }
            .local_outputs(),
        )
    }
}

/// The value of an element on a rank: for a partial layout a term, uneven over the ranks, such that the terms combine
/// to the value.
fn term(
    values: &[f64],
    element: usize,
    layout: &Layout,
    dtype: DType,
    local: &LocalView<'_>,
) -> f64 {
    let value = values[element];
    let Some(partial) = layout.partial.first() else {
        return value;
    };
    let axes: Vec<_> = layout.partial.iter().map(|p| p.axis).collect();
    let (index, size) = (
        local.mesh.group_index(local.rank, &axes),
        local.mesh.group_size(&axes),
    );
    match partial.op {
        ReduceOp::Sum => {
            let unit = if dtype.is_float() { 0.125 } else { 1.0 };
            let share = |index: usize| unit * ((element * 7 + index * 5) % 11) as f64 - unit;
            match index {
                0 => value - (1..size).map(share).sum::<f64>(),
                index => share(index),
            }
        }
        // One rank has the value, the others something smaller.
        ReduceOp::Max if index == (element * 5 + 1) % size => value,
        ReduceOp::Max => value - 1.0 - index as f64,
        op => panic!("no terms of {op:?}"),
    }
}

fn combine<'a>(mut terms: impl Iterator<Item = &'a Values>, op: Option<ReduceOp>) -> Values {
    let mut all = terms.next().unwrap().clone();
    for other in terms {
        for (value, other) in all.iter_mut().zip(other) {
            *value = match op.unwrap() {
                ReduceOp::Sum => *value + other,
                ReduceOp::Max => value.max(*other),
                ReduceOp::Min => value.min(*other),
                ReduceOp::Prod => *value * other,
                ReduceOp::Mean => unreachable!("no rule makes partial means"),
            };
        }
    }
    all
}

/// Ints and bools are exact; floats are sums in another order: some roundings, of values around one, in the lowest
/// precision there is.
fn close(value: f64, expected: f64, op: &OperationIr, out: &TensorIr) -> bool {
    let has_half = op.inputs().any(|input| input.dtype == DType::F16);
    let tolerance = match out.dtype {
        dtype if !dtype.is_float() => 0.0,
        DType::F16 => 2e-3,
        _ if has_half => 2e-3,
        _ => 1e-5,
    };
    value == expected
        || (value.is_nan() && expected.is_nan())
        || (value - expected).abs() <= tolerance * expected.abs().max(1.0)
}

/// Checks a rule in factor notation under all assignments; returns how many, and which factors were split.
fn check_factors(case: &Case, rule: &Rule, mesh: &MeshShape) -> (usize, Vec<bool>) {
    let mut split = vec![false; rule.factors.len()];
    let mut count = 0;
    let mut check = |assignment: &Assignment| {
        let inputs = rule.inputs.iter().map(|o| rule.input_layout(o, assignment));
        let outputs = rule
            .outputs
            .iter()
            .map(|o| rule.output_layout(o, assignment));
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
        case.check(mesh, Some(assignment), &inputs, &outputs);
        count += 1;
    };
    for factors in splits::assignments(rule, mesh) {
        for (split, factor) in split.iter_mut().zip(&factors) {
            *split |= !factor.is_whole();
        }
        let used: Vec<_> = factors.iter().flat_map(DimLayout::axes).collect();
        let free = mesh.axis_indices().filter(|axis| !used.contains(axis));
        let mut assignment = Assignment {
            factors,
            kept: Vec::new(),
        };
        check(&assignment);
        let ops: &[ReduceOp] = match rule.partial {
            PartialRule::Resolve => &[],
            PartialRule::Linear | PartialRule::JointLinear => &[ReduceOp::Sum],
            PartialRule::Move => &[ReduceOp::Sum, ReduceOp::Max],
        };
        // No partial bools: they have no sum.
        let is_bool = case.op.inputs().next().unwrap().dtype.is_bool();
        let free: Vec<_> = free.collect();
        let mut groups: Vec<_> = free.iter().map(|&axis| vec![axis]).collect();
        if free.len() > 1 {
            groups.push(free);
        }
        if is_bool {
            groups.clear();
        }
        for axes in groups {
            for &op in ops {
                assignment.kept = axes.iter().map(|&axis| Partial { axis, op }).collect();
                check(&assignment);
            }
        }
    }
    (count, split)
}

/// Checks layouts of one tensor that lead to layouts of another; returns how many.
fn check_layouts(case: &Case, mesh: &MeshShape) -> usize {
    let shape = |tensor: &TensorIr| tensor.shape.to_vec();
    let out = shape(case.op.outputs().next().unwrap());
    let mut count = 0;
    match case.op.inputs().next() {
        // Reshape: whatever layout can be regrouped.
        Some(input) => {
            for layout in splits::layouts(&shape(input), mesh) {
                if let Some(reshaped) = layout.reshape(mesh, &out) {
                    case.check(mesh, None, &[layout], &[reshaped]);
                    count += 1;
                }
            }
        }
        None => {
            for layout in splits::layouts(&out, mesh) {
                case.check(mesh, None, &[], &[layout]);
                count += 1;
            }
        }
    }
    count
}

/// Ops that make something else every time, and the one for which the backend of the tests has no kernel.
fn has_no_oracle(op: &OperationIr) -> bool {
    ["random", "empty", "ctc_loss_backward"].contains(&kind_name(op))
}

/// Checks one op on all meshes; returns under how many layouts.
fn check(op: OperationIr) -> usize {
    let case = Case::new(op);
    let mut count = 0;
    let mut ever_split: Option<Vec<bool>> = None;
    for mesh in meshes() {
        match &case.rule {
            OpRule::Factors(rule) => {
                let (checked, split) = check_factors(&case, rule, &mesh);
                count += checked;
                let ever = ever_split.get_or_insert_with(|| vec![false; split.len()]);
                ever.iter_mut()
                    .zip(split)
                    .for_each(|(ever, split)| *ever |= split);
            }
            _ => count += check_layouts(&case, &mesh),
        }
    }
    if let Some(ever) = ever_split {
        let all = ever.iter().all(|split| *split);
        assert!(all, "a factor was never split: {:?}", case.op);
    }
    count
}

#[test]
fn every_op_split_equals_the_op_on_whole_tensors() {
    let mut count = 0;
    let mut wrong = Vec::new();
    for op in samples::all() {
        match rule(&op) {
            OpRule::Replicated(_) if matches!(op, OperationIr::Custom(_)) => {}
            OpRule::Replicated(_) => assert_unchanged(&op),
            _ if has_no_oracle(&op) => {}
            _ => match std::panic::catch_unwind(|| check(op.clone())) {
                Ok(checked) => count += checked,
                // The panic has told what is wrong.
                Err(_) => wrong.push(kind_name(&op)),
            },
        }
    }
    assert!(wrong.is_empty(), "wrong: {wrong:?}");
    eprintln!("count {count}");
    assert!(count > 20_000, "checked only {count} cases");
}

fn no_temps() -> TensorIndex {
    unreachable!("nothing is made on the way")
}

/// A replicated op is the same on every rank.
fn assert_unchanged(op: &OperationIr) {
    let mesh = MeshShape::parse("a=2").unwrap();
    let layout = |tensor: &TensorIr| Layout::replicated(&tensor.shape.to_vec());
    let (inputs, outputs): (Vec<_>, Vec<_>) = (
        op.inputs().map(layout).collect(),
        op.outputs().map(layout).collect(),
    );
    for rank in mesh.ranks() {
        let mut ops = Vec::new();
        let view = LocalView {
            rule: &rule(op),
            assignment: None,
            inputs: &inputs,
            outputs: &outputs,
            mesh: &mesh,
            rank,
            bool_store: BoolStore::Native,
        };
        lower(op, &view, &mut no_temps, &mut ops);
        assert_eq!(ops, [Recorded::from(op.clone())]);
    }
}

#[test]
fn a_scalar_slot_is_copied() {
    let tensor = |id: u64, status| TensorIr {
        status,
        ..TensorIr::uninit(TensorId::new(id), [6].into(), DType::F32)
    };
    let op = OperationIr::NumericFloat(
        DType::F32,
        NumericOperationIr::MulScalar(ScalarOpIr {
            lhs: tensor(0, TensorStatus::ReadWrite),
            rhs: ScalarIr::UInt(3),
            out: tensor(1, TensorStatus::NotInit),
        }),
    );
    let mesh = MeshShape::parse("a=4").unwrap();
    let layout = Layout::sharded(&[6], 0, &[AxisIndex(0)]);
    let rule = rule(&op);
    let mut ops = Vec::new();
    let view = LocalView {
        rule: &rule,
        assignment: None,
        inputs: std::slice::from_ref(&layout),
        outputs: std::slice::from_ref(&layout),
        mesh: &mesh,
        rank: Rank(1),
        bool_store: BoolStore::Native,
    };
    lower(&op, &view, &mut no_temps, &mut ops);
    let [Recorded::Burn(OperationIr::NumericFloat(_, NumericOperationIr::MulScalar(op)))] =
        ops.as_slice()
    else {
        panic!("{ops:?}");
    };
    assert_eq!(op.rhs, ScalarIr::UInt(3));
    assert_eq!(op.lhs.shape.to_vec(), [2]);
    assert_eq!(op.lhs.status, TensorStatus::ReadOnly);
}

#[test]
#[should_panic(expected = "Max over no elements on rank 2")]
fn a_maximum_over_nothing_is_refused() {
    // Four elements over three ranks: 2, 2 and none.
    let op = samples::max_of(4);
    let mesh = MeshShape::parse("a=3").unwrap();
    let case = Case::new(op);
    let OpRule::Factors(rule) = &case.rule else {
        panic!("max has factors");
    };
    let mut assignment = rule.unsplit();
    assignment.factors[0].factors[0].axes.push(AxisIndex(0));
    let inputs = [rule.input_layout(&rule.inputs[0], &assignment)];
    let outputs = [rule.output_layout(&rule.outputs[0], &assignment)];
    case.check(&mesh, Some(&assignment), &inputs, &outputs);
}
