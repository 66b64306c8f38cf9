//! Where checkpoints are kept: the few operations on files that saving and loading need.

mod disk;
#[cfg(any(test, feature = "faults"))]
pub mod memory;

pub use disk::Disk;

use std::io;
use std::path::Path;

/// Files and directories.
///
/// Changes that are not synced may be lost or torn when the machine stops. The feature `faults` has storage that does so,
/// for tests.
pub trait Storage: Send + Sync {
    /// Creates a directory and those above it, whose names are then kept whatever happens to the machine. One that is
    /// there is left as it is.
    ///
    /// # Errors
    /// Those of the file system.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Creates a file for writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is something, and those of the file system.
    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>>;
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if this is no ordinary file (a symbolic link, say), and those of the file
    /// system.
    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;
    /// Opens as [`Storage::open`] does, and follows symbolic links: folders of others are made of them.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if what they lead to is no ordinary file, and those of the file system.
    fn open_linked(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;
    /// Returns the names of what is in a directory, in any order; names that are not Unicode are left out.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Renames a directory, at once: before or after, nothing between.
    ///
    /// # Errors
    /// If there is something of the new name, and those of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a file, at once; what file or link has the new name is replaced.
    ///
    /// # Errors
    /// Those of the file system.
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file; a symbolic link is not followed.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Returns once the names in a directory are kept whatever happens to the machine.
    ///
    /// # Errors
    /// Those of the file system.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and everything in it; a symbolic link is not followed.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes a file for this program, and makes it if need be, until what is returned is dropped or the program ends.
    /// The file stays.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if a running program has it, this one included: its text says which.
    /// [`io::ErrorKind::Unsupported`] if there are no locks. Those of the file system.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
}

/// A file that is being written, from its start to its end.
pub trait WriteFile: Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// Those of the file system: [`io::ErrorKind::StorageFull`], for example.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once all of it is kept whatever happens to the machine.
    ///
    /// # Errors
    /// Those of the file system, also of earlier writes.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file that is read at any position, by any number of threads.
pub trait ReadFile: Send + Sync {
    /// Returns its size.
    fn num_bytes(&self) -> u64;
    /// Fills `buffer` with what is at `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before, and those of the file system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}
