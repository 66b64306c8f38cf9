//! Why no random tensor could be made.

use core::ops::Range;

use burn_backend::DType;

/// Why no random tensor could be made.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RandomError {
    /// The bounds of a uniform distribution have nothing between them.
    #[error("no {dtype:?} is in [{low}, {high}): choose finite bounds with low < high")]
    EmptyRange {
        /// The lower bound, inclusive.
        low: f64,
        /// The upper bound, exclusive.
        high: f64,
        /// The dtype, in which the bounds may fall together.
        dtype: DType,
    },
    /// The probability of a Bernoulli distribution is none.
    #[error("{probability} is not a probability: choose one in [0, 1]")]
    Probability {
        /// The probability that was asked for.
        probability: f64,
    },
    /// The parameters of a normal distribution are not finite.
    #[error(
        "no normal distribution has mean {mean} and standard deviation {std}: choose finite numbers"
    )]
    NotFinite {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// The dtype has no random numbers.
    #[error("cannot make random numbers of dtype {dtype:?}: make floats or ints and convert them")]
    UnsupportedDtype {
        /// The type that was asked for.
        dtype: DType,
    },
    /// The region is no part of the tensor.
    #[error(
        "region {region:?} is not inside shape {shape:?}: give one range per dim, within its size"
    )]
    Region {
        /// The region that was asked for.
        region: Vec<Range<usize>>,
        /// The global shape.
        shape: Vec<usize>,
    },
    /// The runs do not have as many elements as the local shape.
    #[error("runs of {found} elements do not fill shape {shape:?} of {expected} elements")]
    Elements {
        /// The local shape.
        shape: Vec<usize>,
        /// The number of elements of the local shape.
        expected: usize,
        /// The number of elements of the runs.
        found: usize,
    },
}

burn_dist_mesh::debug_by_message!(RandomError);
