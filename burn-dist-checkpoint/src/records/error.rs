//! Why a record cannot be used.

/// A fault of a record, or of what is to be one.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordProblem {
    /// It ends too early.
    #[error("it ends within a value that starts before byte {at}: it was cut")]
    Cut {
        /// Where more was expected.
        at: u64,
    },
    /// A value of another kind than a record has there.
    #[error("there is no {expected} at byte {at}")]
    Kind {
        /// The value that a record has there.
        expected: &'static str,
        /// Where.
        at: u64,
    },
    /// Values within values without end, or names that are longer than any.
    #[error("byte {at} is in more than {max} values, or its path is longer than {max_path} bytes")]
    Deep {
        /// Where.
        at: u64,
        /// How deep values may lie.
        max: usize,
        /// How long a path may be.
        max_path: usize,
    },
    /// More follows where it should end.
    #[error("it goes on after its end at byte {at}")]
    Rest {
        /// Where.
        at: u64,
    },
    /// A tensor that is no parameter of a module.
    #[error(
        "`{key}` is a tensor and no parameter: only records of modules are read, those of optimizers are not"
    )]
    NoParameter {
        /// Its path.
        key: String,
    },
    /// A parameter is there twice.
    #[error("the parameter {key} is there twice")]
    Duplicate {
        /// Its path.
        key: String,
    },
    /// Two parameters have a byte in common.
    #[error("the parameters {key} and {other} share bytes of the file")]
    Overlap {
        /// One of them.
        key: String,
        /// The other.
        other: String,
    },
    /// More values than the parameters of any module have.
    #[error("it has more than {max} values, which is no record of a module")]
    Values {
        /// How many it may have.
        max: u64,
    },
    /// Paths that are longer, all together, than those of any module.
    #[error("the paths of the parameters have more than {max} bytes together")]
    Paths {
        /// How many they may have.
        max: u64,
    },
    /// A type that is not converted.
    #[error("{key}: elements of the type {found} are not converted")]
    DType {
        /// The parameter.
        key: String,
        /// The type in the record.
        found: String,
    },
    /// A parameter has other bytes than its shape and type need, or they are not in the file.
    #[error("{key}: {bytes} bytes at {at} are not the elements of {dtype} {shape:?}")]
    Bytes {
        /// The parameter.
        key: String,
        /// How many it has.
        bytes: u64,
        /// Where they start.
        at: u64,
        /// Its type.
        dtype: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A later version of burnpack.
    #[error("it is of version {found} of burnpack, and this program reads {supported}")]
    Version {
        /// Its version.
        found: u16,
        /// The version that is read.
        supported: u16,
    },
    /// A description that is longer than the file, or than Burn reads.
    #[error("its description would be of {bytes} bytes, of at most {max}")]
    Description {
        /// How long it would be.
        bytes: u64,
        /// How long it may be.
        max: u64,
    },
    /// The description is not that of a burnpack.
    #[error("its description is not that of a burnpack: {0}")]
    Cbor(String),
    /// The path of a parameter is also the start of another's, or has an empty name.
    #[error("{key} is no path for a parameter: a name is empty, or another parameter is below it")]
    Path {
        /// The path.
        key: String,
    },
    /// A tensor that is larger than the format allows.
    #[error(
        "{key} has {bytes} bytes, and this format holds at most {max}: write a checkpoint or a folder"
    )]
    TooLarge {
        /// The parameter.
        key: String,
        /// How many it has.
        bytes: u64,
        /// How many it may have.
        max: u64,
    },
    /// More parameters than are read: of burnpack, by Burn.
    #[error("there are {found} parameters, and at most {max} are read from this format")]
    TooMany {
        /// How many there are.
        found: usize,
        /// How many it reads.
        max: usize,
    },
}

burn_dist_mesh::debug_by_message!(RecordProblem);
