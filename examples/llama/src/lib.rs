//! A Llama-3-style model in plain Burn style, and what it takes to train it on a mesh of devices.

pub mod capacity;
pub mod checkpoints;
pub mod cli;
pub mod commands;
pub mod data;
pub mod files;
pub mod generate;
pub mod hf;
pub mod lost;
pub mod mesh;
pub mod metrics;
pub mod model;
pub mod optimizer;
pub mod options;
pub mod plot;
pub mod processes;
pub mod progress;
pub mod report;
pub mod schedule;
pub mod stages;
pub mod train;
pub mod validation;
pub mod voice;

#[cfg(test)]
one_thread::one_thread!();
