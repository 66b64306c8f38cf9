//! Rows of tokens for language models: texts as batches, what is held out of them, and random tokens.
//!
//! A [corpus](crate::train::corpus) makes rows of documents; here each process gets those of its ranks, as batches of
//! [`Batch`]. How texts become tokens is the program's.

mod batch;
mod held_out;
mod questions;
mod reader;
mod texts;

pub use batch::{Batch, BatchTensors, Packed, PackedIds, RandomTokens};
pub use held_out::HeldOut;
pub use questions::questions;
pub use reader::{Reader, sources};
pub use texts::{Shape, Texts};
