//! Documents of a source, one after the other from any place.

mod jsonl;
mod lines;
mod memory;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "no_parquet.rs"]
mod parquet;
mod text;

use super::document::Document;
use super::error::CorpusError;
use super::source::{Format, Origin, Source};

/// Reads documents from places: what tells where one begins, and rises from each to the next.
pub(super) trait Reader: Send {
    /// The end of all places.
    fn end(&self) -> u64;

    /// Bytes that the source has, about.
    fn bytes(&self) -> u64;

    /// Goes to the first document that begins at `at` or behind it.
    fn seek(&mut self, at: u64) -> Result<(), CorpusError>;

    /// Where it is: going there again gives the same documents from here on.
    fn at(&self) -> u64;

    /// The next document that is not blank, and where it begins.
    fn next(&mut self) -> Result<Option<(u64, Document)>, CorpusError>;

    /// The place of a document for people: `data.jsonl:7`.
    fn place(&mut self, at: u64) -> String;
}

/// Opens a source.
pub(super) fn open(
    source: &Source,
    document_bytes_max: usize,
) -> Result<Box<dyn Reader>, CorpusError> {
    let (format, open) = match &source.from {
        Origin::Memory(documents) => {
            return Ok(Box::new(memory::Memory::new(
                &source.name,
                documents.clone(),
            )));
        }
        Origin::Bytes { format, open } => (format, open),
    };
    let bytes = open().map_err(|error| CorpusError::Io {
        name: source.name.clone(),
        error,
    })?;
    let lines = |bytes| lines::Lines::new(&source.name, bytes, document_bytes_max);
    Ok(match format {
        Format::Jsonl => Box::new(jsonl::Jsonl::new(lines(bytes)?, source.fields.clone())),
        Format::Text => text::open(lines(bytes)?, source.split),
        Format::Parquet => parquet::open(source, bytes, document_bytes_max)?,
    })
}
