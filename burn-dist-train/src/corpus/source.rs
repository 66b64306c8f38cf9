//! Sources: documents, and how they are read.

use std::fmt;
use std::io::{self, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use super::archive::{Archive, regular};
use super::document::Document;
use super::error::CorpusError;
use super::format::{Bytes, Fields, Format, Open, Split};
use super::packing::Packing;

/// Documents, and how they are read.
#[derive(Clone)]
pub struct Source {
    pub(super) name: String,
    pub(super) from: Origin,
    pub(super) weight: f64,
    pub(super) fields: Fields,
    pub(super) split: Split,
    pub(super) except: Arc<[u64]>,
}

#[derive(Clone)]
pub(super) enum Origin {
    Bytes { format: Format, open: Open },
    Memory(Arc<[Document]>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .field("weight", &self.weight)
            .field("fields", &self.fields)
            .field("split", &self.split)
            .finish_non_exhaustive()
    }
}

impl Source {
    /// A file of this format. One whose name ends in `.gz` or `.zst` is unpacked when it is first read, into the folder
    /// for temporary files; what it holds is there as long as one of these sources.
    pub fn file(path: &Path, format: Format) -> Self {
        let name = path.display().to_string();
        let owned = path.to_path_buf();
        match Packing::of(path) {
            Some((packing, _)) => {
                let archive = Archive::new(owned, packing);
                Self::bytes(&name, format, move || archive.open())
            }
            None => Self::bytes(&name, format, move || Ok(Box::new(regular(&owned)?))),
        }
    }

    /// Bytes of this format from elsewhere; `open` is called on the thread that reads.
    pub fn bytes(
        name: &str,
        format: Format,
        open: impl Fn() -> io::Result<Box<dyn Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::of(
            name,
            Origin::Bytes {
                format,
                open: Arc::new(open),
            },
        )
    }

    /// Documents that are there.
    pub fn memory(name: &str, documents: impl Into<Arc<[Document]>>) -> Self {
        Self::of(name, Origin::Memory(documents.into()))
    }

    fn of(name: &str, from: Origin) -> Self {
        Self {
            name: name.to_string(),
            from,
            weight: 1.0,
            fields: Fields::default(),
            split: Split::default(),
            except: Arc::new([]),
        }
    }

    /// Sets its part of all positions, as against those of the other sources; 1 by default.
    pub fn weight(self, weight: f64) -> Self {
        Self { weight, ..self }
    }

    /// Sets the fields that are read, of JSONL and Parquet.
    pub fn fields(self, fields: Fields) -> Self {
        Self { fields, ..self }
    }

    /// Sets what a document of plain text is.
    pub fn split(self, split: Split) -> Self {
        Self { split, ..self }
    }

    /// Leaves out the documents at these places: what is held out.
    pub fn except(self, places: impl IntoIterator<Item = DocumentPlace>) -> Self {
        let mut except: Vec<u64> = places.into_iter().map(|place| place.0).collect();
        except.sort_unstable();
        Self {
            except: except.into(),
            ..self
        }
    }

    /// Its name in messages: the path of a file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how many bytes it has, those of documents in memory included; of a packed file, those that it holds.
    ///
    /// # Errors
    /// [`CorpusError::Io`] if it cannot be opened.
    pub fn size(&self) -> Result<u64, CorpusError> {
        match &self.from {
            Origin::Memory(documents) => Ok(documents.iter().map(|it| it.len() as u64).sum()),
            Origin::Bytes { open, .. } => {
                let end = open().and_then(|mut bytes| bytes.seek(SeekFrom::End(0)));
                end.map_err(|error| CorpusError::Io {
                    name: self.name.clone(),
                    error,
                })
            }
        }
    }
}

/// Where a document begins: a byte of a file, a row of Parquet, an index in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentPlace(pub(super) u64);
