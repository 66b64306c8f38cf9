//! Every operation is read as what it was written of.

use std::sync::Arc;

use burn_dist_plan::float8::{Float8Op, Product, ScaleOf, Ways};
use burn_dist_plan::form::{of_text, text_of};
use burn_dist_plan::layout::Layout;
use burn_dist_plan::op::{Mark, NewTensor, Op};
use burn_dist_plan::policy::Fp8;
use burn_dist_plan::rule::{OpRule, RuleBuilder, Shapes};
use burn_ir::{
    FullOpIr, NumericOperationIr, OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus,
};

use crate::Recorded;
use crate::custom::{Custom, CustomOp, TensorInfo};
use crate::int8::{Int8, Int8Op};
use crate::recorded::Marked;
use crate::samples::samples;
use burn_dist_mesh::{DType, MeshShape, ReduceOp};

fn mesh() -> MeshShape {
    MeshShape::parse("fsdp=2").expect("a mesh")
}

/// Checks that an operation is read as it was, and returns its text.
fn check(op: &Recorded) -> String {
    let text = text_of(op, &mesh());
    let read = of_text::<Recorded>(&text, &mesh());
    let read = read.unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(&read, op, "{text}");
    // Equality does not see the sign of zero.
    assert_eq!(format!("{read:?}"), format!("{op:?}"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn every_operation_is_read_as_it_was() {
    for mut op in samples().into_iter().map(Recorded::from) {
        for last_use in [false, true] {
            op.rewire(|_, wire| wire.last_use = last_use);
            check(&op);
        }
    }
}

/// A tensor that a rank makes.
fn made(id: u32, shape: &[usize]) -> NewTensor {
    NewTensor {
        id,
        shape: shape.to_vec(),
        dtype: DType::F32,
    }
}

#[test]
fn what_the_planner_makes_is_read_as_it_was() {
    for reduce in [ReduceOp::Sum, ReduceOp::Prod] {
        check(&Recorded::identity(reduce, made(0, &[3])));
    }
    for op in [
        Float8Op::Amax(ScaleOf::Block),
        Float8Op::Stack,
        Float8Op::Scale {
            format: Fp8::E5M2,
            power_of_two: true,
        },
        Float8Op::Quantize {
            of: ScaleOf::RowTile,
            format: Fp8::E4M3,
            at_rest: true,
            ways: Ways::Turned,
        },
        Float8Op::Product {
            product: Product::Weight,
            scales: [ScaleOf::Row, ScaleOf::Column],
            formats: [Fp8::E4M3, Fp8::E5M2],
        },
    ] {
        let inputs = vec![made(0, &[4, 8]), made(1, &[1])];
        check(&Recorded::float8(op, inputs, vec![made(2, &[4, 8])]));
    }
}

#[test]
fn what_rests_in_8_bits_is_read_as_it_was() {
    for op in Int8Op::ALL {
        let input = tensor(0, TensorStatus::ReadWrite);
        let out = tensor(1, TensorStatus::NotInit);
        check(&Recorded::Int8(Box::new(Int8 { op, input, out })));
    }
}

fn tensor(id: u64, status: TensorStatus) -> TensorIr {
    TensorIr {
        status,
        ..TensorIr::uninit(TensorId::new(id), [4, 8].into(), burn_std::DType::F32)
    }
}

#[test]
fn numbers_are_read_to_the_last_bit() {
    let (inf, third) = (f64::INFINITY, 1.0 / 3.0);
    for number in [
        0.0,
        -0.0,
        inf,
        -inf,
        third,
        -1e300,
        f64::MIN_POSITIVE,
        f64::EPSILON,
    ] {
        let full = FullOpIr {
            out: tensor(0, TensorStatus::NotInit),
            value: ScalarIr::Float(number),
        };
        let full = NumericOperationIr::Full(full);
        check(&OperationIr::NumericFloat(burn_std::DType::F32, full).into());
    }
}

#[test]
fn marks_are_read_as_they_were() {
    let mesh = mesh();
    let mut layout = Layout::replicated(&[4, 8]);
    layout.dims[1].factors[0].axes = mesh.axis_indices().collect();
    let text = check(&Recorded::Mark(Box::new(Marked {
        mark: Mark::Redistribute(Arc::new(layout)),
        input: tensor(3, TensorStatus::ReadWrite),
        out: tensor(4, TensorStatus::NotInit),
    })));
    assert_eq!(
        text,
        "[%4: f32 [4, 8]] = mark redistribute to [4, 8{fsdp}] [%3!: f32 [4, 8]]"
    );
}

/// An operation of another crate.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Times(u32);

impl CustomOp for Times {
    const ID: &'static str = "tests.times";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        inputs.to_vec()
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        RuleBuilder::uniform(shapes, "...").elementwise().build()
    }
}

#[test]
fn custom_operations_are_read_as_they_were() {
    let times = |number| {
        let [input, out] = [(0, TensorStatus::ReadOnly), (1, TensorStatus::NotInit)]
            .map(|(id, status)| tensor(id, status));
        Recorded::Custom(Box::new(Custom::new(
            Times(number),
            Arc::new(()),
            vec![input],
            vec![out],
        )))
    };
    let texts = [2, 3].map(|number| check(&times(number)));
    assert_eq!(
        texts[0],
        "[%1: f32 [4, 8]] = custom \"tests.times Times(2)\" [%0: f32 [4, 8]]"
    );
    let error = of_text::<Recorded>(&texts[0].replace("(2)", "(5)"), &mesh());
    let error = error.expect_err("nobody has written it").to_string();
    assert!(
        error.contains("an operation that was written before"),
        "{error}"
    );
}

#[test]
fn wrong_texts_are_refused() {
    let add = Recorded::add(made(0, &[3]), made(1, &[3]), made(2, &[3]));
    let text = check(&add);
    assert_eq!(
        text,
        "[%2: f32 [3]] = burn `NumericFloat(F32, Add(BinaryOpIr { lhs: %, rhs: %, out: % }))` \
         [%0: f32 [3], %1: f32 [3]]"
    );
    let full = "as many tensors as the operation has";
    for (from, to, expected) in [
        (
            "Add",
            "Plus",
            "an operation of Burn's that was written before",
        ),
        (", %1: f32 [3]]", "]", full),
        ("%1: f32 [3]]", "%1: f32 [3], %1]", full),
        ("[%2: f32 [3]] =", "[] =", full),
        ("burn", "born", "`burn`"),
    ] {
        assert!(text.contains(from), "{from}");
        let wrong = text.replacen(from, to, 1);
        let error = of_text::<Recorded>(&wrong, &mesh()).expect_err(to);
        assert!(error.to_string().contains(expected), "{to}: {error}");
    }
}
