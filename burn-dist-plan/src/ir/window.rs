//! A window of recorded operations in canonical form: what the planner plans and what the cache compares.
//!
//! Two windows that do the same work are equal: tensor ids become value numbers in order of first use, scalars become
//! slots, and lifetimes become a set (a drop may arrive in any order, and burn-autodiff's do).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::mesh::DType;
use rustc_hash::FxHasher;

use crate::ir::{Op, Role, Stage, TensorIndex};
use crate::layout::Layout;

/// Number of a value in its window, in order of first appearance.
pub type ValueIndex = TensorIndex;

/// What a value is made of whose layout nothing has decided yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Constants, random numbers and tables: whole where nothing decides.
    Constants,
    /// Data of the host, and constants: dim 0 is split over the data axes where nothing decides.
    Data,
}

/// How data of the host enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Every rank can take any part of it.
    Free(Origin),
    /// The process has the parts of its own ranks in the preferred layout and no more: it enters so, and moves from
    /// there.
    Rows,
}

/// Where a value that a window takes from outside is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InputState {
    /// On the ranks.
    Placed {
        /// Who holds what.
        layout: Arc<Layout>,
        /// What it is to training, as far as the window knew that made it.
        role: Role,
        /// What it is made of, if it was placed for no other reason than the end of its window.
        origin: Option<Origin>,
        /// The stage whose ranks have it; `None` if all do.
        stage: Option<Stage>,
    },
    /// On the host.
    Host {
        /// The layout it takes if nothing else decides.
        preferred: Arc<Layout>,
        /// What the ranks can take of it.
        entry: Entry,
    },
}

/// A value that a window takes from outside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// Its number.
    pub value: ValueIndex,
    /// Global shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Where it is.
    pub state: InputState,
}

/// Returns what a recorded operation takes in memory, the shapes of its tensors included.
pub(crate) const fn op_bytes<O>() -> usize {
    size_of::<O>() + 96
}

/// A window in canonical form.
#[derive(Clone, Debug)]
pub struct Window<O> {
    /// The operations. Tensors are value numbers; every scalar that may differ from step to step is a slot.
    pub ops: Vec<O>,
    /// Values from outside.
    pub inputs: Vec<Input>,
    /// True if each value is gone at the end of the window.
    pub dies: Vec<bool>,
    /// Values the host reads at the end of the window.
    pub reads: Vec<ValueIndex>,
    /// [Hash](Self::hash_all) over all of the above.
    pub hash: u64,
}

impl<O> Default for Window<O> {
    fn default() -> Self {
        Self {
            ops: Vec::new(),
            inputs: Vec::new(),
            dies: Vec::new(),
            reads: Vec::new(),
            hash: 0,
        }
    }
}

impl<O: Op> PartialEq for Window<O> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.reads == other.reads
            && self.dies == other.dies
            && self.inputs == other.inputs
            && self.ops == other.ops
    }
}

impl<O: Op> Window<O> {
    /// Returns about how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.ops.len() * op_bytes::<O>() + size_of_val(&*self.inputs) + self.dies.len()
    }

    /// Returns the hash of all that it has.
    pub fn hash_all(&self) -> u64 {
        let mut hasher = FxHasher::default();
        self.ops.iter().for_each(|op| op.hash(&mut hasher));
        self.inputs.hash(&mut hasher);
        self.dies.hash(&mut hasher);
        self.reads.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns for each operation its kind, in the upper 16 bits, and a hash of the rest.
    pub fn digest(&self) -> Vec<u64> {
        self.ops
            .iter()
            .map(|op| {
                let mut hasher = FxHasher::default();
                op.hash(&mut hasher);
                (u64::from(op.kind()) << 48) | (hasher.finish() >> 16)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::toy::Builder;

    #[test]
    fn whatever_a_window_has_takes_bytes() {
        let mut b = Builder::new("dp=2");
        let mut before = b.window.bytes();
        let grows = |b: &Builder, before: &mut usize| {
            let now = b.window.bytes();
            assert!(std::mem::replace(before, now) < now);
        };
        let x = b.data(&[2]);
        grows(&b, &mut before);
        b.exp(x);
        grows(&b, &mut before);
        b.window.dies.push(true);
        grows(&b, &mut before);
    }
}
