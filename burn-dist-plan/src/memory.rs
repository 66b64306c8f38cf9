//! Memory of a rank over a window: who holds which buffer, how much of it is what, and the most at once.
//!
//! The [`Ledger`] is the arithmetic that planned and real buffers share. [`account`](crate::account) walks the tasks of
//! a plan with it; a worker whose mesh accounts for memory keeps one over
//! the buffers that its backend really has.
//!
//! Not counted: what a kernel allocates and gives up within one operation, host copies that a read makes, and freed
//! buffers that the transport keeps for the next collective.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

/// The use of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// Parameters and averages of them as they are kept between steps, in pieces or whole.
    AtRest,
    /// Parameters gathered for use.
    Gathered,
    /// Gradients of parameters, accumulated ones included, and what updates parameters and optimizer state with them.
    Gradient,
    /// Values that an optimizer keeps between windows for a parameter: moments, and what they become before a gradient
    /// is added.
    Optimizer,
    /// Values that forward and backward compute: activations, their gradients, temporaries.
    #[default]
    Activation,
    /// Input data, and whatever else is kept between windows.
    Other,
}

impl MemoryClass {
    /// All classes, in order.
    pub const ALL: [Self; 6] = [
        Self::AtRest,
        Self::Gathered,
        Self::Gradient,
        Self::Optimizer,
        Self::Activation,
        Self::Other,
    ];

    /// Returns its name: `at_rest`, `gathered`, `gradient`, `optimizer`, `activation` or `other`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AtRest => "at_rest",
            Self::Gathered => "gathered",
            Self::Gradient => "gradient",
            Self::Optimizer => "optimizer",
            Self::Activation => "activation",
            Self::Other => "other",
        }
    }
}

/// Bytes by class, in the order of [`MemoryClass::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassBytes([u64; 6]);

impl ClassBytes {
    /// Returns the bytes of one class.
    pub fn get(&self, class: MemoryClass) -> u64 {
        self.0[class as usize]
    }

    /// Returns the bytes of all classes together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the classes with their bytes, without those that have none.
    pub fn iter(&self) -> impl Iterator<Item = (MemoryClass, u64)> + '_ {
        let all = MemoryClass::ALL.into_iter().zip(self.0);
        all.filter(|(_, bytes)| *bytes > 0)
    }

    /// Adds bytes to a class.
    pub fn add(&mut self, class: MemoryClass, bytes: u64) {
        self.0[class as usize] += bytes;
    }

    /// Takes bytes from a class.
    pub fn sub(&mut self, class: MemoryClass, bytes: u64) {
        self.0[class as usize] -= bytes;
    }

    fn raise_to(&mut self, other: &Self) {
        for (most, now) in self.0.iter_mut().zip(other.0) {
            *most = (*most).max(now);
        }
    }
}

impl Serialize for ClassBytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// The task that ran when the most memory was held.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PeakCause {
    /// The operation, or what else a task does: `load`, `all_gather`, `store`.
    pub op: String,
    /// Path of the module it works for, if known.
    pub path: Option<String>,
    /// Number of the task in its window.
    pub task: usize,
}

impl std::fmt::Display for PeakCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{} of {path}", self.op),
            None => f.write_str(&self.op),
        }
    }
}

/// Planned memory of one rank over one window, in bytes of buffers. Views count once, with what they look at.
///
/// The results of an operation count beside its operands, unless the backend overwrites one of them. A collective holds
/// what it sends, and what it will return, from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// The most that is alive at once, values that live between windows and are used by this one included.
    pub peak_bytes: u64,
    /// The bytes that were alive then, by class.
    pub peak_by_class: BTreeMap<MemoryClass, u64>,
    /// The task that ran then.
    pub peak_cause: PeakCause,
    /// The most that was alive of each class, not all at the same time.
    pub class_peaks: BTreeMap<MemoryClass, u64>,
    /// Bytes of the window's inputs before it starts.
    pub start_bytes: u64,
    /// Bytes of the window's inputs and outputs that remain.
    pub end_bytes: u64,
    /// The most that is on the host at once: what the window has moved there, and its inputs that live there. Not part
    /// of the others.
    pub host_peak_bytes: u64,
}

/// Bytes of one rank by class over the tasks of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryTimeline {
    /// The bytes held during each task: what it makes included, what it drops not yet gone.
    pub tasks: Vec<ClassBytes>,
    /// Index of the task that holds the most.
    pub peak: usize,
}

impl MemoryTimeline {
    /// Returns the most bytes held at once.
    pub fn peak_bytes(&self) -> u64 {
        self.tasks.get(self.peak).map_or(0, ClassBytes::total)
    }

