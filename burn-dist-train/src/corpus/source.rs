use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;

use super::choice::named;
use super::document::Document;
use super::error::CorpusError;
use super::read::{self, Reader};

/// What can be read from any place.
pub trait Bytes: Read + Seek + Send {}

impl<T: Read + Seek + Send> Bytes for T {}

/// Opens what is read.
type Open = Arc<dyn Fn() -> io::Result<Box<dyn Bytes>> + Send + Sync>;

/// What a file holds.
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

    /// The format that the name of a file tells.
    ///
    /// # Errors
    /// [`CorpusError::Format`].
    pub fn of(path: &Path) -> Result<Self, CorpusError> {
        let extension = path.extension().and_then(|extension| extension.to_str());
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

/// What a document of plain text is.
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
    /// `text` where there is one, otherwise `prompt` and `response`.
    #[default]
    Usual,
    /// One field of plain text.
    Text(String),
    /// A prompt and the response to it.
    Pair {
        /// The field of the prompt.
        prompt: String,
        /// The field of the response.
        response: String,
    },
}

impl Fields {
    /// `prompt` and `response`.
    pub fn pair() -> Self {
        Self::Pair {
            prompt: "prompt".into(),
            response: "response".into(),
        }
    }

    /// How other fields in the place of these are named, in their text form.
    pub(super) fn naming(&self) -> &'static str {
        match self {
            Self::Usual => "text=NAME, or prompt=NAME,response=NAME",
            Self::Text(_) => "text=NAME",
            Self::Pair { .. } => "prompt=NAME,response=NAME",
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("text, or prompt and response"),
            Self::Text(text) => write!(f, "text={text}"),
            Self::Pair { prompt, response } => write!(f, "prompt={prompt},response={response}"),
        }
    }
}

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
    pub fn except(self, places: impl IntoIterator<Item = Place>) -> Self {
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
        place: Place,
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

/// Where a document begins: a byte of a file, a row of Parquet, an index in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub(super) u64);

/// Documents in order, each with its place.
pub struct Documents {
    reader: Box<dyn Reader>,
    except: Arc<[u64]>,
    ended: bool,
}

impl Iterator for Documents {
    type Item = Result<(Place, Document), CorpusError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.reader.next() {
                Ok(Some((at, _))) if self.except.binary_search(&at).is_ok() => {}
                Ok(Some((at, document))) => return Some(Ok((Place(at), document))),
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
