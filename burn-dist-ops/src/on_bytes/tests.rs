//! Operations that are recorded on bytes, and those that are refused.
#![cfg(not(burn_021))]

use burn_backend::quantization::QuantScheme;
use burn_ir::{CastOpIr, ShapeOpIr, TensorId};

use super::*;
use crate::int8::scheme;

fn tensor(id: u64, shape: &[usize], dtype: DType) -> TensorIr {
    TensorIr::uninit(TensorId::new(id), shape.to_vec().into(), dtype)
}

#[test]
fn nothing_else_takes_what_rests_in_8_bits() {
    let packed = DType::QFloat(scheme().expect("this line has it"));
    let recorded = |op: BaseOperationIr| {
        let op = OperationIr::BaseFloat(op).into();
        on_bytes(&op).unwrap_or(op)
    };
    let cast = recorded(BaseOperationIr::Cast(CastOpIr {
        input: tensor(0, &[4, 64], DType::F32),
        out: tensor(1, &[4, 64], packed),
    }));
    let out = cast.makes().next().expect("a result");
    assert_eq!(
        (out.shape.as_slice(), out.dtype),
        (&[4, 2, 33][..], DType::U8)
    );
    let cast = [cast];
    assert!(check(&cast, true).is_ok());
    assert!(matches!(check(&cast, false), Err(PlanError::NoBytes)));
    let reshape = recorded(BaseOperationIr::Reshape(ShapeOpIr {
        input: tensor(0, &[4, 64], packed),
        out: tensor(1, &[64, 4], packed),
    }));
    let error = check(&[reshape], true)
        .expect_err("it is refused")
        .to_string();
    assert!(
        error.contains("reshape") && error.contains("dequantize it first"),
        "{error}"
    );
    // Other quantized tensors are none of its business.
    let others = DType::QFloat(QuantScheme::default());
    let reshape = recorded(BaseOperationIr::Reshape(ShapeOpIr {
        input: tensor(0, &[4, 64], others),
        out: tensor(1, &[64, 4], others),
    }));
    assert!(check(&[reshape], true).is_ok());
}
