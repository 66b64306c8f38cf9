//! Files of others: none that is read whole is longer than its reader says, whatever its name leads to, and panics of
//! libraries that read one are errors. Files of a run: whole, or as they were before.

mod whole;

pub(crate) use whole::sweep;
pub use whole::{Unwritten, write_whole};

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use thiserror::Error;

/// A line of a run is no longer.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Returns the bytes of a file, of which there may be `max`. Devices and pipes may be read as well: what has no end
/// is too long.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`], which says the limit, and those of the file system.
///
/// ```
/// use burn_dist_train::files;
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("config.json");
/// std::fs::write(&path, "{}")?;
/// assert_eq!(files::read(&path, 2)?, b"{}");
/// assert!(files::read(&path, 1).unwrap_err().to_string().contains("at most 1"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= max {
        true => Ok(bytes),
        false => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is longer than a file of this kind may be: at most {max} bytes are read"),
        )),
    }
}

/// A JSON file that cannot be read or understood.
#[derive(Error)]
pub enum JsonError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{}: {}", path.display(), shown(reason))]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

burn_dist_mesh::debug_by_message!(JsonError);

/// Reads a JSON file as [`read()`] does.
///
/// # Errors
/// [`JsonError`].
pub fn read_json<T: DeserializeOwned>(path: &Path, max: u64) -> Result<T, JsonError> {
    let bytes = read(path, max).map_err(|source| JsonError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    serde_json::from_slice(without_mark(&bytes)).map_err(|error| JsonError::Json {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })
}

/// Returns the bytes of a text, without the mark of the byte order that some programs put before UTF-8.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

/// Returns a text of a file as messages have it: no more than a few lines.
pub fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 400;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

/// Reads a file as [`read()`] does, of text in UTF-8.
///
/// # Errors
/// Those of [`read()`]; [`io::ErrorKind::InvalidData`].
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, max)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Does what may panic within a library that trusts what a file says; the error is the panic's message. What the work
/// had is not to be used again.
///
/// # Errors
/// That `whose` code panicked, and its message.
///
/// ```
/// use burn_dist_train::files::caught;
/// let found = caught("the tokenizer", || [1][std::hint::black_box(1)]);
/// assert!(found.unwrap_err().starts_with("the tokenizer panicked (index out of bounds"));
/// ```
pub fn caught<T>(whose: &str, work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "without a message".to_string());
        format!("{whose} panicked ({text})")
    })
}

/// Appends a line with its end to `line`, as `read_until` does; one that is longer than any of a run is an error.
pub(crate) fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    let read = reader.take(LINE_BYTES_MAX + 1).read_until(b'\n', line)?;
    match read as u64 <= LINE_BYTES_MAX {
        true => Ok(read),
        false => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "a line of a run has at most {LINE_BYTES_MAX} bytes, and one is longer: the file is damaged"
            ),
        )),
    }
}
