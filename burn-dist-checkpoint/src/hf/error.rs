//! Why a folder cannot be used.

use crate::format::HeaderError;

/// A fault of a file of a folder.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FolderProblem {
    /// It is not the JSON of an index.
    #[error("it is not the JSON of an index: {0}")]
    Index(#[from] serde_json::Error),
    /// An index that is longer than any.
    #[error("it would be an index of {bytes} bytes, of at most {max}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// How long it may be.
        max: usize,
    },
    /// It names a file that may be outside of the folder, or is none of safetensors.
    #[error("`{name}` is not the plain name of a safetensors file")]
    FileName {
        /// The name in it.
        name: String,
    },
    /// It says that a tensor is where it is not.
    #[error("it says that {tensor} is in {file}, and it is not")]
    Absent {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A tensor is in two files.
    #[error("{tensor} is also in {other}")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// The other file.
        other: String,
    },
    /// It has no header of a safetensors file, or needs one that is too long.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The data of a tensor do not follow those of the one before, or end before they start.
    #[error("the data of {tensor} are at {from}..{to}, and those before it end at {expected}")]
    Offsets {
        /// The tensor.
        tensor: String,
        /// Where they start.
        from: u64,
        /// Where they end.
        to: u64,
        /// Where they have to start.
        expected: u64,
    },
    /// A tensor has other bytes than its shape and type need.
    #[error("{tensor}, {dtype} {shape:?}, has {bytes} bytes")]
    TensorBytes {
        /// The tensor.
        tensor: String,
        /// The name of the type in the file.
        dtype: String,
        /// Its shape.
        shape: Vec<usize>,
        /// How many it has.
        bytes: u64,
    },
    /// The tensors end elsewhere than the file.
    #[error("it has {found} bytes instead of {expected}: it was cut, or is of another model")]
    Size {
        /// Where the tensors end.
        expected: u64,
        /// Where the file ends.
        found: u64,
    },
    /// A file beside the tensors that cannot have this name.
    #[error("a file beside the tensors cannot be called `{name}`")]
    OtherName {
        /// The name.
        name: String,
    },
    /// Tensors come in another order than the writer has them.
    #[error("{found} is written where {expected} has to come: ask the writer for the order")]
    Order {
        /// Which is next; or none.
        expected: String,
        /// The tensor that came.
        found: String,
    },
    /// Tensors did not come, or not all of their bytes.
    #[error("{missing} bytes of {tensor} were not written")]
    Incomplete {
        /// The tensor.
        tensor: String,
        /// How many.
        missing: u64,
    },
}

burn_dist_mesh::debug_by_message!(FolderProblem);
