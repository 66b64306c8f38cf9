//! Sources: documents, and how they are read.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::document::Document;
use super::format::{Bytes, Fields, Format, Open, Split};

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
    /// A file of this format.
    pub fn file(path: &Path, format: Format) -> Self {
        let owned = path.to_path_buf();
        let open = move || -> io::Result<Box<dyn Bytes>> {
            let file = File::open(&owned)?;
            match file.metadata()?.is_file() {
                true => Ok(Box::new(file)),
                false => Err(io::Error::other(
                    "it is no regular file, and documents are read from their places in one",
                )),
            }
        };
        Self::bytes(&path.display().to_string(), format, open)
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
}

/// Where a document begins: a byte of a file, a row of Parquet, an index in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentPlace(pub(super) u64);
