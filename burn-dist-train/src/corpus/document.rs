use std::error::Error;
use std::ops::Range;

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
    /// The messages of a conversation, as JSON: the answers are to be learnt.
    Chat(String),
}

impl Document {
    /// Bytes of text.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) | Self::Chat(text) => text.len(),
            Self::Pair { prompt, response } => prompt.len() + response.len(),
        }
    }

    /// Returns all of it as one text.
    pub fn plain(&self) -> String {
        match self {
            Self::Text(text) | Self::Chat(text) => text.clone(),
            Self::Pair { prompt, response } => format!("{prompt} {response}").trim().to_string(),
        }
    }

    /// Returns whether there is nothing in it but white space.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) | Self::Chat(text) => text.trim().is_empty(),
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
    /// Which of them are to be learnt, in their order: all of plain text, of a prompt and a response the response, of
    /// a conversation the answers.
    pub learn: Vec<Range<usize>>,
}

impl Encoded {
    /// Returns the ids of a document of which all is to be learnt that comes after the first `learn_from`.
    pub fn new(ids: Vec<u32>, learn_from: usize) -> Self {
        let learn = std::iter::once(learn_from..ids.len()).collect();
        Self { ids, learn }
    }

    /// How many ids are to be learnt.
    pub fn num_learnt(&self) -> usize {
        self.learn.iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns whether an id is to be learnt.
    pub(super) fn learns(&self, index: usize) -> bool {
        let next = self.learn.partition_point(|range| range.end <= index);
        self.learn
            .get(next)
            .is_some_and(|range| range.start <= index)
    }
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
