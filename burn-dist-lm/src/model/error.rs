//! Shapes that no model has.

use thiserror::Error;

/// A shape that no model has.
#[derive(Error, PartialEq)]
pub enum ConfigError {
    /// The heads do not fill the width.
    #[error("dim {dim} is not a multiple of {heads} heads: choose a head count that divides it")]
    HeadsDoNotDivideDim {
        /// The model width.
        dim: usize,
        /// The number of query heads.
        heads: usize,
    },
    /// Query heads cannot be grouped.
    #[error(
        "{heads} heads cannot share {kv_heads} key/value heads: choose kv heads that divide the heads"
    )]
    KvHeadsDoNotDivideHeads {
        /// The number of query heads.
        heads: usize,
        /// The number of key/value heads.
        kv_heads: usize,
    },
    /// Rotary positions turn pairs.
    #[error("the head width {head_dim} is odd: rotary positions need pairs of elements")]
    OddHead {
        /// The width of one head.
        head_dim: usize,
    },
    /// A size is zero.
    #[error("{what} is 0: every size of a model must be at least 1")]
    Zero {
        /// Which one.
        what: &'static str,
    },
    /// A size is beyond any model's.
    #[error("{what} is {found}, and models of up to {limit} can be built here")]
    TooLarge {
        /// Which one.
        what: &'static str,
        /// The size asked for.
        found: usize,
        /// The most there can be.
        limit: usize,
    },
    /// A number with which nothing can be computed.
    #[error("{what} is {found}, and has to be a number above {floor}")]
    TooSmall {
        /// Which one.
        what: &'static str,
        /// Its value.
        found: f64,
        /// The number that it has to be above.
        floor: f64,
    },
}

burn_dist_mesh::debug_by_message!(ConfigError);
