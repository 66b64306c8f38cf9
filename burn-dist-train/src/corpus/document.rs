use std::error::Error;

/// A text of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// All of it is to be learnt.
    Text(String),
    /// A prompt, and the response to it, which alone is to be learnt.
    Pair {
        /// The text that the model gets.
        prompt: String,
        /// The text that it should answer with.
        response: String,
    },
}

impl Document {
    /// Bytes of text.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Pair { prompt, response } => prompt.len() + response.len(),
        }
    }

    /// Returns all of it as one text.
    pub fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Pair { prompt, response } => format!("{prompt} {response}").trim().to_string(),
        }
    }

    /// Returns whether there is nothing in it but white space.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Pair { prompt, response } => {
                prompt.trim().is_empty() && response.trim().is_empty()
            }
        }
    }
}

/// A document as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, those that mark its beginning and its end included.
    pub ids: Vec<u32>,
    /// The first of them that is to be learnt: the length of a prompt, 0 for plain text.
    pub learn_from: usize,
}

/// Why a document has no ids.
pub type EncodeError = Box<dyn Error + Send + Sync>;

/// Makes ids of documents: the tokenizer.
///
/// Equal documents have to give equal ids, in every process. It is called on the thread that reads ahead.
pub trait Encode: Send + Sync {
    /// Returns the ids of a document.
    ///
    /// # Errors
    /// Those of the tokenizer; the corpus adds where the document is.
    fn encode(&self, document: &Document) -> Result<Encoded, EncodeError>;
}

impl<F: Fn(&Document) -> Result<Encoded, EncodeError> + Send + Sync> Encode for F {
    fn encode(&self, document: &Document) -> Result<Encoded, EncodeError> {
        self(document)
    }
}
