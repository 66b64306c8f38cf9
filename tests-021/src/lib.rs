//! Models that several test programs train.

pub mod transformer;
pub mod weights;
