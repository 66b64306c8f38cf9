//! The content of sources: bytes, their format, and what of it is a document.

use std::fmt;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;

use super::choice::named;
use super::error::CorpusError;
use super::packing::Packing;

/// Bytes that can be read from any place.
pub trait Bytes: Read + Seek + Send {}

impl<T: Read + Seek + Send> Bytes for T {}

/// Opens what is read.
pub(super) type Open = Arc<dyn Fn() -> io::Result<Box<dyn Bytes>> + Send + Sync>;

/// The content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One JSON object a line.
    Jsonl,
    /// Plain text.
    Text,
    /// Rows of columns.
    Parquet,
}

impl Format {
    const NAMES: [(&'static str, Self); 3] = [
        ("jsonl", Self::Jsonl),
        ("text", Self::Text),
        ("parquet", Self::Parquet),
    ];

    /// The format that the name of a file tells; that of a packed file, what comes before `.gz` or `.zst`.
    ///
    /// # Errors
    /// [`CorpusError::Format`].
    pub fn of(path: &Path) -> Result<Self, CorpusError> {
        let unpacked = Packing::of(path).map(|(_, unpacked)| unpacked);
        let named = unpacked.as_deref().unwrap_or(path);
        let extension = named.extension().and_then(|extension| extension.to_str());
        match extension {
            Some("jsonl" | "ndjson" | "json") => Ok(Self::Jsonl),
            Some("parquet") => Ok(Self::Parquet),
            Some("txt" | "text" | "md") => Ok(Self::Text),
            _ => Err(CorpusError::Format {
                name: path.display().to_string(),
            }),
        }
    }
}

named!(Format, "jsonl, text and parquet");

/// The documents of plain text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// Lines up to a blank one.
    #[default]
    Paragraph,
    /// Each line.
    Line,
    /// The whole file.
    File,
}

impl Split {
    const NAMES: [(&'static str, Self); 3] = [
        ("paragraph", Self::Paragraph),
        ("line", Self::Line),
        ("file", Self::File),
    ];
}

named!(Split, "paragraph, line and file");

/// Which fields of a JSON object, or columns of a row, are the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fields {
    /// `text` where there is one, otherwise `prompt` and `response`, otherwise `messages`.
    #[default]
    Usual,
    /// `messages` where there are some, otherwise `prompt` and `response`.
    Dialogue,
    /// One field of plain text.
    Text(String),
    /// A prompt and the response to it.
    Pair {
        /// The field of the prompt.
        prompt: String,
        /// The field of the response.
        response: String,
    },
    /// A list of messages.
    Messages(String),
}

impl Fields {
    /// How other fields in the place of these are named, in their text form.
    pub(super) fn naming(&self) -> &'static str {
        match self {
            Self::Usual => "text=NAME, or prompt=NAME,response=NAME, or messages=NAME",
            Self::Dialogue => "prompt=NAME,response=NAME, or messages=NAME",
            Self::Messages(_) => "messages=NAME",
            Self::Text(_) => "text=NAME",
            Self::Pair { .. } => "prompt=NAME,response=NAME",
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("text, or prompt and response"),
            Self::Dialogue => f.write_str("messages, or prompt and response"),
            Self::Messages(messages) => write!(f, "messages={messages}"),
            Self::Text(text) => write!(f, "text={text}"),
            Self::Pair { prompt, response } => write!(f, "prompt={prompt},response={response}"),
        }
    }
}
