//! Documents of a source, in order and by their places.

use std::sync::Arc;

use super::document::Document;
use super::error::CorpusError;
use super::policy::DOCUMENT_BYTES_MAX;
use super::read::{self, Reader};
use super::source::{DocumentPlace, Source};

/// Bytes of text that a tokenizer is trained on.
const SAMPLE_BYTES: usize = 8 << 20;

/// Returns texts of all parts of these sources, enough to train a tokenizer on.
///
/// # Errors
/// Those of reading.
pub fn sample(sources: &[Source]) -> Result<Vec<String>, CorpusError> {
    let each = SAMPLE_BYTES / sources.len().max(1);
    let mut texts = Vec::new();
    for source in sources {
        let documents = source.sample(each, DOCUMENT_BYTES_MAX)?;
        texts.extend(documents.iter().map(Document::plain));
    }
    Ok(texts)
}

impl Source {
    /// Goes through its documents in order, but for those that are left out.
    ///
    /// # Errors
    /// [`CorpusError::Io`] if it cannot be opened.
    pub fn documents(&self, document_bytes_max: usize) -> Result<Documents, CorpusError> {
        Ok(Documents {
            reader: read::open(self, document_bytes_max)?,
            except: Arc::clone(&self.except),
            ended: false,
        })
    }

    /// Reads the document at a place.
    ///
    /// # Errors
    /// Those of reading; [`CorpusError::Position`] if no document begins there.
    pub fn document(
        &self,
        place: DocumentPlace,
        document_bytes_max: usize,
    ) -> Result<Document, CorpusError> {
        let mut reader = read::open(self, document_bytes_max)?;
        reader.seek(place.0)?;
        match reader.next()? {
            Some((at, document)) if at == place.0 => Ok(document),
            _ => Err(CorpusError::Position {
                reason: format!("no document of {} begins at {}", self.name, place.0),
            }),
        }
    }

    /// Up to `bytes` of documents from 64 places all over it, in order: enough to train a tokenizer on.
    ///
    /// # Errors
    /// Those of reading.
    pub fn sample(
        &self,
        bytes: usize,
        document_bytes_max: usize,
    ) -> Result<Vec<Document>, CorpusError> {
        const SPOTS: u64 = 64;
        let mut reader = read::open(self, document_bytes_max)?;
        let end = reader.end();
        let whole = reader.bytes() <= bytes as u64;
        let spots = if whole { 1 } else { SPOTS };
        let mut sample = Vec::new();
        let mut next = 0;
        for spot in 0..spots {
            let border =
                |spot: u64| (u128::from(end) * u128::from(spot) / u128::from(spots)) as u64;
            let mut left = bytes as u64 / spots;
            reader.seek(border(spot).max(next))?;
            while let Some((at, document)) = reader.next()? {
                next = reader.at();
                if at >= border(spot + 1) {
                    // It belongs to the next spot, which begins with it.
                    next = at;
                    break;
                }
                if self.except.binary_search(&at).is_ok() {
                    continue;
                }
                let len = document.len() as u64;
                sample.push(document);
                match whole {
                    true => {}
                    false if len >= left => break,
                    false => left -= len,
                }
            }
        }
        Ok(sample)
    }
}

/// Documents in order, each with its place.
pub struct Documents {
    reader: Box<dyn Reader>,
    except: Arc<[u64]>,
    ended: bool,
}

impl Iterator for Documents {
    type Item = Result<(DocumentPlace, Document), CorpusError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.reader.next() {
                Ok(Some((at, _))) if self.except.binary_search(&at).is_ok() => {}
                Ok(Some((at, document))) => return Some(Ok((DocumentPlace(at), document))),
                Ok(None) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
