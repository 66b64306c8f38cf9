//! The bytes of a file as Parquet's reader asks for them.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

/// A footer is no longer than this and the 32nd part of its file: what is made of it takes a hundred times as much.
const FOOTER_BYTES_MAX: u64 = 512 << 10;

/// Bytes that can be read from any place.
trait ReadSeek: Read + Seek + Send {}

impl<T: Read + Seek + Send> ReadSeek for T {}

/// Bytes from any place, as Parquet's reader asks for them.
#[derive(Clone)]
pub(super) struct Chunks {
    bytes: Arc<Mutex<Box<dyn ReadSeek>>>,
    len: u64,
}

impl Chunks {
    pub(super) fn new(bytes: impl Read + Seek + Send + 'static, len: u64) -> Self {
        let bytes: Box<dyn ReadSeek> = Box::new(bytes);
        let bytes = Arc::new(Mutex::new(bytes));
        Self { bytes, len }
    }

    fn at(&self, start: u64) -> io::Result<MutexGuard<'_, Box<dyn ReadSeek>>> {
        // Whoever reads goes to its place first, whatever a panic has left.
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.seek(SeekFrom::Start(start))?;
        Ok(bytes)
    }
}

impl Chunks {
    /// Checks that the footer, whose length the file ends with, is no longer than it may be.
    pub(super) fn check_footer(&self) -> io::Result<()> {
        let Some(at) = self.len.checked_sub(8) else {
            // No file of Parquet is so short, as its reader says.
            return Ok(());
        };
        let mut end = [0; 8];
        self.at(at)?.read_exact(&mut end)?;
        let [l0, l1, l2, l3, ..] = end;
        let (length, max) = (
            u64::from(u32::from_le_bytes([l0, l1, l2, l3])),
            FOOTER_BYTES_MAX + self.len / 32,
        );
        match length <= max {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "its footer would be of {length} bytes, of at most {max}: write larger groups of rows"
                ),
            )),
        }
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Chunks {
    type T = io::BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let from = From {
            chunks: self.clone(),
            at: start,
        };
        Ok(io::BufReader::with_capacity(4 << 10, from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<bytes::Bytes, ParquetError> {
        if start
            .checked_add(length as u64)
            .is_none_or(|end| end > self.len)
        {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {start} are asked for, and there are {}",
                self.len
            )));
        }
        let mut read = vec![0; length];
        self.at(start)?.read_exact(&mut read)?;
        Ok(read.into())
    }
}

/// Bytes one after the other from a place on.
pub(super) struct From {
    chunks: Chunks,
    at: u64,
}

impl From {
    pub(super) fn new(chunks: Chunks, at: u64) -> Self {
        Self { chunks, at }
    }
}

impl Read for From {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.chunks.at(self.at)?.read(to)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for From {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.chunks.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
