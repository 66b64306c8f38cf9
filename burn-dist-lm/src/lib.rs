//! Language models on a mesh of devices: a decoder of Llama's family in plain Burn style, its tokenizer, its folders as
//! Hugging Face lays them out, and the program that trains, fine-tunes and asks it.
//!
//! The program is `burn-dist-lm`; [`main`] is that of another name.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod cli;
pub mod commands;
pub mod generate;
pub mod hf;
pub mod model;
pub mod train;

pub use burn_dist::trainer::program::Program;
pub use commands::main;

/// The program `burn-dist-lm`.
pub const PROGRAM: Program = Program {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    about: env!("CARGO_PKG_DESCRIPTION"),
};

#[cfg(test)]
mod tests;

#[cfg(test)]
one_thread::one_thread_per_process!();
