use std::collections::BTreeSet;
use std::io::SeekFrom;

use parquet::basic::{Compression, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::schema::types::ColumnDescriptor;

use self::chunks::Chunks;
use super::Reader;
use crate::corpus::document::Document;
use crate::corpus::error::CorpusError;
use crate::corpus::format::{Bytes, Fields};
use crate::corpus::source::Source;
use crate::files::caught;

mod chunks;
mod pages;

/// Whose panics are errors.
const READER: &str = "its reader";
/// Rows that are decoded at a time.
const BATCH: usize = 64;
/// Bytes that a page takes beside one document and one and a half times the file.
const PAGE_BYTES_MORE: u64 = 8 << 20;

/// Opens a Parquet file: its footer is read, and columns are looked for.
pub(super) fn open(
    source: &Source,
    bytes: Box<dyn Bytes>,
    document_bytes_max: usize,
) -> Result<Box<dyn Reader>, CorpusError> {
    caught(READER, || open_file(source, bytes, document_bytes_max)).unwrap_or_else(|reason| {
        let place = source.name.clone();
        Err(CorpusError::Parquet { place, reason })
    })
}

fn open_file(
    source: &Source,
    mut bytes: Box<dyn Bytes>,
    document_bytes_max: usize,
) -> Result<Box<dyn Reader>, CorpusError> {
    let name = source.name.clone();
    let len = bytes
        .seek(SeekFrom::End(0))
        .map_err(|error| CorpusError::Io {
            name: name.clone(),
            error,
        })?;
    let chunks = Chunks::new(bytes, len);
    let damaged = |error: ParquetError| CorpusError::Parquet {
        place: name.clone(),
        reason: error.to_string(),
    };
    chunks
        .check_footer()
        .map_err(|error| damaged(error.into()))?;
    let file = SerializedFileReader::new(chunks.clone()).map_err(damaged)?;
    let metadata = file.metadata();
    let columns = metadata.file_metadata().schema_descr().columns();
    let names: Vec<String> = columns
        .iter()
        .map(|column| column.path().string())
        .collect();
    let find = |column: &str| names.iter().position(|name| name == column);
    let texts: Vec<&str> = match &source.fields {
        Fields::Text(text) => vec![text],
        Fields::Pair { prompt, response } => vec![prompt, response],
        Fields::Dialogue => vec!["prompt", "response"],
        Fields::Messages(messages) => vec![messages],
        Fields::Usual if find("text").is_none() && find("prompt").is_some() => {
            vec!["prompt", "response"]
        }
        Fields::Usual => vec!["text"],
    };
    let mut wanted = Vec::with_capacity(texts.len());
    for column in texts {
        let index = find(column).ok_or_else(|| CorpusError::NoColumn {
            name: name.clone(),
            column: column.to_string(),
            columns: names.join(", "),
            naming: source.fields.naming(),
        })?;
        check_texts(&name, column, &columns[index])?;
        for group in metadata.row_groups() {
            let codec = group.column(index).compression();
            let reads = matches!(
                codec,
                Compression::UNCOMPRESSED
                    | Compression::SNAPPY
                    | Compression::GZIP(_)
                    | Compression::LZ4
                    | Compression::LZ4_RAW
            );
            if !reads {
                return Err(CorpusError::Codec {
                    name: name.clone(),
                    column: column.to_string(),
                    codec: codec.to_string().to_lowercase(),
                });
            }
        }
        wanted.push(Column {
            index,
            name: column.to_string(),
            is_optional: columns[index].max_def_level() > 0,
        });
    }
    let mut firsts = vec![0];
    for group in metadata.row_groups() {
        firsts.push(firsts.last().copied().unwrap_or(0) + group.num_rows().max(0) as u64);
    }
    Ok(Box::new(Parquet {
        name,
        file,
        chunks,
        columns: wanted,
        is_chat: matches!(source.fields, Fields::Messages(_)),
        firsts,
        checked: BTreeSet::new(),
        len,
        at: 0,
        open: None,
        document_bytes_max,
    }))
}

/// A column of texts holds one for each row, or none.
fn check_texts(name: &str, column: &str, found: &ColumnDescriptor) -> Result<(), CorpusError> {
    let holds = if found.max_rep_level() > 0 {
        "lists".to_string()
    } else if found.max_def_level() > 1 {
        "parts of structures".to_string()
    } else if found.physical_type() != Type::BYTE_ARRAY {
        found.physical_type().to_string()
    } else {
        return Ok(());
    };
    Err(CorpusError::NoTexts {
        name: name.to_string(),
        column: column.to_string(),
        holds,
    })
}

/// A document a row; a place is a row of the file.
struct Parquet {
    name: String,
    file: SerializedFileReader<Chunks>,
    chunks: Chunks,
    /// The text, prompt and response, or messages.
    columns: Vec<Column>,
    /// True if the one column has the JSON of messages.
    is_chat: bool,
    /// The first row of each group, and how many rows there are.
    firsts: Vec<u64>,
    /// The groups whose pages are known to be no larger than they may be.
    checked: BTreeSet<usize>,
    len: u64,
    at: u64,
    open: Option<Open>,
    document_bytes_max: usize,
}

struct Column {
    index: usize,
    name: String,
    is_optional: bool,
}

/// The group that is being read: its columns from a row on, and what was decoded of them before that row.
struct Open {
    group: usize,
    readers: Vec<ColumnReaderImpl<ByteArrayType>>,
    /// The row of the file that is decoded next.
    next: u64,
    /// Decoded rows up to there, column by column.
    decoded: Vec<Vec<Option<ByteArray>>>,
}

impl Parquet {
    fn end(&self) -> u64 {
        self.firsts.last().copied().unwrap_or(0)
    }

    fn damaged(&self, reason: impl ToString) -> CorpusError {
        CorpusError::Parquet {
            place: self.row(self.at),
            reason: reason.to_string(),
        }
    }

    fn row(&self, at: u64) -> String {
        format!("{}, row {}", self.name, at + 1)
    }

    /// Opens the group of the row that it is at, and goes there.
    fn open_group(&mut self) -> Result<Open, CorpusError> {
        let group = self.firsts.partition_point(|first| *first <= self.at) - 1;
        if !self.checked.contains(&group) {
            self.check_pages(group)?;
            self.checked.insert(group);
        }
        let reader = self.file.get_row_group(group);
        let reader = reader.map_err(|error| self.damaged(error))?;
        let mut readers = Vec::with_capacity(self.columns.len());
        let before = (self.at - self.firsts[group]) as usize;
        for column in &self.columns {
            let found = reader.get_column_reader(column.index);
            let ColumnReader::ByteArrayColumnReader(mut found) =
                found.map_err(|error| self.damaged(error))?
            else {
                return Err(self.damaged(format!("column `{}` holds no texts here", column.name)));
            };
            let skipped = found.skip_records(before);
            let skipped = skipped.map_err(|error| self.damaged(error))?;
            if skipped != before {
                return Err(self.damaged(format!("{skipped} rows come before it, not {before}")));
            }
            readers.push(found);
        }
        Ok(Open {
            group,
            readers,
            next: self.at,
            decoded: vec![Vec::new(); self.columns.len()],
        })
    }

    /// Checks the pages of all columns of a group.
    fn check_pages(&self, group: usize) -> Result<(), CorpusError> {
        let document = self.document_bytes_max as u64;
        let all = PAGE_BYTES_MORE
            .saturating_add(document)
            .saturating_add(self.len.saturating_mul(3) / 2);
        let max = all / self.columns.len().max(1) as u64;
        for column in &self.columns {
            let chunk = self.file.metadata().row_group(group).column(column.index);
            let checked = pages::check(&self.chunks, chunk.byte_range(), chunk.compression(), max);
            checked.map_err(|error| self.damaged(format!("column `{}`: {error}", column.name)))?;
        }
        Ok(())
    }

    /// The texts of the row that it is at.
    fn texts(&mut self) -> Result<Vec<Option<ByteArray>>, CorpusError> {
        let mut open = match self.open.take() {
            Some(open) if self.at < self.firsts[open.group + 1] => open,
            _ => self.open_group()?,
        };
        if self.at == open.next {
            let rows = (self.firsts[open.group + 1] - open.next).min(BATCH as u64) as usize;
            for (number, column) in self.columns.iter().enumerate() {
                let decoded = decode(&mut open.readers[number], rows, column.is_optional);
                open.decoded[number] = decoded.map_err(|error| self.damaged(error))?;
            }
            open.next += rows as u64;
        }
        let back = (open.next - self.at) as usize;
        let of_row = |column: &Vec<Option<ByteArray>>| column[column.len() - back].clone();
        let texts = open.decoded.iter().map(of_row).collect();
        self.open = Some(open);
        Ok(texts)
    }

    fn text(&self, column: usize, bytes: Option<ByteArray>) -> Result<Option<String>, CorpusError> {
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        if bytes.len() > self.document_bytes_max {
            return Err(self.malformed(format!(
                "its text of {} bytes is longer than {} bytes: allow more",
                bytes.len(),
                self.document_bytes_max
            )));
        }
        match std::str::from_utf8(bytes.data()) {
            Ok(text) => Ok(Some(text.to_string())),
            Err(error) => {
                let name = &self.columns[column].name;
                Err(self.malformed(format!("column `{name}` is not UTF-8 ({error})")))
            }
        }
    }

    fn malformed(&self, reason: String) -> CorpusError {
        CorpusError::Malformed {
            place: self.row(self.at),
            reason,
        }
    }

    /// The document of the row that it is at; none if it is blank.
    fn document(&mut self) -> Result<Option<Document>, CorpusError> {
        let texts = self.texts()?.into_iter().enumerate();
        let texts: Vec<Option<String>> = texts
            .map(|(column, bytes)| self.text(column, bytes))
            .collect::<Result<_, _>>()?;
        let document = match <[Option<String>; 2]>::try_from(texts) {
            Ok([Some(prompt), Some(response)]) if !response.trim().is_empty() => {
                Document::Pair { prompt, response }
            }
            Ok([None, None]) => return Ok(None),
            Ok([None, Some(_)]) => {
                return Err(self.malformed(format!("`{}` is missing", self.columns[0].name)));
            }
            Ok([Some(_), _]) => {
                return Err(self.malformed(format!("`{}` is empty", self.columns[1].name)));
            }
            Err(mut texts) => match texts.pop().flatten() {
                Some(messages) if self.is_chat => Document::Chat(messages),
                Some(text) => Document::Text(text),
                None => return Ok(None),
            },
        };
        Ok((!document.is_empty()).then_some(document))
    }
}

/// Decodes rows of a column, all of which there have to be.
fn decode(
    reader: &mut ColumnReaderImpl<ByteArrayType>,
    rows: usize,
    is_optional: bool,
) -> Result<Vec<Option<ByteArray>>, ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let (more, _, _) =
            reader.read_records(rows - read, Some(&mut levels), None, &mut values)?;
        if more == 0 {
            return Err(ParquetError::EOF(format!(
                "{read} rows of {rows} are there"
            )));
        }
        read += more;
    }
    if !is_optional {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    let of_level = |level: &i16| (*level > 0).then(|| values.next()).flatten();
    Ok(levels.iter().map(of_level).collect())
}

impl Reader for Parquet {
    fn end(&self) -> u64 {
        self.end()
    }

    fn bytes(&self) -> u64 {
        self.len
    }

    fn seek(&mut self, at: u64) -> Result<(), CorpusError> {
        // What was decoded before `at` is still there.
        let is_near = |open: &Open| {
            let from = open.next - open.decoded.first().map_or(0, Vec::len) as u64;
            (from..=open.next).contains(&at)
        };
        self.open = self.open.take().filter(is_near);
        self.at = at.min(self.end());
        Ok(())
    }

    fn at(&self) -> u64 {
        self.at
    }

    fn next(&mut self) -> Result<Option<(u64, Document)>, CorpusError> {
        while self.at < self.end() {
            let document = match caught(READER, || self.document()) {
                Ok(document) => document?,
                Err(reason) => {
                    self.open = None;
                    return Err(self.damaged(reason));
                }
            };
            self.at += 1;
            if let Some(document) = document {
                return Ok(Some((self.at - 1, document)));
            }
        }
        Ok(None)
    }

    fn place(&mut self, at: u64) -> String {
        self.row(at)
    }
}

#[cfg(test)]
mod tests;
