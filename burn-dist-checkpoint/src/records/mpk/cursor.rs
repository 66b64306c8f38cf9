//! MessagePack read from a file, value by value.

use crate::error::{CheckpointError, io_error};
use crate::records::RecordProblem;
use crate::storage::ReadFile;
use std::path::Path;

/// So much of the file is in memory.
const WINDOW_BYTES: usize = if cfg!(test) { 16 } else { 1 << 16 };

/// The start of a value: of which kind, and how much follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// So many pairs.
    Map(u32),
    /// So many values.
    Array(u32),
    /// So many bytes of text.
    Text(u32),
    /// So many bytes.
    Bytes(u32),
    /// A number that is not negative; nothing follows.
    Int(u64),
    /// So many bytes of something else.
    Other(u64),
}

/// A place in a file.
pub(super) struct Cursor<'a> {
    file: &'a dyn ReadFile,
    path: &'a Path,
    pub at: u64,
    window: Vec<u8>,
    /// Where the window starts.
    start: u64,
    /// How many values were begun.
    values: u64,
}

/// A record has no more values: its parameters have twenty each. A hole is as many as it has bytes.
const VALUES_MAX: u64 = 32_000_000;

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a dyn ReadFile, path: &'a Path) -> Self {
        Self {
            file,
            path,
            at: 0,
            window: Vec::new(),
            start: 0,
            values: 0,
        }
    }

    pub(super) fn problem(&self, problem: RecordProblem) -> CheckpointError {
        let path = self.path.to_path_buf();
        CheckpointError::Record { path, problem }
    }

    /// Reads the start of the next value.
    pub(super) fn head(&mut self) -> Result<Head, CheckpointError> {
        let at = self.at;
        self.values += 1;
        if self.values > VALUES_MAX {
            let max = VALUES_MAX;
            return Err(self.problem(RecordProblem::Values { max }));
        }
        Ok(match self.byte()? {
            byte @ 0x00..=0x7f => Head::Int(u64::from(byte)),
            byte @ 0x80..=0x8f => Head::Map(u32::from(byte & 15)),
            byte @ 0x90..=0x9f => Head::Array(u32::from(byte & 15)),
            byte @ 0xa0..=0xbf => Head::Text(u32::from(byte & 31)),
            // Nothing, no, yes, and numbers from -32 on.
            0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => Head::Other(0),
            0xc1 => {
                let expected = "value";
                return Err(self.problem(RecordProblem::Kind { expected, at }));
            }
            byte @ 0xc4..=0xc6 => Head::Bytes(self.length(byte - 0xc4)?),
            byte @ 0xc7..=0xc9 => Head::Other(u64::from(self.length(byte - 0xc7)?) + 1),
            0xca => Head::Other(4),
            0xcb => Head::Other(8),
            byte @ 0xcc..=0xcf => Head::Int(self.number(1 << (byte - 0xcc))?),
            byte @ 0xd0..=0xd3 => Head::Other(1 << (byte - 0xd0)),
            byte @ 0xd4..=0xd8 => Head::Other((1 << (byte - 0xd4)) + 1),
            byte @ 0xd9..=0xdb => Head::Text(self.length(byte - 0xd9)?),
            byte @ 0xdc..=0xdd => Head::Array(self.length(byte - 0xdc + 1)?),
            byte @ 0xde..=0xdf => Head::Map(self.length(byte - 0xde + 1)?),
        })
    }

    /// Reads a text of so many bytes.
    pub(super) fn text(&mut self, length: u32, max: usize) -> Result<String, CheckpointError> {
        let at = self.at;
        let kind = RecordProblem::Kind {
            expected: "short text",
            at,
        };
        if length as usize > max {
            return Err(self.problem(kind));
        }
        let mut bytes = Vec::new();
        for _ in 0..length {
            bytes.push(self.byte()?);
        }
        String::from_utf8(bytes).map_err(|_| self.problem(kind))
    }

    /// Goes on after so many bytes.
    pub(super) fn skip(&mut self, bytes: u64) -> Result<(), CheckpointError> {
        let end = self.at.checked_add(bytes);
        let end = end.filter(|end| *end <= self.file.num_bytes());
        let at = self.at;
        self.at = end.ok_or_else(|| self.problem(RecordProblem::Cut { at }))?;
        Ok(())
    }

    /// Whether nothing follows.
    pub(super) fn is_end(&self) -> bool {
        self.at == self.file.num_bytes()
    }

    fn length(&mut self, power: u8) -> Result<u32, CheckpointError> {
        // Of at most four bytes.
        let number = self.number(1 << power)?;
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn number(&mut self, bytes: u32) -> Result<u64, CheckpointError> {
        (0..bytes).try_fold(0, |number, _| Ok(number << 8 | u64::from(self.byte()?)))
    }

    fn byte(&mut self) -> Result<u8, CheckpointError> {
        let is_inside = self.at >= self.start && self.at - self.start < self.window.len() as u64;
        if !is_inside {
            let left = self.file.num_bytes().saturating_sub(self.at);
            let length = usize::try_from(left).map_or(WINDOW_BYTES, |left| left.min(WINDOW_BYTES));
            if length == 0 {
                let at = self.at;
                return Err(self.problem(RecordProblem::Cut { at }));
            }
            self.window.resize(length, 0);
            self.start = self.at;
            let read = self.file.read_at(&mut self.window, self.at);
            read.map_err(io_error("read the file", self.path))?;
        }
        let byte = self.window[(self.at - self.start) as usize];
        self.at += 1;
        Ok(byte)
    }
}
