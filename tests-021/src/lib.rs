//! Models that several test programs train.

pub mod llama;
pub mod transformer;
pub mod weights;
