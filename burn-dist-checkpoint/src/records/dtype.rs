//! Types as Burn's records name them: `F32`, and `Bool` with how it is stored.

use burn_dist_mesh::{BoolStore, DType};

const BOOL: &str = "Bool";

const NAMES: [(&str, DType); 13] = [
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("Flex32", DType::Flex32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("I64", DType::I64),
    ("I32", DType::I32),
    ("I16", DType::I16),
    ("I8", DType::I8),
    ("U64", DType::U64),
    ("U32", DType::U32),
    ("U16", DType::U16),
    ("U8", DType::U8),
];

const STORES: [(&str, BoolStore); 3] = [
    ("Native", BoolStore::Native),
    ("U8", BoolStore::U8),
    ("U32", BoolStore::U32),
];

/// Returns the type of a name, and of what it is stored as if the record says so.
pub(super) fn find(name: &str, store: Option<&str>) -> Option<DType> {
    match store {
        None => NAMES
            .iter()
            .find(|(own, _)| *own == name)
            .map(|(_, dtype)| *dtype),
        Some(store) if name == BOOL => STORES
            .iter()
            .find(|(own, _)| *own == store)
            .map(|(_, store)| DType::Bool(*store)),
        Some(_) => None,
    }
}

/// Returns the name of a type, and of how it is stored; none if records are not written with it.
pub(super) fn name(dtype: DType) -> Option<(&'static str, Option<&'static str>)> {
    match dtype {
        DType::Bool(store) => STORES
            .iter()
            .find(|(_, own)| *own == store)
            .map(|(name, _)| (BOOL, Some(*name))),
        dtype => NAMES
            .iter()
            .find(|(_, own)| *own == dtype)
            .map(|(name, _)| (*name, None)),
    }
}
