//! Storage in memory that crashes, loses what was not synced, tears writes and fills up: for tests.
//!
//! Every write, sync, rename, creation and removal is counted. Storage that is to crash at one of them does half of it
//! and refuses everything from then on. [`MemoryStorage::restart`] says what is there when the machine is back.

mod calls;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The changes that were not synced and are there after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Nothing.
    Nothing,
    /// All of it.
    Everything,
    /// Some names, and the first part of some files, by this seed; zeros where a file is longer than its data.
    Some(u64),
}

/// Files and directories in memory, and faults.
#[derive(Clone, Default)]
pub struct MemoryStorage {
    state: Arc<Mutex<State>>,
}

#[derive(Clone)]
struct State {
    nodes: Vec<Node>,
    /// Writes and the like so far.
    num_calls: u64,
    crash_at: Option<u64>,
    has_crashed: bool,
    /// Bytes that files may have together.
    capacity: Option<usize>,
    /// Files that a program has; they take no place among the others.
    locked: BTreeSet<PathBuf>,
}

#[derive(Clone)]
enum Node {
    File {
        data: Vec<u8>,
        /// How many bytes a crash cannot take.
        synced: usize,
    },
    Dir(Dir),
}

#[derive(Clone, Default)]
struct Dir {
    entries: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    /// The changes since the last sync.
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

impl Default for State {
    fn default() -> Self {
        Self {
            nodes: vec![Node::Dir(Dir::default())],
            num_calls: 0,
            crash_at: None,
            has_crashed: false,
            capacity: None,
            locked: BTreeSet::new(),
        }
    }
}

impl MemoryStorage {
    /// Creates empty storage.
    pub fn new() -> Self {
        Self::default()
    }

    /// Crashes at the write, sync, rename, creation or removal of this number, counted from now on.
    pub fn crash_at(&self, call: u64) {
        let mut state = self.state();
        state.crash_at = Some(state.num_calls + call);
    }

    /// Returns whether it has crashed.
    pub fn has_crashed(&self) -> bool {
        self.state().has_crashed
    }

    /// Limits the bytes that all files may have together.
    pub fn fill_at(&self, num_bytes: Option<usize>) {
        self.state().capacity = num_bytes;
    }

    /// Returns the bytes of all files, those that were removed included.
    pub fn num_bytes(&self) -> usize {
        self.state().num_bytes()
    }

    /// Returns what is there when the machine is back.
    pub fn restart(&self, survives: Survives) -> Self {
        let mut state = self.state().clone();
        let mut seed = match survives {
            Survives::Some(seed) => seed,
            _ => 0,
        };
        // A step of SplitMix64.
        let mut random = move || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        for node in &mut state.nodes {
            match node {
                Node::File { data, synced } => {
                    let torn = match survives {
                        Survives::Nothing => *synced,
                        Survives::Everything => data.len(),
                        Survives::Some(_) => {
                            let length = |random: u64| {
                                let range = (data.len() - *synced + 1) as u64;
                                *synced + usize::try_from(random % range).unwrap_or(0)
                            };
                            let (kept, size) = (length(random()), length(random()));
                            data.truncate(size.max(kept));
                            data[kept..].fill(0);
                            data.len()
                        }
                    };
                    data.truncate(torn);
                    *synced = data.len();
                }
                Node::Dir(dir) => {
                    for change in std::mem::take(&mut dir.pending) {
                        let is_kept = match survives {
                            Survives::Nothing => false,
                            Survives::Everything => true,
                            Survives::Some(_) => random() % 2 == 0,
                        };
                        if is_kept {
                            apply(&mut dir.durable, change, &dir.entries);
                        }
                    }
                    dir.entries = dir.durable.clone();
                }
            }
        }
        state.crash_at = None;
        state.has_crashed = false;
        state.locked.clear();
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Changes the bytes of a file, as a fault of the disk would.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn corrupt(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut state = self.state();
        let node = state.find(path)?;
        match &mut state.nodes[node] {
            Node::File { data, synced } => {
                change(data);
                *synced = data.len();
                Ok(())
            }
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state, unless the machine has crashed.
    fn running(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        match state.has_crashed {
            true => Err(crashed()),
            false => Ok(state),
        }
    }

    /// Changes one directory, by a call that may be the last.
    fn change(
        &self,
        parent: &Path,
        make: impl FnOnce(&mut State, usize) -> io::Result<Option<Change>>,
    ) -> io::Result<()> {
        let mut state = self.state();
        // A crash may come before or after the change: it is done, and may not survive.
        let crash = state.call()?;
        let dir = state.find(parent)?;
        if let Some(change) = make(&mut state, dir)? {
            let dir = state.dir(dir)?;
            let before = dir.entries.clone();
            apply(&mut dir.entries, change.clone(), &before);
            dir.pending.push(change);
        }
        crash
    }
}

/// Changes names; what a rename without its source moved is found among `all`.
fn apply(names: &mut BTreeMap<String, usize>, change: Change, all: &BTreeMap<String, usize>) {
    match change {
        Change::Link(name, node) => {
            names.insert(name, node);
        }
        Change::Unlink(name) => {
            names.remove(&name);
        }
        Change::Rename(from, to) => {
            if let Some(node) = names.remove(&from).or_else(|| all.get(&to).copied()) {
                names.insert(to, node);
            }
        }
    }
}

impl State {
    /// Counts a call. The inner result is an error if the crash comes with this one.
    fn call(&mut self) -> io::Result<io::Result<()>> {
        if self.has_crashed {
            return Err(crashed());
        }
        self.has_crashed = self.crash_at == Some(self.num_calls);
        self.num_calls += 1;
        match self.has_crashed {
            true => Ok(Err(crashed())),
            false => Ok(Ok(())),
        }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut node = 0;
        for component in path.components() {
            let Component::Normal(name) = component else {
                continue;
            };
            let Node::Dir(dir) = &self.nodes[node] else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            let found = name.to_str().and_then(|name| dir.entries.get(name));
            node = *found.ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    fn dir(&mut self, node: usize) -> io::Result<&mut Dir> {
        match &mut self.nodes[node] {
            Node::Dir(dir) => Ok(dir),
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn num_bytes(&self) -> usize {
        let of = |node: &Node| match node {
            Node::File { data, .. } => data.len(),
            Node::Dir(_) => 0,
        };
        self.nodes.iter().map(of).sum()
    }
}

fn crashed() -> io::Error {
    io::Error::other("the machine has crashed")
}
