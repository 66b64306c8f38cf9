//! A mixture-of-experts decoder in plain Burn style, as a model of the trainer, and what it takes to train it on a mesh
//! of devices.

pub mod data;
pub mod model;
pub mod program;
pub mod train;
