//! Documents of a source, one after the other from any place.

mod json;
mod jsonl;
mod lines;
mod memory;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "no_parquet.rs"]
mod parquet;
mod reader;
mod text;

pub(super) use reader::Reader;

use super::error::CorpusError;
use super::format::Format;
use super::source::{Origin, Source};

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
