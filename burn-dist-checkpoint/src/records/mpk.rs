//! Named MessagePack, as Burn's `NamedMpkFileRecorder` writes it.
//!
//! ```text
//! {"metadata": {...}, "item": module, "_b": []}
//! module     {field: module | [module, ...] | parameter | nothing, ...}
//! parameter  {"id": text, "param": {"bytes": bytes, "shape": [size, ...], "dtype": "F32" | {"Bool": "Native"}}}
//! ```

mod cursor;
mod read;
mod write;

pub(crate) use read::{is_start, open};
pub(crate) use write::layout;

/// No module lies deeper, and no path is longer.
const DEPTH: usize = 128;
const PATH_BYTES: usize = 1024;
