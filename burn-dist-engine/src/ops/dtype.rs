//! Element types in Burn's terms and in ours.

use burn_backend::quantization::{
    BlockSize, QuantLevel, QuantMode, QuantParam, QuantScheme, QuantStore, QuantValue,
};

use crate::mesh::{BoolStore, DType, Quantized};
use crate::plan::Float;

/// Returns Burn's name of a type.
///
/// # Panics
/// If a quantized type is none that [`of_burn`] made.
pub fn to_burn(dtype: DType) -> burn_std::DType {
    use burn_std::DType as Burn;
    match dtype {
        DType::F64 => Burn::F64,
        DType::F32 => Burn::F32,
        DType::Flex32 => Burn::Flex32,
        DType::F16 => Burn::F16,
        DType::BF16 => Burn::BF16,
        DType::I64 => Burn::I64,
        DType::I32 => Burn::I32,
        DType::I16 => Burn::I16,
        DType::I8 => Burn::I8,
        DType::U64 => Burn::U64,
        DType::U32 => Burn::U32,
        DType::U16 => Burn::U16,
        DType::U8 => Burn::U8,
        DType::Bool(BoolStore::Native) => Burn::Bool(burn_std::BoolStore::Native),
        DType::Bool(BoolStore::U8) => Burn::Bool(burn_std::BoolStore::U8),
        DType::Bool(BoolStore::U32) => Burn::Bool(burn_std::BoolStore::U32),
        DType::Quantized(quantized) => Burn::QFloat(decode(quantized.code)),
    }
}

/// Returns our name of a type of Burn's.
pub fn of_burn(dtype: burn_std::DType) -> DType {
    use burn_std::DType as Burn;
    match dtype {
        Burn::F64 => DType::F64,
        Burn::F32 => DType::F32,
        Burn::Flex32 => DType::Flex32,
        Burn::F16 => DType::F16,
        Burn::BF16 => DType::BF16,
        Burn::I64 => DType::I64,
        Burn::I32 => DType::I32,
        Burn::I16 => DType::I16,
        Burn::I8 => DType::I8,
        Burn::U64 => DType::U64,
        Burn::U32 => DType::U32,
        Burn::U16 => DType::U16,
        Burn::U8 => DType::U8,
        Burn::Bool(store) => DType::Bool(bool_store(store)),
        Burn::QFloat(scheme) => DType::Quantized(Quantized {
            size: dtype.size() as u8,
            code: encode(scheme),
        }),
    }
}

/// Returns our name of how Burn stores bools.
pub(crate) fn bool_store(store: burn_std::BoolStore) -> BoolStore {
    match store {
        burn_std::BoolStore::Native => BoolStore::Native,
        burn_std::BoolStore::U8 => BoolStore::U8,
        burn_std::BoolStore::U32 => BoolStore::U32,
    }
}

/// Returns Burn's name of a float type.
pub(crate) fn of_float(float: Float) -> burn_std::DType {
    match float {
        Float::F32 => burn_std::DType::F32,
        Float::F16 => burn_std::DType::F16,
        Float::BF16 => burn_std::DType::BF16,
    }
}

const VALUES: [QuantValue; 9] = [
    QuantValue::Q8F,
    QuantValue::E5M2,
    QuantValue::E4M3,
    QuantValue::Q4F,
    QuantValue::E2M1,
    QuantValue::Q2F,
    QuantValue::Q8S,
    QuantValue::Q4S,
    QuantValue::Q2S,
];

const PARAMS: [QuantParam; 5] = [
    QuantParam::F32,
    QuantParam::F16,
    QuantParam::BF16,
    QuantParam::UE8M0,
    QuantParam::UE4M3,
];

/// Writes a scheme down: value, parameters, store and its dim, then the block sizes after their number (0: one block).
fn encode(scheme: QuantScheme) -> [u8; 15] {
    let QuantMode::Symmetric = scheme.mode;
    let mut code = [0; 15];
    let number = |position: Option<usize>| position.expect("the table is complete") as u8;
    code[0] = number(VALUES.iter().position(|value| *value == scheme.value));
    code[1] = number(PARAMS.iter().position(|param| *param == scheme.param));
    (code[2], code[3]) = match scheme.store {
        QuantStore::Native => (0, 0),
        QuantStore::PackedNative(dim) => (1, dim as u8),
        QuantStore::PackedU32(dim) => (2, dim as u8),
    };
    if let QuantLevel::Block(sizes) = scheme.level {
        let sizes = sizes.as_slice();
        code[4] = 1 + sizes.len() as u8;
        code[5..5 + sizes.len()].copy_from_slice(sizes);
    }
    code
}

fn decode(code: [u8; 15]) -> QuantScheme {
    QuantScheme {
        value: VALUES[usize::from(code[0])],
        param: PARAMS[usize::from(code[1])],
        store: match code[2] {
            0 => QuantStore::Native,
            1 => QuantStore::PackedNative(code[3].into()),
            _ => QuantStore::PackedU32(code[3].into()),
        },
        level: match usize::from(code[4]) {
            0 => QuantLevel::Tensor,
            sizes => QuantLevel::Block(BlockSize::new(&code[5..4 + sizes])),
        },
        mode: QuantMode::Symmetric,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_come_back_as_they_were() {
        use burn_std::{BoolStore as Store, DType as Burn};
        let mut dtypes = vec![
            Burn::F64,
            Burn::F32,
            Burn::Flex32,
            Burn::F16,
            Burn::BF16,
            Burn::I64,
            Burn::I32,
            Burn::I16,
            Burn::I8,
            Burn::U64,
            Burn::U32,
            Burn::U16,
            Burn::U8,
            Burn::Bool(Store::Native),
            Burn::Bool(Store::U8),
            Burn::Bool(Store::U32),
        ];
        let levels = [
            QuantLevel::Tensor,
            QuantLevel::block([]),
            QuantLevel::block([32]),
            QuantLevel::block([2, 255, 1, 7, 9]),
        ];
        let stores = [
            QuantStore::Native,
            QuantStore::PackedNative(1),
            QuantStore::PackedU32(3),
        ];
        for value in VALUES {
            for param in PARAMS {
                for store in stores {
                    for level in levels {
                        let scheme = QuantScheme::default();
                        let scheme = scheme.with_value(value).with_param(param);
                        let scheme = scheme.with_store(store).with_level(level);
                        dtypes.push(Burn::QFloat(scheme));
                    }
                }
            }
        }
        for dtype in dtypes {
            let ours = of_burn(dtype);
            assert_eq!(to_burn(ours), dtype);
            assert_eq!(ours.size(), dtype.size(), "{dtype:?}");
            assert_eq!(ours.name(), dtype.name(), "{dtype:?}");
            assert_eq!(ours.is_float(), dtype.is_float(), "{dtype:?}");
            assert_eq!(ours.is_bool(), dtype.is_bool(), "{dtype:?}");
        }
    }
}
