use std::sync::Arc;

use super::Reader;
use crate::corpus::document::Document;
use crate::corpus::error::CorpusError;

/// Documents that are there; a place is an index.
pub(super) struct Memory {
    name: String,
    documents: Arc<[Document]>,
    at: usize,
}

impl Memory {
    pub(super) fn new(name: &str, documents: Arc<[Document]>) -> Self {
        Self {
            name: name.to_string(),
            documents,
            at: 0,
        }
    }
}

impl Reader for Memory {
    fn end(&self) -> u64 {
        self.documents.len() as u64
    }

    fn bytes(&self) -> u64 {
        self.documents
            .iter()
            .map(|document| document.len() as u64)
            .sum()
    }

    fn seek(&mut self, at: u64) -> Result<(), CorpusError> {
        self.at = usize::try_from(at).unwrap_or(usize::MAX);
        Ok(())
    }

    fn at(&self) -> u64 {
        self.at as u64
    }

    fn next(&mut self) -> Result<Option<(u64, Document)>, CorpusError> {
        while let Some(document) = self.documents.get(self.at) {
            self.at += 1;
            if !document.is_empty() {
                return Ok(Some((self.at as u64 - 1, document.clone())));
            }
        }
        Ok(None)
    }

    fn place(&mut self, at: u64) -> String {
        format!("{}, document {}", self.name, at + 1)
    }
}
