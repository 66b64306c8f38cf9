//! A file to which records are appended, each all of it or nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file at whose end whole records are put.
#[derive(Debug)]
pub(super) struct Append {
    path: PathBuf,
    file: File,
    /// Bytes of whole records.
    len: u64,
    /// True if a part of a record may follow them.
    is_torn: bool,
}

impl Append {
    /// Opens a file, and makes it if need be.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self {
            path: path.to_path_buf(),
            len: file.metadata()?.len(),
            file,
            is_torn: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a record at the end. If it does not fit, the part that did is taken away: now, or before the next one.
    pub(super) fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.mend()?;
        match self.file.write_all(record) {
            Ok(()) => {
                self.len += record.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.is_torn = true;
                // The first error counts; the next record meets this one again.
                let _ = self.mend();
                Err(error)
            }
        }
    }

    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.len)?;
            self.is_torn = false;
        }
        Ok(())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.mend()?;
        self.file.sync_all()
    }
}
