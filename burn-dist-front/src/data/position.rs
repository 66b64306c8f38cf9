use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Samples in an order: what a [`Position`] is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Samples of an epoch.
    pub samples: usize,
    /// The seed that they are shuffled by; `None` if they are not.
    pub seed: Option<u64>,
    /// Distinguishes the data from other data with as many samples, if the loader has a fingerprint.
    pub fingerprint: Option<String>,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples", self.samples)?;
        match self.seed {
            Some(seed) => write!(f, " shuffled by seed {seed}")?,
            None => write!(f, " not shuffled")?,
        }
        match &self.fingerprint {
            Some(fingerprint) => write!(f, " with fingerprint `{fingerprint}`"),
            None => write!(f, " without fingerprint"),
        }
    }
}

/// How much of a stream of epochs has been handed out. It is saved with a checkpoint, as JSON for instance, and says
/// nothing of batches or meshes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Samples of this epoch that have been handed out.
    pub sample: usize,
    /// The stream that this is a position in.
    pub stream: Stream,
}

impl Position {
    /// Checks that this is a position in `stream`.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub fn check(&self, stream: &Stream) -> Result<(), ResumeError> {
        if self.stream != *stream {
            return Err(ResumeError::OtherStream {
                expected: self.stream.clone(),
                found: stream.clone(),
            });
        }
        // The end of an epoch is the beginning of the next.
        if self.sample >= stream.samples.max(1) {
            return Err(ResumeError::Beyond {
                sample: self.sample,
                samples: stream.samples,
            });
        }
        Ok(())
    }
}

/// Why a run cannot go on at a position.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The position is one in other data, or in another order.
    #[error(
        "the position was saved in {expected}, and this is {found}: resume with the same data, seed and fingerprint, \
         or start anew"
    )]
    OtherStream {
        /// The stream of the position.
        expected: Stream,
        /// The stream of the loader.
        found: Stream,
    },
    /// The epoch has not so many samples: no loader has saved this.
    #[error(
        "the position is after {sample} samples of an epoch that has {samples}: it was changed"
    )]
    Beyond {
        /// Samples that the position lies after.
        sample: usize,
        /// Samples of an epoch.
        samples: usize,
    },
}

burn_dist_mesh::debug_by_message!(ResumeError);
