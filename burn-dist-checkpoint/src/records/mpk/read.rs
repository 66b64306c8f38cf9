//! Where the tensors of a record are.

use super::cursor::{Cursor, Head};
use super::{DEPTH, PATH_BYTES};
use crate::error::{CheckpointError, io_error};
use crate::format::DIMS_MAX;
use crate::records::{Record, RecordProblem, dtype, id};
use crate::region::Region;
use crate::storage::Storage;
use crate::stored::{Stored, Tensors};
use rmp::Marker;
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor has no more dims.
const DIMS: u32 = DIMS_MAX as u32;
/// A record has no more parameters.
const TENSORS: usize = 500_000;
/// The paths of all parameters have no more bytes than this and the file together.
const PATHS_BYTES: u64 = 32 << 20;

/// Returns whether a file that starts so may be a record.
pub(crate) fn is_start(bytes: &[u8]) -> bool {
    let fields: [&[u8]; 2] = [b"\xa8metadata", b"\xa4item"];
    let first = bytes.first().copied().map(Marker::from_u8);
    let is_map = matches!(first, Some(Marker::FixMap(2..)));
    is_map && fields.iter().any(|field| bytes[1..].starts_with(field))
}

/// Reads what a record says of its tensors.
pub(crate) fn open(storage: &dyn Storage, path: &Path) -> Result<Record, CheckpointError> {
    let file = storage.open_linked(path);
    let file = file.map_err(io_error("open the file", path))?;
    let mut walk = Walk {
        cursor: Cursor::new(&*file, path),
        path: Vec::new(),
        tensors: BTreeMap::new(),
        ids: BTreeMap::new(),
        paths_left: PATHS_BYTES.saturating_add(file.num_bytes()),
        paths_bytes: PATHS_BYTES.saturating_add(file.num_bytes()),
    };
    walk.record()?;
    let (tensors, mut ids) = (walk.tensors, walk.ids);
    ids.retain(|key, _| tensors.contains_key(key));
    let files = vec![(path.to_path_buf(), file)];
    Ok(Record {
        tensors: Tensors { files, tensors },
        ids,
    })
}

struct Walk<'a> {
    cursor: Cursor<'a>,
    /// Names from the item to the value that is read.
    path: Vec<String>,
    tensors: BTreeMap<String, Stored>,
    ids: BTreeMap<String, u64>,
    /// How many bytes paths may still have, and may have in all.
    paths_left: u64,
    paths_bytes: u64,
}

