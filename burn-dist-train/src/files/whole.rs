//! Files that are there as a whole, or as they were before.
//!
//! ```text
//! .report.json.4711.partial     report.json, while process 4711 writes it
//! ```
//!
//! A process that is killed leaves such a file. Whoever writes one holds a lock of the system on it, and whoever writes
//! the same file later, or takes the folder of the run, removes those that nobody holds.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

const PARTIAL: &str = ".partial";

/// A file that a run should leave behind was not written.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct Unwritten(pub io::Error);

burn_dist_mesh::debug_by_message!(Unwritten);

/// Writes a file under another name in its folder, and gives it its own name when all of it is on the disk. If anything
/// fails, that other file is removed, and one that was there before stays as it was.
///
/// A file that is not regular, such as a pipe, is written to directly. Through a symbolic link, its target is replaced.
///
/// # Errors
/// Those of the system and of `write`.
///
/// ```
/// use burn_dist_train::files::write_whole;
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("report.json");
/// write_whole(&path, |to| to.write_all(b"{}"))?;
/// assert_eq!(std::fs::read(&path)?, b"{}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let folder = target.parent().filter(|folder| *folder != Path::new(""));
    sweep(folder.unwrap_or(Path::new(".")), |of| of == name);
    // Hidden, and of this process alone.
    let partial = target.with_file_name(format!(".{name}.{}{PARTIAL}", std::process::id()));
    let written = (|| {
        let file = File::create(&partial)?;
        // Where there are no locks, nobody takes the file for one that was left.
        let _ = file.try_lock();
        let mut file = BufWriter::new(file);
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

/// Removes parts of files that ended processes have left in a folder: of those files that are `wanted`. What cannot be
/// removed is logged; nothing reads it.
pub(crate) fn sweep(folder: &Path, wanted: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of = name.to_str().and_then(written_as);
        if !of.is_some_and(&wanted) {
            continue;
        }
        let path = entry.path();
        // Nobody can lock what a process is writing.
        let is_left = File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if let Some(error) = is_left.then(|| fs::remove_file(&path).err()).flatten() {
            tracing::warn!(
                "{}: what an earlier program has left is not removed: {error}",
                path.display()
            );
        }
    }
}

/// Returns the name of the file that a process writes under this name.
fn written_as(name: &str) -> Option<&str> {
    let rest = name.strip_prefix('.')?.strip_suffix(PARTIAL)?;
    let (of, process) = rest.rsplit_once('.')?;
    let is_number = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !of.is_empty()).then_some(of)
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

    #[test]
    fn what_a_killed_process_has_left_of_a_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let left = [".report.json.1.partial", ".loss.svg.1.partial"];
        // What is no part of a file, and what is one that is being written.
        let stays = [
            ".report.json.partial",
            ".report.json.x.partial",
            ".1.partial",
        ];
        let written = ".report.json.2.partial";
        for name in left.iter().chain(&stays).chain(&[written]) {
            fs::write(at(name), "half").unwrap();
        }
        let writes = File::open(at(written)).unwrap();
        writes.lock().unwrap();
        write_whole(&at("report.json"), |to| to.write_all(b"{}")).unwrap();
        assert!(!at(left[0]).exists() && at(left[1]).exists());
        sweep(dir.path(), |_| true);
        let mut expected = vec!["report.json", written];
        expected.extend(stays);
        expected.sort_unstable();
        assert_eq!(names(dir.path()), expected);
        drop(writes);
        // A folder that is not there has nothing.
        sweep(&at("nowhere"), |_| true);
    }
}
