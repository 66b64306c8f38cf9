//! The data that the model learns from: generated or read documents, their tokens, and batches of them.

pub mod file;
pub mod generate;
pub mod tokenizer;
pub mod tokens;

use burn_dist::train::corpus::{CorpusError, DOCUMENT_BYTES_MAX, Document, Source};

/// A question and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The family it was generated from; `None` if it was read from a file.
    pub kind: Option<&'static str>,
    /// The input of the model.
    pub prompt: String,
    /// The answer that it should give.
    pub response: String,
}

impl From<&Example> for Document {
    fn from(example: &Example) -> Self {
        Self::Pair {
            prompt: example.prompt.clone(),
            response: example.response.clone(),
        }
    }
}

/// A document as plain text.
pub fn plain(document: &Document) -> String {
    match document {
        Document::Text(text) => text.clone(),
        Document::Pair { prompt, response } => format!("{prompt} {response}").trim().to_string(),
    }
}

/// Bytes of text that a tokenizer is trained on.
const SAMPLE_BYTES: usize = 8 << 20;

/// Texts of all parts of the sources, enough to train a tokenizer on.
///
/// # Errors
/// If they cannot be read.
pub fn sample(sources: &[Source]) -> Result<Vec<String>, CorpusError> {
    let each = SAMPLE_BYTES / sources.len().max(1);
    let mut texts = Vec::new();
    for source in sources {
        let documents = source.sample(each, DOCUMENT_BYTES_MAX)?;
        texts.extend(documents.iter().map(plain));
    }
    Ok(texts)
}
