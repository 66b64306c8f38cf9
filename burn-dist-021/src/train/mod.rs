//! The run around a training loop: configuration, metrics, texts as rows of tokens, the run's folder (feature `train`).

mod step;

pub use burn_dist_train::*;
pub use step::{ClassPeaks, StepFigures};
