//! A folder that only this user can enter.

use super::rendezvous::Token;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder in the system's temporary one that only this user can enter and nobody can foresee the name of; vanishes
/// when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes one, whose name starts with `name`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let random = Token::random()?;
        let name = format!("{name}-{}-{}", std::process::id(), &random.secret()[..8]);
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Makes one of the same name in the system's shared memory.
    ///
    /// # Errors
    /// The system's; there is no such place.
    pub(crate) fn in_shared_memory(&self) -> io::Result<Self> {
        let path = in_shared_memory(&self.0)?;
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Returns where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Returns where [`Folder::in_shared_memory`] of this folder is.
///
/// # Errors
/// There is no such place on this system.
pub(crate) fn in_shared_memory(folder: &Path) -> io::Result<PathBuf> {
    const MEMORY: &str = "/dev/shm";
    let name = folder.file_name().filter(|_| Path::new(MEMORY).is_dir());
    let name = name.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    Ok(Path::new(MEMORY).join(name))
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_is_its_users_and_goes_with_its_value() {
        let folder = Folder::new("burn-dist-test").expect("a temporary folder");
        let other = Folder::new("burn-dist-test").expect("a temporary folder");
        assert_ne!(folder.path(), other.path());
        let path = folder.path().to_path_buf();
        let mode = std::fs::metadata(&path).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        std::fs::write(path.join("file"), b"inside").expect("own folder");
        drop(folder);
        assert!(!path.exists() && other.path().exists());
    }
}
