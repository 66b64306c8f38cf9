//! Language models on a mesh of devices: a decoder of Llama's family in plain Burn style, its tokenizer, its folders as
//! Hugging Face lays them out, and the program that trains, fine-tunes and asks it.
//!
//! The program is `burn-dist-lm`; [`Program`] gives its commands another name.

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
mod program;
pub mod progress;
pub mod report;
pub mod schedule;
pub mod stages;
pub mod train;
pub mod validation;
pub mod voice;

pub use program::Program;

#[cfg(test)]
one_thread::one_thread!();
