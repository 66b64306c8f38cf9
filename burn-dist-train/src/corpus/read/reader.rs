//! Readers: one for each format.

use crate::corpus::document::Document;
use crate::corpus::error::CorpusError;

/// Reads documents from places: what tells where one begins, and rises from each to the next.
pub(in crate::corpus) trait Reader: Send {
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
