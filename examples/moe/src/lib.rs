//! A mixture-of-experts decoder in plain Burn style, and what it takes to train it on a mesh of devices.

pub mod cli;
pub mod data;
pub mod explain;
pub mod mesh;
pub mod model;
pub mod run;
pub mod train;
