//! Language models on a mesh of devices: a decoder of Llama's family in plain Burn style, its tokenizer, its folders as
//! Hugging Face lays them out, and the program that trains, fine-tunes and asks it.
//!
//! The program is `burn-dist-lm`; [`Program`] gives its commands another name.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod cli;
pub mod commands;
pub mod data;
pub mod files;
pub mod generate;
pub mod hf;
pub mod model;
pub mod options;
mod program;
pub mod report;
pub mod train;

pub use program::Program;

#[cfg(test)]
mod tests;

#[cfg(test)]
one_thread::one_thread!();
