//! Laws of all rules, and some rules written out.

use crate::burn::test::RULES;
use crate::rules::*;
use crate::samples::{quantized, samples};
use crate::visit::kind_name;
use burn_backend::DType;
use burn_ir::*;

fn factors(op: &OperationIr) -> Rule {
    match rule(op) {
        OpRule::Factors(rule) => rule,
        other => panic!("{} has no factors but {other:?}", kind_name(op)),
    }
}

/// Writes a rule with letters in order of the factors; capitals are not maps.
fn text(rule: &Rule) -> String {
    let operand = |operand: &Operand| {
        let dims = operand.dims.iter().map(|dim| match dim {
            None => '-',
            Some(index) => {
                let letter = char::from(b'a' + index);
                match rule.factors[*index as usize].kind {
                    FactorKind::Map => letter,
                    _ => letter.to_ascii_uppercase(),
                }
            }
        });
        dims.collect::<String>()
    };
    let side = |operands: &[Operand]| operands.iter().map(operand).collect::<Vec<_>>().join(",");
    format!("{}->{}", side(&rule.inputs), side(&rule.outputs))
}

#[test]
fn every_op_has_a_rule_or_a_reason() {
    let mut replicated = Vec::new();
    for op in samples() {
        match rule(&op) {
            OpRule::Replicated(reason) => {
                assert!(!reason.is_empty());
                replicated.push(kind_name(&op));
            }
            OpRule::Create => assert_eq!(op.inputs().count(), 0),
            OpRule::Reshape => assert_eq!(kind_name(&op), "reshape"),
            OpRule::Factors(_) => {}
        }
    }
    for op in quantized() {
        assert!(matches!(rule(&op), OpRule::Replicated(_)), "{op:?}");
        replicated.push("quantized");
    }
    // The list says exactly what is replicated.
    let mut listed: Vec<_> = REPLICATED.iter().map(|(name, _)| *name).collect();
    replicated.sort();
    replicated.dedup();
    listed.sort();
    assert_eq!(replicated, listed);
}

#[test]
fn factors_are_consistent() {
    for op in samples() {
        let OpRule::Factors(rule) = rule(&op) else {
            continue;
        };
        let shapes = |tensors: Vec<&TensorIr>| -> Vec<Vec<usize>> {
            tensors.iter().map(|tensor| tensor.shape.to_vec()).collect()
        };
        let of = |operands: &[Operand]| -> Vec<Vec<usize>> {
            operands
                .iter()
                .map(|operand| operand.shape.clone())
                .collect()
        };
        assert_eq!(of(&rule.inputs), shapes(op.inputs().collect()));
        assert_eq!(of(&rule.outputs), shapes(op.outputs().collect()));
        for operand in rule.inputs.iter().chain(&rule.outputs) {
            assert_eq!(operand.dims.len(), operand.shape.len());
            for (dim, size) in operand.dims.iter().zip(&operand.shape) {
                let factor = dim.map(|index| rule.factors[index as usize].size);
                assert!(factor.is_none_or(|factor| factor == *size), "{op:?}");
            }
        }
        for (index, factor) in rule.factors.iter().enumerate() {
            let has = |operand: &Operand| operand.dims.contains(&Some(index as u8));
            assert!(
                factor.size > 1 && factor.kind != FactorKind::Whole,
                "{op:?}"
            );
            // A split map factor that an output lacked would be lost.
            assert!(
                factor.kind != FactorKind::Map || rule.outputs.iter().all(has),
                "{op:?}"
            );
            assert!(rule.inputs.iter().chain(&rule.outputs).any(has), "{op:?}");
        }
        let passing = rule.inputs.iter().filter(|input| input.passes).count();
        assert_eq!(passing > 0, rule.partial != PartialRule::Resolve, "{op:?}");
        assert!(
            !rule
                .inputs
                .iter()
                .any(|input| input.passes && input.shape_only),
            "{op:?}"
        );
    }
}

fn sample(name: &str) -> OperationIr {
    let mut all = samples().into_iter();
    all.find(|op| kind_name(op) == name)
        .expect("the op has a sample")
}

#[test]
fn rules_written_out() {
    for (name, expected) in [
        ("matmul", "abD,aDc->abc"),
        ("linear", "abD,Dc,c->abc"),
        ("linear_x_backward", "cD,abD->abc"),
        ("linear_weight_backward", "CDa,CDb->ab"),
        ("linear_bias_backward", "BCa->a"),
        ("embedding", "Dc,ab->abc"),
        ("embedding_backward", "Ab,CDb,CD->Ab"),
        ("sum", "AB->-"),
        ("sum_dim", "aCb->a-b"),
        ("argmax", "a-->a-"),
        ("permute", "bca->abc"),
        ("expand", "a-c->abc"),
        ("slice", "-a-->-a-"),
        ("cat", "a-,a-,a-->ab"),
        ("slice_assign", "ab-,-b-->ab-"),
        ("gather", "aC,ab->ab"),
        ("scatter", "aB,aC,aC->aB"),
        ("select", "aDc,b->abc"),
        ("conv2d", "aC--,bC--,b->ab--"),
        ("conv2d_x_backward", "ab--,Cb--,aC--->ab--"),
        ("conv2d_weight_backward", "Cb--,ab--,Ca--->ab--"),
        ("conv2d_bias_backward", "B---,a,BaCD->a"),
        ("max_pool2d", "ab--->ab--"),
        ("attention", "abc-,ab--,ab-d->abcd"),
        ("ctc_loss", "-a-,a-,a,a->a"),
    ]
    .iter()
    .chain(RULES)
    {
        let rule = factors(&sample(name));

        assert_eq!(text(&rule), *expected, "{name}");
    }
}

fn tensor(dims: &[usize], dtype: DType) -> TensorIr {
    TensorIr::uninit(TensorId::new(0), dims.into(), dtype)
}

#[test]
fn elementwise_needs_equal_shapes_or_single_elements() {
    let add = |rhs: &[usize]| {
        let op = BinaryOpIr::create(tensor(&[4, 3], DType::F32), tensor(rhs, DType::F32), || {
            TensorId::new(1)
        });
        factors(&OperationIr::NumericFloat(
            DType::F32,
            NumericOperationIr::Add(op),
        ))
    };
    assert!(add(&[4, 3]).elementwise);
    assert!(add(&[1, 1]).elementwise);
    assert!(!add(&[1, 3]).elementwise);
    assert_eq!(text(&add(&[1, 3])), "ab,-b->ab");
    assert!(!factors(&sample("matmul")).elementwise);
}

#[test]
fn casts_that_keep_values_are_linear() {
    let cast = |from, to| {
        let op = CastOpIr::create(tensor(&[4], from), to, || TensorId::new(1));
        factors(&OperationIr::BaseFloat(BaseOperationIr::Cast(op))).partial
    };
    assert_eq!(cast(DType::F16, DType::F32), PartialRule::Linear);
    assert_eq!(cast(DType::BF16, DType::BF16), PartialRule::Linear);
    assert_eq!(cast(DType::F32, DType::BF16), PartialRule::Resolve);
    assert_eq!(cast(DType::BF16, DType::F16), PartialRule::Resolve);
}

#[test]
fn means_of_ints_keep_the_dim_whole() {
    let op = ReduceDimOpIr::create(tensor(&[4, 3], DType::I64), 1, 1, || TensorId::new(1));
    let mean = OperationIr::NumericInt(DType::I64, NumericOperationIr::MeanDim(op));
    assert_eq!(text(&factors(&mean)), "a-->a-");
}
