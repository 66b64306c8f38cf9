//! Formats of the files of a checkpoint: the manifest, headers of safetensors files, keys, checksums.
//!
//! `docs/checkpoint-format.md` specifies all of it byte by byte.

mod bounded;
mod check;
mod checksum;
mod dtype;
mod error;
mod finite;
mod header;
mod key;
mod manifest;
mod overlap;
mod save_id;
#[cfg(test)]
mod tests;

pub use checksum::{BLOCK_BYTES_MAX, Checksum};
pub use error::ManifestError;
pub use finite::NonFinite;
pub use header::HeaderError;
pub use manifest::{FileEntry, Manifest, PieceEntry, TensorEntry, VERSION};
pub use save_id::SaveId;

pub(crate) use bounded::{DIMS_MAX, dims, push};
pub(crate) use check::is_file_name;
pub(crate) use checksum::{BlockHasher, block_bytes, checksum, list as checksum_list};
pub(crate) use dtype::{dtype_of, dtype_of_safetensors, safetensors_name};
pub(crate) use finite::Tally;
pub(crate) use header::{HEADER_BYTES_MAX, Header, PREFIX_BYTES};
pub(crate) use key::{is_key, piece_name};
pub(crate) use manifest::{MANIFEST_BYTES_MAX, local_shape};

/// The name of the manifest in the directory of a checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// The name of the format in manifests and files.
pub(crate) const FORMAT: &str = "burn-dist-checkpoint";

/// Returns the name of the file that writer `index` of `count` makes.
pub(crate) fn file_name(index: usize, count: usize) -> String {
    format!("{index:05}-of-{count:05}.safetensors")
}
