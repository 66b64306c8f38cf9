//! MessagePack read from a file, value by value.

use crate::error::{CheckpointError, io_error};
use crate::records::RecordProblem;
use crate::storage::ReadFile;
use rmp::Marker;
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
        Ok(match Marker::from_u8(self.byte()?) {
            Marker::FixPos(number) => Head::Int(u64::from(number)),
            Marker::U8 => Head::Int(self.number(1)?),
            Marker::U16 => Head::Int(self.number(2)?),
            Marker::U32 => Head::Int(self.number(4)?),
            Marker::U64 => Head::Int(self.number(8)?),
            Marker::FixMap(pairs) => Head::Map(u32::from(pairs)),
            Marker::Map16 => Head::Map(self.length(2)?),
            Marker::Map32 => Head::Map(self.length(4)?),
            Marker::FixArray(values) => Head::Array(u32::from(values)),
            Marker::Array16 => Head::Array(self.length(2)?),
            Marker::Array32 => Head::Array(self.length(4)?),
            Marker::FixStr(bytes) => Head::Text(u32::from(bytes)),
            Marker::Str8 => Head::Text(self.length(1)?),
            Marker::Str16 => Head::Text(self.length(2)?),
            Marker::Str32 => Head::Text(self.length(4)?),
            Marker::Bin8 => Head::Bytes(self.length(1)?),
            Marker::Bin16 => Head::Bytes(self.length(2)?),
            Marker::Bin32 => Head::Bytes(self.length(4)?),
            Marker::Null | Marker::False | Marker::True | Marker::FixNeg(_) => Head::Other(0),
            Marker::I8 => Head::Other(1),
            Marker::I16 => Head::Other(2),
            Marker::I32 | Marker::F32 => Head::Other(4),
            Marker::I64 | Marker::F64 => Head::Other(8),
            // A byte says of which type an extension is.
            Marker::FixExt1 => Head::Other(1 + 1),
            Marker::FixExt2 => Head::Other(1 + 2),
            Marker::FixExt4 => Head::Other(1 + 4),
            Marker::FixExt8 => Head::Other(1 + 8),
            Marker::FixExt16 => Head::Other(1 + 16),
            Marker::Ext8 => Head::Other(1 + u64::from(self.length(1)?)),
            Marker::Ext16 => Head::Other(1 + u64::from(self.length(2)?)),
            Marker::Ext32 => Head::Other(1 + u64::from(self.length(4)?)),
            Marker::Reserved => {
                let expected = "value";
                return Err(self.problem(RecordProblem::Kind { expected, at }));
            }
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

    /// Returns whether nothing follows.
    pub(super) fn is_end(&self) -> bool {
        self.at == self.file.num_bytes()
    }

    /// Reads a number of at most four bytes.
    fn length(&mut self, bytes: u32) -> Result<u32, CheckpointError> {
        let number = self.number(bytes)?;
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
