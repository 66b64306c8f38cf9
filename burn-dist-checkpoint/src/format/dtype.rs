//! Types of elements, in manifests and in safetensors files.

use burn_dist_mesh::{BoolStore, DType};

/// The types that a checkpoint can hold. Quantized values are stored as their bytes and scales, by whoever knows them.
const DTYPES: [DType; 16] = [
    DType::F64,
    DType::F32,
    DType::Flex32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
    DType::Bool(BoolStore::U8),
    DType::Bool(BoolStore::U32),
];

/// Returns the type of this [name](DType::name).
pub(crate) fn dtype_of(name: &str) -> Option<DType> {
    DTYPES.into_iter().find(|dtype| dtype.name() == name)
}

/// Returns what safetensors calls a type, or the type of equal bytes if it has no name for it; `None` if quantized.
pub(crate) fn safetensors_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F64 => "F64",
        DType::F32 | DType::Flex32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U64 => "U64",
        DType::U32 | DType::Bool(BoolStore::U32) => "U32",
        DType::U16 => "U16",
        DType::U8 => "U8",
        DType::Bool(BoolStore::Native | BoolStore::U8) => "BOOL",
        DType::Quantized(_) => return None,
    })
}

/// Returns the type that safetensors calls so; `None` if there is none here.
pub(crate) fn dtype_of_safetensors(name: &str) -> Option<DType> {
    let has_name = |dtype: &DType| safetensors_name(*dtype) == Some(name);
    DTYPES.into_iter().find(has_name)
}