impl Walk<'_> {
    fn record(&mut self) -> Result<(), CheckpointError> {
        let Head::Map(pairs) = self.cursor.head()? else {
            return Err(self.kind("record", 0));
        };
        let mut has_item = false;
        for _ in 0..pairs {
            match self.name()?.as_str() {
                "item" if !has_item => {
                    has_item = true;
                    let head = self.cursor.head()?;
                    self.value(head, 0)?;
                }
                _ => self.pass(0)?,
            }
        }
        let at = self.cursor.at;
        match (has_item, self.cursor.is_end()) {
            (false, _) => Err(self.kind("item", at)),
            (true, false) => Err(self.cursor.problem(RecordProblem::Rest { at })),
            (true, true) => Ok(()),
        }
    }

    /// Reads a value for the tensors in it.
    fn value(&mut self, head: Head, depth: usize) -> Result<(), CheckpointError> {
        self.check_depth(depth)?;
        match head {
            Head::Map(pairs) => {
                for index in 0..pairs {
                    let name = self.name()?;
                    let head = self.cursor.head()?;
                    if let (0, 3, "bytes", Head::Bytes(bytes)) = (index, pairs, &*name, head) {
                        return self.tensor(bytes);
                    }
                    self.path.push(name);
                    self.value(head, depth + 1)?;
                    self.path.pop();
                }
                Ok(())
            }
            Head::Array(values) => {
                for index in 0..values {
                    self.path.push(index.to_string());
                    let head = self.cursor.head()?;
                    self.value(head, depth + 1)?;
                    self.path.pop();
                }
                Ok(())
            }
            Head::Text(length) if length <= 64 && self.path.last().is_some_and(|n| n == "id") => {
                let text = self.cursor.text(length, 64)?;
                if let Some(id) = id::decode(&text) {
                    let key = self.path[..self.path.len() - 1].join(".");
                    self.count_path(&key)?;
                    self.ids.insert(key, id);
                }
                Ok(())
            }
            head => self.rest(head, depth),
        }
    }

    /// Reads a tensor after the start of its bytes.
    fn tensor(&mut self, bytes: u32) -> Result<(), CheckpointError> {
        let offset = self.cursor.at;
        self.cursor.skip(u64::from(bytes))?;
        let (mut shape, mut dtype) = (None, None);
        for _ in 0..2 {
            let at = self.cursor.at;
            match self.name()?.as_str() {
                "shape" if shape.is_none() => shape = Some(self.shape()?),
                "dtype" if dtype.is_none() => dtype = Some(self.dtype()?),
                _ => return Err(self.kind("shape or type of a tensor", at)),
            }
        }
        let (shape, (dtype, store)) = (shape.unwrap_or_default(), dtype.unwrap_or_default());
        let Some((names, "param")) = self.path.split_last().map(|(last, up)| (up, &**last)) else {
            let key = self.path.join(".");
            return Err(self.cursor.problem(RecordProblem::NoParameter { key }));
        };
        let key = names.join(".");
        self.count_path(&key)?;
        let Some(found) = dtype::find(&dtype, store.as_deref()) else {
            let found = dtype;
            return Err(self.cursor.problem(RecordProblem::DType { key, found }));
        };
        let sizes: Option<Vec<usize>> = shape.iter().map(|size| (*size).try_into().ok()).collect();
        let region = sizes.and_then(|sizes| Region::whole(&sizes).ok());
        let expected = region.as_ref().map(|region| region.numel() as u64);
        let expected = expected.and_then(|numel| numel.checked_mul(found.size() as u64));
        let Some(region) = region.filter(|_| expected == Some(u64::from(bytes))) else {
            return Err(self.cursor.problem(RecordProblem::Bytes {
                key,
                bytes: u64::from(bytes),
                at: offset,
                dtype,
                shape,
            }));
        };
        let stored = Stored {
            file: 0,
            offset,
            dtype: Some(found),
            dtype_name: dtype,
            shape: region.grid().to_vec(),
        };
        match self.tensors.insert(key.clone(), stored) {
            Some(_) => Err(self.cursor.problem(RecordProblem::Duplicate { key })),
            None => Ok(()),
        }
    }

    fn shape(&mut self) -> Result<Vec<u64>, CheckpointError> {
        let at = self.cursor.at;
        let dims = match self.cursor.head()? {
            Head::Array(dims) if dims <= DIMS => dims,
            _ => return Err(self.kind("shape", at)),
        };
        let mut shape = Vec::new();
        for _ in 0..dims {
            match self.cursor.head()? {
                Head::Int(size) => shape.push(size),
                _ => return Err(self.kind("shape", at)),
            }
        }
        Ok(shape)
    }

    /// Reads the name of a type, and of how it is stored.
    fn dtype(&mut self) -> Result<(String, Option<String>), CheckpointError> {
        let at = self.cursor.at;
        match self.cursor.head()? {
            Head::Text(length) => Ok((self.cursor.text(length, 64)?, None)),
            Head::Map(1) => {
                let name = self.name()?;
                match self.cursor.head()? {
                    Head::Text(length) => Ok((name, Some(self.cursor.text(length, 64)?))),
                    // How a quantized tensor is stored.
                    head => {
                        self.rest(head, 0)?;
                        Ok((name, None))
                    }
                }
            }
            _ => Err(self.kind("type", at)),
        }
    }

    fn name(&mut self) -> Result<String, CheckpointError> {
        let at = self.cursor.at;
        match self.cursor.head()? {
            Head::Text(length) => self.cursor.text(length, PATH_BYTES),
            _ => Err(self.kind("name", at)),
        }
    }

    /// Passes over a value.
    fn pass(&mut self, depth: usize) -> Result<(), CheckpointError> {
        let head = self.cursor.head()?;
        self.rest(head, depth)
    }

    /// Passes over a value whose start was read.
    fn rest(&mut self, head: Head, depth: usize) -> Result<(), CheckpointError> {
        self.check_depth(depth)?;
        match head {
            Head::Map(pairs) => (0..2 * u64::from(pairs)).try_for_each(|_| self.pass(depth + 1)),
            Head::Array(values) => (0..values).try_for_each(|_| self.pass(depth + 1)),
            Head::Text(bytes) | Head::Bytes(bytes) => self.cursor.skip(u64::from(bytes)),
            Head::Other(bytes) => self.cursor.skip(bytes),
            Head::Int(_) => Ok(()),
        }
    }

    /// Refuses paths that are out of proportion to the file: one name is above any number of parameters.
    fn count_path(&mut self, key: &str) -> Result<(), CheckpointError> {
        let (found, max) = (self.tensors.len().max(self.ids.len()), TENSORS);
        if found == max {
            let found = found + 1;
            return Err(self.cursor.problem(RecordProblem::TooMany { found, max }));
        }
        let left = self.paths_left.checked_sub(key.len() as u64);
        let max = self.paths_bytes;
        self.paths_left = left.ok_or_else(|| self.cursor.problem(RecordProblem::Paths { max }))?;
        Ok(())
    }

    fn check_depth(&self, depth: usize) -> Result<(), CheckpointError> {
        let length: usize = self.path.iter().map(|name| name.len() + 1).sum();
        match depth <= DEPTH && length <= PATH_BYTES {
            true => Ok(()),
            false => Err(self.cursor.problem(RecordProblem::Deep {
                at: self.cursor.at,
                max: DEPTH,
                max_path: PATH_BYTES,
            })),
        }
    }

    fn kind(&self, expected: &'static str, at: u64) -> CheckpointError {
        self.cursor.problem(RecordProblem::Kind { expected, at })
    }
}
