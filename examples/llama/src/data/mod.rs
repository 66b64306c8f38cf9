//! What the model learns from: generated or read examples, their tokens, and batches of them.

pub mod batch;
pub mod generate;
pub mod jsonl;
pub mod rng;
pub mod tokenizer;

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
