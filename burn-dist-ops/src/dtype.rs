//! Element types in Burn's terms and in ours.

use super::scheme::{decode, encode};
use crate::plan::Float;
use burn_dist_mesh::{BoolStore, DType, Quantized};

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
pub fn bool_store(store: burn_std::BoolStore) -> BoolStore {
    match store {
        burn_std::BoolStore::Native => BoolStore::Native,
        burn_std::BoolStore::U8 => BoolStore::U8,
        burn_std::BoolStore::U32 => BoolStore::U32,
    }
}

/// Returns Burn's name of a float type.
pub fn of_float(float: Float) -> burn_std::DType {
    match float {
        Float::F32 => burn_std::DType::F32,
        Float::F16 => burn_std::DType::F16,
        Float::BF16 => burn_std::DType::BF16,
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
        dtypes.extend(crate::scheme::all().into_iter().map(Burn::QFloat));
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
