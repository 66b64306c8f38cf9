//! How large files of folders are.

/// Hugging Face takes no larger files.
pub(in crate::trainer) const SHARD_BYTES: u64 = 5_000_000_000;
/// No settings of a model are longer; what is made of them takes up to a hundred times as much.
pub const CONFIG_BYTES_MAX: u64 = 512 << 10;
/// No file beside the weights is longer: the longest is that of the tokenizer.
pub(super) const BESIDE_BYTES_MAX: u64 = 64 << 20;
