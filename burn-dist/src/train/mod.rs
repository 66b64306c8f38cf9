//! The run around a training loop: configuration, metrics, texts as rows of tokens, the run's folder (feature `train`).

pub use burn_dist_train::*;
