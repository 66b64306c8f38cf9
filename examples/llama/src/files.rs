//! Files that are there as a whole, or as they were before; and what stands before a text.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The bytes of a text, without the mark of the byte order that some programs put before UTF-8.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

/// A file that a run should leave behind was not written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unwritten(pub io::Error);

/// Writes a file under another name in its folder, and gives it its own name when all of it is on the disk. If anything
/// fails, that other file is removed, and one that was there before stays as it was.
///
/// What is no regular file, such as a pipe, is written to directly. Through a symbolic link, its target is replaced.
///
/// # Errors
/// Those of the system and of `write`.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Unwritten> {
    whole(path, write).map_err(Unwritten)
}

fn whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let before = fs::metadata(path).ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        let mut file = BufWriter::new(OpenOptions::new().write(true).open(path)?);
        write(&mut file)?;
        return file.flush();
    }
    let target = match before {
        Some(_) => fs::canonicalize(path)?,
        None => path.to_path_buf(),
    };
    let partial = partial(&target);
    let written = (|| {
        let mut file = BufWriter::new(File::create(&partial)?);
        write(&mut file)?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        if let Some(before) = &before {
            file.set_permissions(before.permissions())?;
        }
        // Only then is it known that all of it fitted.
        file.sync_all()?;
        fs::rename(&partial, &target)
    })();
    if written.is_err() {
        // The first error counts; what cannot be removed is hidden, and nothing reads it.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// The name under which a file is written: hidden, and of this process alone.
fn partial(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

/// A text of a file as messages have it: no more than a few lines.
pub fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 400;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_written_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loss.svg");
        // As on a disk that is full after so many bytes: 0 of them, or more than a buffer holds.
        for bytes in [0, 3, 100_000] {
            let full = |to: &mut dyn Write| {
                to.write_all(&vec![b'x'; bytes])?;
                Err(io::Error::from(io::ErrorKind::StorageFull))
            };
            let error = write_whole(&path, full).unwrap_err();
            assert_eq!(error.0.kind(), io::ErrorKind::StorageFull);
            assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
        }
        write_whole(&path, |to| to.write_all(b"first")).unwrap();
        let full = |to: &mut dyn Write| {
            to.write_all(b"second")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        write_whole(&path, full).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        write_whole(&path, |to| to.write_all(b"third")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert_eq!(names(dir.path()), ["loss.svg"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_links_and_devices_stay_devices() {
        use std::os::unix::fs::{FileTypeExt, symlink};

        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "before").unwrap();
        symlink(&target, &link).unwrap();
        write_whole(&link, |to| to.write_all(b"after")).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        let device = dir.path().join("device");
        symlink("/dev/null", &device).unwrap();
        write_whole(&device, |to| to.write_all(b"gone")).unwrap();
        let kind = fs::metadata(&device).unwrap().file_type();
        assert!(kind.is_char_device());
        assert_eq!(names(dir.path()), ["device", "link", "target"]);
    }
}
