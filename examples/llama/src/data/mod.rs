//! What the model learns from: generated or read examples, their tokens, and batches of them.

pub mod batch;
pub mod documents;
pub mod generate;
pub mod jsonl;
pub mod rng;
pub mod tokenizer;

use std::borrow::Cow;
use std::ops::Range;

use crate::processes::Processes;
use jsonl::{JsonlError, Lines};

/// A question and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The family it was generated from; `None` if it was read from a file.
    pub kind: Option<&'static str>,
    /// What the model is given.
    pub prompt: String,
    /// What it should say.
    pub response: String,
}

/// Examples in an order that all processes know.
#[derive(Debug)]
pub enum Examples {
    /// Made from a seed: every process has all of them.
    Made(Vec<Example>),
    /// The lines of a file.
    Read(Lines),
}

impl Examples {
    /// Those that this process sees to, of all that there are.
    pub fn mine(&self, processes: &Processes) -> Range<usize> {
        match self {
            Self::Made(examples) => processes.share(examples.len()),
            Self::Read(lines) => lines.mine(),
        }
    }

    /// Returns one of them, reading it if need be.
    ///
    /// # Errors
    /// As [`Lines::get`].
    pub fn get(&self, index: usize) -> Result<Cow<'_, Example>, JsonlError> {
        match self {
            Self::Made(examples) => Ok(Cow::Borrowed(&examples[index])),
            Self::Read(lines) => lines.get(index).map(Cow::Owned),
        }
    }
}
