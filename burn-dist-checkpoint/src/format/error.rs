//! Why a manifest cannot be used.

use super::Checksum;
use crate::region::{Region, RegionError};

/// A manifest that cannot be read, or whose numbers make no sense.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It starts otherwise.
    #[error("it does not start as the manifest of a checkpoint does")]
    Format,
    /// It is of a later version.
    #[error(
        "it is of version {found} of the format, and this program reads up to {supported}: use a later burn-dist"
    )]
    Version {
        /// Its version.
        found: u64,
        /// The highest that is read.
        supported: u64,
    },
    /// It was changed after it was written.
    #[error("its checksum is {found} instead of {expected}: it was changed after it was written")]
    Checksum {
        /// The checksum that it has for itself.
        expected: Checksum,
        /// The checksum of its bytes.
        found: Checksum,
    },
    /// It is not the JSON of a manifest.
    #[error("it is not the JSON of a manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// Blocks of no bytes, of too many, or of parts of elements.
    #[error("blocks are of {found} bytes instead of a multiple of 8 up to {max}")]
    BlockBytes {
        /// The number in it.
        found: usize,
        /// How many they may have.
        max: usize,
    },
    /// A file that may be outside of the directory, or is none of safetensors.
    #[error("the file `{name}` is not the plain name of a safetensors file")]
    FileName {
        /// The name in it.
        name: String,
    },
    /// A file is listed twice.
    #[error("the file `{name}` is listed twice")]
    DuplicateFile {
        /// Its name.
        name: String,
    },
    /// A header that is longer than its file, or than readers of safetensors accept.
    #[error("the file `{name}` has a header of {header_bytes} bytes and {bytes} bytes in all")]
    FileBytes {
        /// Its name.
        name: String,
        /// The size of its header.
        header_bytes: u64,
        /// Its size.
        bytes: u64,
    },
    /// A key that is no path.
    #[error("`{key}` cannot name a tensor: brackets and control characters are for pieces")]
    Key {
        /// The key.
        key: String,
    },
    /// Keys are not in order, or one is there twice.
    #[error("the tensors are not sorted by key at `{key}`, or it is there twice")]
    KeyOrder {
        /// The second of the two.
        key: String,
    },
    /// A type that there is not.
    #[error("{key}: there is no type `{dtype}`")]
    DType {
        /// The tensor.
        key: String,
        /// The type in it.
        dtype: String,
    },
    /// Factors whose products are not the shape.
    #[error("{key}: the factors {factors:?} do not make up the shape {shape:?}")]
    Factors {
        /// The tensor.
        key: String,
        /// Its factors.
        factors: Vec<Vec<usize>>,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A piece that is no box of the tensor.
    #[error("{key}: {source}")]
    Region {
        /// The tensor.
        key: String,
        /// The fault.
        source: RegionError,
    },
    /// A piece without elements.
    #[error("{key}: the piece {region} has no elements")]
    Empty {
        /// The tensor.
        key: String,
        /// The piece.
        region: Region,
    },
    /// A piece in a file that there is not, or outside of the data of its file.
    #[error("{key}: the piece {region} of {bytes} bytes at {offset} is not in file {file}")]
    Outside {
        /// The tensor.
        key: String,
        /// The piece.
        region: Region,
        /// Index of the file.
        file: usize,
        /// Where it starts.
        offset: u64,
        /// Its size.
        bytes: u64,
    },
    /// Not one checksum for each block.
    #[error("{key}: the piece {region} has {found} checksums for {expected} blocks")]
    Blocks {
        /// The tensor.
        key: String,
        /// The piece.
        region: Region,
        /// How many blocks it has.
        expected: u64,
        /// How many checksums there are.
        found: usize,
    },
    /// Two pieces have an element in common.
    #[error("{key}: the pieces {first} and {second} overlap")]
    Overlap {
        /// The tensor.
        key: String,
        /// One piece.
        first: Box<Region>,
        /// The other.
        second: Box<Region>,
    },
    /// Elements are in no piece.
    #[error("{key}: the pieces have {found} of {expected} elements")]
    Incomplete {
        /// The tensor.
        key: String,
        /// How many it has.
        expected: usize,
        /// How many are in pieces.
        found: usize,
    },
    /// Two pieces have a byte in common.
    #[error("two pieces share byte {offset} of the file `{file}`: one is of {key}")]
    SharedBytes {
        /// The file.
        file: String,
        /// The first byte that they share.
        offset: u64,
        /// A tensor that it belongs to.
        key: String,
    },
    /// More dims than are read.
    #[error("{key}: a grid of {dims} dims, and at most {max} are read")]
    TooManyDims {
        /// The tensor.
        key: String,
        /// How many it has.
        dims: usize,
        /// How many it may have.
        max: usize,
    },
    /// Pieces that lie so that nobody can tell in time whether two overlap.
    #[error(
        "{key}: its {pieces} pieces lie in no order in which it can be told whether two overlap"
    )]
    Tangled {
        /// The tensor.
        key: String,
        /// How many there are.
        pieces: usize,
    },
    /// A manifest that is longer than any that is read.
    #[error(
        "it would be of {bytes} bytes, of at most {max}: save fewer tensors, or to fewer writers"
    )]
    TooLong {
        /// How long it would be.
        bytes: u64,
        /// How long it may be.
        max: usize,
    },
    /// The tensors have more bytes than can be counted.
    #[error("the tensors have more bytes than fit 64 bits")]
    TooLarge,
}

burn_dist_mesh::debug_by_message!(ManifestError);
