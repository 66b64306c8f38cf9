use std::io;

use thiserror::Error;

/// Why an item cannot be read.
pub type ItemError = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no batch.
#[derive(Error)]
#[non_exhaustive]
pub enum DataError {
    /// The data set has no item where its length says that it has one.
    #[error(
        "the data set gave no item at {index}, which lies below its length: can it still be read?"
    )]
    MissingItem {
        /// Where.
        index: usize,
    },
    /// The data set cannot read an item.
    #[error("item {index} of the data set cannot be read: {source}")]
    Item {
        /// Where.
        index: usize,
        /// Why.
        source: ItemError,
    },
    /// An item cannot be written as JSON, to make a fingerprint of it.
    #[error("item {index} of the data set has no fingerprint: give one by `Loader::fingerprint`")]
    NoFingerprint {
        /// Where.
        index: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// There are epochs without end and no batches in them.
    #[error(
        "{samples} samples have no batch of {batch_size}: give data, a smaller batch size, or a number of epochs"
    )]
    NoBatches {
        /// Samples of an epoch.
        samples: usize,
        /// Samples of a batch.
        batch_size: usize,
    },
    /// The system starts no thread.
    #[error("cannot start {num_workers} threads that load data: choose fewer workers")]
    NoThread {
        /// How many there should be.
        num_workers: usize,
        /// Why.
        source: io::Error,
    },
}

burn_dist_mesh::debug_by_message!(DataError);
