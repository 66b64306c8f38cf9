use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use crate::corpus::error::CorpusError;
use crate::corpus::format::Bytes;

/// The mark of the byte order that some programs put before UTF-8, where it says nothing.
const MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
/// Marks of other encodings, the longer of two that begin alike first.
const OTHER_MARKS: [(&[u8], &str); 4] = [
    (&[0xFF, 0xFE, 0, 0], "UTF-32"),
    (&[0, 0, 0xFE, 0xFF], "UTF-32"),
    (&[0xFF, 0xFE], "UTF-16"),
    (&[0xFE, 0xFF], "UTF-16"),
];

/// Bytes that are read at once backwards.
const BACK_BYTES: usize = 4 << 10;

/// Lines of a file of any size, none longer than a limit.
pub(super) struct Lines {
    name: String,
    reader: BufReader<Box<dyn Bytes>>,
    /// Where the first line begins: behind a mark of the byte order.
    begin: u64,
    /// Bytes of the file when it was opened.
    end: u64,
    /// Where the next line begins.
    at: u64,
    line_bytes_max: usize,
    line: Vec<u8>,
}

impl Lines {
    pub(super) fn new(
        name: &str,
        bytes: Box<dyn Bytes>,
        line_bytes_max: usize,
    ) -> Result<Self, CorpusError> {
        let mut lines = Self {
            name: name.to_string(),
            reader: BufReader::with_capacity(64 << 10, bytes),
            begin: 0,
            end: 0,
            at: 0,
            line_bytes_max,
            line: Vec::new(),
        };
        lines.end = lines.io(|reader| reader.seek(SeekFrom::End(0)))?;
        lines.io(|reader| reader.seek(SeekFrom::Start(0)))?;
        let mut first = Vec::new();
        lines.at = lines.io(|reader| reader.take(4).read_to_end(&mut first))? as u64;
        if let Some((_, encoding)) = OTHER_MARKS.iter().find(|(mark, _)| first.starts_with(mark)) {
            return Err(CorpusError::Encoding {
                name: name.to_string(),
                encoding,
            });
        }
        if first.starts_with(&MARK) {
            lines.begin = MARK.len() as u64;
        }
        lines.go(lines.begin)?;
        Ok(lines)
    }

    /// Where the first line begins.
    pub(super) fn begin(&self) -> u64 {
        self.begin
    }

    fn io<T>(
        &mut self,
        work: impl FnOnce(&mut BufReader<Box<dyn Bytes>>) -> io::Result<T>,
    ) -> Result<T, CorpusError> {
        work(&mut self.reader).map_err(|error| CorpusError::Io {
            name: self.name.clone(),
            error,
        })
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn limit(&self) -> usize {
        self.line_bytes_max
    }

    pub(super) fn too_large(&self, at: u64) -> CorpusError {
        CorpusError::TooLarge {
            name: self.name.clone(),
            at,
            limit: self.line_bytes_max,
        }
    }

    /// Goes to the first line that begins at `at` or behind it.
    pub(super) fn seek(&mut self, at: u64) -> Result<(), CorpusError> {
        let at = at.max(self.begin);
        if at == self.at {
            return Ok(());
        }
        // The line of the byte before begins before.
        let from = at.min(self.end).saturating_sub(1).max(self.begin);
        self.go(from)?;
        if at > self.begin {
            self.read()?;
        }
        Ok(())
    }

    /// Goes to a byte, whatever is there. Near ones behind are often in the buffer.
    fn go(&mut self, at: u64) -> Result<(), CorpusError> {
        let by = at as i64 - self.at as i64;
        self.io(|reader| reader.seek_relative(by))?;
        self.at = at;
        Ok(())
    }

    /// The next line with its end, and where it begins.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, CorpusError> {
        let at = self.at;
        self.read()?;
        Ok((!self.line.is_empty()).then_some((at, self.line.as_slice())))
    }

    fn read(&mut self) -> Result<(), CorpusError> {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let most = self.line_bytes_max as u64 + 1;
        let read = self.io(|reader| reader.take(most).read_until(b'\n', &mut line));
        self.line = line;
        let at = self.at;
        self.at += read? as u64;
        match self.line.len() > self.line_bytes_max {
            true => Err(self.too_large(at)),
            false => Ok(()),
        }
    }

    /// Returns whether the line before the one that begins at `at` is blank, or there is none.
    pub(super) fn follows_blank(&mut self, at: u64) -> Result<bool, CorpusError> {
        let here = self.at;
        let mut line_ends = 0;
        let mut before = at;
        let mut block = [0; BACK_BYTES];
        // Block by block: a step back in the file throws away what is buffered.
        let found = 'found: loop {
            if before <= self.begin {
                break true;
            }
            let from = before.saturating_sub(BACK_BYTES as u64).max(self.begin);
            let block = &mut block[..(before - from) as usize];
            self.go(from)?;
            self.io(|reader| reader.read_exact(block))?;
            self.at = before;
            for byte in block.iter().rev() {
                match byte {
                    b'\n' if line_ends == 1 => break 'found true,
                    b'\n' => line_ends += 1,
                    byte if byte.is_ascii_whitespace() => {}
                    _ => break 'found false,
                }
            }
            before = from;
        };
        self.go(here)?;
        Ok(found)
    }

    /// `data.jsonl:7`: reads the file up to there, to count.
    pub(super) fn place(&mut self, at: u64) -> String {
        let name = self.name.clone();
        let mut number = 1;
        let mut count = |lines: &mut Self| -> Result<(), CorpusError> {
            lines.go(0)?;
            let mut left = at;
            while left > 0 {
                let (read, ends) = lines.io(|reader| {
                    let buffer = reader.fill_buf()?;
                    let read = buffer
                        .len()
                        .min(usize::try_from(left).unwrap_or(usize::MAX));
                    let ends = buffer[..read].iter().filter(|byte| **byte == b'\n').count();
                    reader.consume(read);
                    Ok((read, ends))
                })?;
                if read == 0 {
                    break;
                }
                number += ends;
                lines.at += read as u64;
                left -= read as u64;
            }
            Ok(())
        };
        match count(self) {
            Ok(()) => format!("{name}:{number}"),
            Err(_) => format!("{name}, byte {at}"),
        }
    }
}
