//! Every rule against the op on whole tensors: split by the rule, run on every rank, put together again.
//!
//! For each sample, each mesh and every assignment of a family (see [`oracle`]), partial inputs included: whatever
//! the layouts say about a block must hold for the block that the local operations make.

mod samples;

use crate::Recorded;
use crate::burn::data::*;
use crate::dtype::of_burn;
use crate::execute::{Env, execute_recorded, from_data, into_data};
use crate::lower::{Local, lower};
use crate::rules::{OpRule, rule};
use crate::samples::inputs;
use crate::visit::kind_name;
use burn_backend::{DType, Scalar};
use burn_dist_mesh::{AxisIndex, BoolStore, MeshShape, Rank};
use burn_dist_plan::layout::Layout;
use burn_dist_plan::op::{LocalView, Steps};
use burn_dist_plan::rule::oracle::{self, Case};
use burn_flex::Flex;
use burn_ir::*;
use burn_std::future::block_on;
use std::collections::HashMap;
use std::sync::Arc;

type Handle = <Flex as BackendIr>::Handle;

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
fn values(data: TensorData) -> Vec<f64> {
    match data.dtype() {
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
fn run(ops: &[Recorded], inputs: &[(TensorId, TensorData)], outputs: &[TensorIr]) -> Vec<Vec<f64>> {
    let mut env = Map::default();
    for (id, data) in inputs {
        let handle = from_data::<Flex>(data.clone(), &env.device);
        env.handles.insert(*id, handle);
    }
    for op in ops {
        execute_recorded::<Flex, _>(op, &mut env).unwrap();
    }
    let read = |out: &TensorIr| {
        let handle = env.handles[&out.id].clone();
        let data = block_on(into_data::<Flex>(handle, out.shape.clone(), out.dtype)).unwrap();
        assert_eq!(*data.shape(), out.shape);
        assert_eq!(data.dtype(), out.dtype);
        values(data)
    };
    outputs.iter().map(read).collect()
}

/// An op with its inputs and what it computes from them on one device.
fn case(op: &OperationIr) -> Case {
    let inputs = inputs(op, 7);
    let named: Vec<_> = op
        .inputs()
        .map(|t| t.id)
        .zip(inputs.iter().cloned())
        .collect();
    let outputs: Vec<_> = op.outputs().cloned().collect();
    let made = run(&[op.clone().into()], &named, &outputs);
    let describe = |(tensor, values): (&TensorIr, Vec<f64>)| oracle::Values {
        shape: tensor.shape.to_vec(),
        dtype: of_burn(tensor.dtype),
        values,
    };
    // Sums in another order: some roundings, of values around one, in the lowest precision there is.
    let has_half = op
        .inputs()
        .chain(op.outputs())
        .any(|t| t.dtype == DType::F16);
    Case {
        op: format!("{op:?}"),
        rule: rule(op),
        inputs: op
            .inputs()
            .zip(inputs.into_iter().map(values))
            .map(describe)
            .collect(),
        outputs: op.outputs().zip(made).map(describe).collect(),
        tolerance: if has_half { 2e-3 } else { 1e-5 },
    }
}

/// Runs the local operations of a rank.
fn on_rank(
    op: &OperationIr,
    view: &LocalView<'_>,
    blocks: Vec<Option<oracle::Values>>,
) -> Vec<Vec<f64>> {
    let mut steps = Steps::new(1 << 31);
    let recorded = Recorded::from(op.clone());
    lower(&recorded, view, &mut steps);
    let ops: Vec<_> = steps.ops().cloned().collect();
    let blocks: Vec<_> = op
        .inputs()
        .zip(blocks)
        .filter_map(|(tensor, block)| {
            let block = block?;
            Some((tensor.id, data(&block.values, block.shape, tensor.dtype)))
        })
        .collect();
    run(&ops, &blocks, &Local::new(&recorded, view).local_outputs())
}

/// Ops that make something else every time, and the one for which the backend of the tests has no kernel.
fn has_no_oracle(op: &OperationIr) -> bool {
    ["random", "empty", "ctc_loss_backward"].contains(&kind_name(op))
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
            _ => match oracle::check(&case(&op), |view, blocks| on_rank(&op, view, blocks)) {
                Ok(checked) => count += checked,
                Err(error) => wrong.push(error.to_string()),
            },
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    eprintln!("count {count}");
    assert!(count > 20_000, "checked only {count} cases");
}

/// A replicated op is the same on every rank.
fn assert_unchanged(op: &OperationIr) {
    let mesh = MeshShape::parse("a:model=2").unwrap();
    let layout = |tensor: &TensorIr| Arc::new(Layout::replicated(&tensor.shape.to_vec()));
    let (inputs, outputs): (Vec<_>, Vec<_>) = (
        op.inputs().map(layout).collect(),
        op.outputs().map(layout).collect(),
    );
    for rank in mesh.ranks() {
        let view = LocalView {
            rule: &rule(op),
            assignment: None,
            inputs: &inputs,
            outputs: &outputs,
            mesh: &mesh,
            rank,
            bool_store: BoolStore::Native,
        };
        let recorded = Recorded::from(op.clone());
        let mut steps = Steps::new(1 << 31);
        lower(&recorded, &view, &mut steps);
        assert_eq!(steps.ops().collect::<Vec<_>>(), [&recorded]);
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
    let mesh = MeshShape::parse("a:model=4").unwrap();
    let layout = Arc::new(Layout::sharded(&[6], 0, &[AxisIndex(0)]));
    let rule = rule(&op);
    let view = LocalView {
        rule: &rule,
        assignment: None,
        inputs: std::slice::from_ref(&layout),
        outputs: std::slice::from_ref(&layout),
        mesh: &mesh,
        rank: Rank(1),
        bool_store: BoolStore::Native,
    };
    let mut steps = Steps::new(1 << 31);
    lower(&op.into(), &view, &mut steps);
    let [Recorded::Burn(OperationIr::NumericFloat(_, NumericOperationIr::MulScalar(op)))] =
        steps.ops().collect::<Vec<_>>()[..]
    else {
        panic!("{steps:?}");
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
    let mesh = MeshShape::parse("a:model=3").unwrap();
    let case = case(&op);
    let OpRule::Factors(rule) = &case.rule else {
        panic!("max has factors");
    };
    let mut assignment = rule.unsplit();
    assignment.factors[0].factors[0].axes.push(AxisIndex(0));
    let inputs = [rule.input_layout(&rule.inputs[0], &assignment)];
    let outputs = [rule.output_layout(&rule.outputs[0], &assignment)];
    let mut run = |view: &LocalView<'_>, blocks| on_rank(&op, view, blocks);
    let _ = case.check_split(&mesh, Some(&assignment), &inputs, &outputs, &mut run);
}
