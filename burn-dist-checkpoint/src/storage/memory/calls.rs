//! The calls of storage in memory: each changes what is there now, and may be the one that crashes.

use super::{Change, Dir, MemoryStorage, Node};
use crate::storage::{ReadFile, Storage, WriteFile};
use std::io;
use std::path::{Path, PathBuf};

fn split(path: &Path) -> io::Result<(&Path, String)> {
    let name = path.file_name().and_then(|name| name.to_str());
    match (path.parent(), name) {
        (Some(parent), Some(name)) => Ok((parent, name.to_owned())),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

impl Storage for MemoryStorage {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let ancestors: Vec<&Path> = path.ancestors().collect();
        for dir in ancestors.into_iter().rev() {
            let Ok((parent, name)) = split(dir) else {
                continue;
            };
            if self.state().find(dir).is_ok() {
                continue;
            }
            self.change(parent, |state, _| {
                let node = state.add(Node::Dir(Dir::default()));
                Ok(Some(Change::Link(name, node)))
            })?;
            self.sync_dir(parent)?;
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let (parent, name) = split(path)?;
        let mut created = 0;
        self.change(parent, |state, dir| {
            if state.dir(dir)?.entries.contains_key(&name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            let (data, synced) = (Vec::new(), 0);
            created = state.add(Node::File { data, synced });
            Ok(Some(Change::Link(name, created)))
        })?;
        Ok(Box::new(Written(self.clone(), created)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let state = self.running()?;
        match &state.nodes[state.find(path)?] {
            Node::File { data, .. } => Ok(Box::new(Read(data.clone()))),
            Node::Dir(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn open_linked(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.open(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut state = self.running()?;
        let node = state.find(path)?;
        Ok(state.dir(node)?.entries.keys().cloned().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((parent, from), (other, to)) = (split(from)?, split(to)?);
        if parent != other {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        self.change(parent, |state, dir| {
            let entries = &state.dir(dir)?.entries;
            if entries.contains_key(&to) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            if !entries.contains_key(&from) {
                return Err(io::ErrorKind::NotFound.into());
            }
            Ok(Some(Change::Rename(from, to)))
        })
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((parent, from), (other, to)) = (split(from)?, split(to)?);
        if parent != other {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        self.change(parent, |state, dir| {
            match state.dir(dir)?.entries.contains_key(&from) {
                true => Ok(Some(Change::Rename(from, to))),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = split(path)?;
        self.change(parent, |state, dir| {
            match state.dir(dir)?.entries.contains_key(&name) {
                true => Ok(Some(Change::Unlink(name))),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let crash = state.call()?;
        let node = state.find(path)?;
        // At a crash it is as if it had not begun; what is pending may survive anyway.
        crash?;
        let dir = state.dir(node)?;
        dir.durable = dir.entries.clone();
        dir.pending.clear();
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        for name in self.list(path)? {
            let inner = path.join(&name);
            let is_dir = {
                let state = self.state();
                let node = state.find(&inner)?;
                matches!(state.nodes[node], Node::Dir(_))
            };
            match is_dir {
                true => self.remove_dir(&inner)?,
                false => self.change(path, |_, _| Ok(Some(Change::Unlink(name))))?,
            }
        }
        let (parent, name) = split(path)?;
        self.change(parent, |_, _| Ok(Some(Change::Unlink(name))))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let mut state = self.running()?;
        match state.locked.insert(path.to_path_buf()) {
            true => Ok(Box::new(Locked(self.clone(), path.to_path_buf()))),
            false => Err(io::Error::new(io::ErrorKind::WouldBlock, "another program")),
        }
    }
}

struct Locked(MemoryStorage, PathBuf);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.state().locked.remove(&self.1);
    }
}

struct Written(MemoryStorage, usize);

impl WriteFile for Written {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.state();
        let crash = state.call()?;
        let room = state
            .capacity
            .map(|all| all.saturating_sub(state.num_bytes()));
        // Of the write during which the machine crashes or the disk fills up, a part is done.
        let wanted = if crash.is_err() {
            bytes.len() / 2
        } else {
            bytes.len()
        };
        let taken = wanted.min(room.unwrap_or(usize::MAX));
        if let Node::File { data, .. } = &mut state.nodes[self.1] {
            data.extend_from_slice(&bytes[..taken]);
        }
        crash?;
        match taken == wanted {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.0.state();
        state.call()??;
        if let Node::File { data, synced } = &mut state.nodes[self.1] {
            *synced = data.len();
        }
        Ok(())
    }
}

struct Read(Vec<u8>);

impl ReadFile for Read {
    fn num_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let found = start
            .and_then(|start| self.0.get(start..)?.get(..buffer.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        Ok(())
    }
}
