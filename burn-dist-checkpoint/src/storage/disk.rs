//! The file system.

use super::{ReadFile, Storage, WriteFile};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write};
use std::path::Path;

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        self.create_dir(parent)?;
        match fs::create_dir(path) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.sync_dir(parent),
        }
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(Written(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        read(open_ordinary(path, Links::Refused)?)
    }

    fn open_linked(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        read(open_ordinary(path, Links::Followed)?)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        // An empty directory would be replaced.
        match fs::symlink_metadata(to) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::rename(from, to),
            Err(error) => Err(error),
        }
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // Only Unix opens directories; elsewhere the names are kept with the files.
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        match cfg!(unix) {
            true => File::open(path)?.sync_all(),
            false => Ok(()),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, holder(&mut file)));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let text = format!(
            "process {} on {}\n",
            std::process::id(),
            gethostname::gethostname().display()
        );
        // Read by people and by whoever is refused: a full disk is no reason to refuse the one that has the lock.
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "the file cannot say who has it");
        }
        Ok(Box::new(Locked(file)))
    }
}

/// A file that this program has locked.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing it is not enough: a process that is being started has it open until it runs its own program.
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "a lock is released only when its file is closed");
        }
    }
}

/// Returns the program that has it, by what the file says.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // Where a lock keeps readers out too, nobody can say.
    let read = file.take(1 << 10).read_to_string(&mut text);
    match text.lines().next() {
        Some(line) if read.is_ok() && line.starts_with("process ") => line.to_string(),
        _ => "another program".to_string(),
    }
}

/// The meaning of a symbolic link: itself, or what it leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Followed,
    Refused,
}

fn read(file: File) -> io::Result<Box<dyn ReadFile>> {
    let num_bytes = file.metadata()?.len();
    Ok(Box::new(Read { file, num_bytes }))
}

/// Opens an ordinary file; does not wait for what is behind a pipe.
#[cfg(unix)]
fn open_ordinary(path: &Path, links: Links) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};

    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags.set(OFlags::NOFOLLOW, links == Links::Refused);
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(not_ordinary()),
        Err(error) => return Err(error.into()),
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(not_ordinary()),
    }
}

#[cfg(not(unix))]
fn open_ordinary(path: &Path, links: Links) -> io::Result<File> {
    let metadata = match links {
        Links::Followed => fs::metadata(path),
        Links::Refused => fs::symlink_metadata(path),
    };
    match metadata?.is_file() {
        true => File::open(path),
        false => Err(not_ordinary()),
    }
}

fn not_ordinary() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "not an ordinary file: links and pipes are not followed",
    )
}

struct Written(File);

impl WriteFile for Written {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}

struct Read {
    file: File,
    num_bytes: u64,
}

impl ReadFile for Read {
    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    #[cfg(unix)]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    buffer = &mut buffer[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_released_while_processes_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = File::create(&path).unwrap();
        file.lock().unwrap();
        // As such a process has it.
        let _open = file.try_clone().unwrap();
        let lock = Locked(file);
        assert!(Disk.lock(&path).is_err());
        drop(lock);
        assert!(Disk.lock(&path).is_ok());
    }
}