    /// Notes what is held after one more task.
    pub fn push(&mut self, now: ClassBytes) {
        if now.total() > self.peak_bytes() {
            self.peak = self.tasks.len();
        }
        self.tasks.push(now);
    }
}

/// One buffer.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    holders: u32,
    class: MemoryClass,
    lent: bool,
    /// True if it counts as the buffer that a result would have had by itself.
    counts_as_own: bool,
}

/// The holders of each buffer, which counts once, as what it was last used for.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: FxHashMap<u64, Entry>,
    now: ClassBytes,
    /// Beside the buffers, until the next [`Self::settle`].
    passing: ClassBytes,
    peaks: ClassBytes,
}

impl Ledger {
    /// Adds a holder of buffer `key`, which is used as `class` from now on.
    pub fn hold(&mut self, key: u64, bytes: u64, class: MemoryClass) {
        let entry = self.entries.entry(key).or_insert(Entry {
            bytes: 0,
            holders: 0,
            class,
            lent: false,
            counts_as_own: false,
        });
        self.now.sub(entry.class, entry.bytes);
        entry.holders += 1;
        entry.class = class;
        if !entry.counts_as_own {
            entry.bytes = bytes;
        }
        self.now.add(class, entry.bytes);
    }

    /// Removes a holder; the last one gives the buffer back.
    pub fn release(&mut self, key: u64) {
        let std::collections::hash_map::Entry::Occupied(mut entry) = self.entries.entry(key) else {
            return;
        };
        entry.get_mut().holders -= 1;
        if entry.get().holders == 0 {
            let entry = entry.remove();
            self.now.sub(entry.class, entry.bytes);
        }
    }

    /// Gives the buffer another key.
    pub fn rename(&mut self, key: u64, to: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.entries.insert(to, entry);
        }
    }

    /// Returns how many hold the buffer.
    pub fn holders(&self, key: u64) -> u32 {
        self.entries.get(&key).map_or(0, |entry| entry.holders)
    }

    /// Returns the size of the buffer.
    pub fn bytes(&self, key: u64) -> u64 {
        self.entries.get(&key).map_or(0, |entry| entry.bytes)
    }

    /// Returns what the buffer is used for.
    pub fn class(&self, key: u64) -> MemoryClass {
        self.entries
            .get(&key)
            .map_or(MemoryClass::Other, |entry| entry.class)
    }

    /// Notes that other ranks may hold the buffer too, for as long as it takes them: whether a kernel may overwrite it
    /// depends on timing.
    pub fn lend(&mut self, key: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.lent = true;
        }
    }

    /// Returns whether other ranks may hold the buffer.
    pub fn is_lent(&self, key: u64) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.lent)
    }

    /// Notes that a result of so many bytes overwrites a lent buffer, which may be larger: counts what would have been
    /// made had another rank still held it, now and from then on, so that figures do not depend on timing.
    pub fn overwrite(&mut self, key: u64, bytes: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.lent = false;
            entry.counts_as_own = true;
            self.passing.add(entry.class, entry.bytes);
            self.now.sub(entry.class, entry.bytes);
            entry.bytes = bytes;
            self.now.add(entry.class, bytes);
        }
    }

    /// Returns what is held now, and keeps the most of each class.
    pub fn settle(&mut self) -> ClassBytes {
        let mut now = self.now;
        for (class, bytes) in std::mem::take(&mut self.passing).iter() {
            now.add(class, bytes);
        }
        self.peaks.raise_to(&now);
        now
    }

    /// Returns what is held.
    pub fn now(&self) -> ClassBytes {
        self.now
    }

    /// Returns the most of each class, not all at the same time.
    pub fn peaks(&self) -> ClassBytes {
        self.peaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank overwrites a quarter of a buffer that others have let go by then; had they not, the quarter would be in a
    /// buffer of its own.
    #[test]
    fn what_overwrites_a_part_of_a_lent_buffer_counts_as_if_it_could_not() {
        let mut ledger = Ledger::default();
        ledger.hold(1, 960, MemoryClass::Gathered);
        ledger.lend(1);
        ledger.settle();
        ledger.overwrite(1, 240);
        ledger.hold(1, 960, MemoryClass::Activation);
        let during = ledger.settle();
        assert_eq!(during.get(MemoryClass::Gathered), 960);
        assert_eq!(during.get(MemoryClass::Activation), 240);
        ledger.release(1);
        assert_eq!(ledger.settle().total(), 240);
        // A look at the result, and its last holder.
        ledger.hold(1, 960, MemoryClass::Activation);
        assert_eq!((ledger.bytes(1), ledger.settle().total()), (240, 240));
        ledger.release(1);
        ledger.release(1);
        ledger.hold(1, 960, MemoryClass::Activation);
        assert_eq!(ledger.settle().total(), 960);
    }
}
