//! A window of recorded operations in canonical form: what the planner plans and what the cache compares.
//!
//! Two windows that do the same work are equal: tensor ids become value numbers in order of first use, scalars become
//! slots, and lifetimes become a set (a drop may arrive in any order, and burn-autodiff's do).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use burn_backend::DType;
use burn_ir::{OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::layout::Layout;
use crate::parallel::ParamSpec;
use crate::record::visit::{OpVisitor, kind_number, visit_mut};

/// Number of a value in its window, in order of first appearance.
pub type ValueIndex = u32;

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
        /// What is known of it as a parameter.
        tag: Option<Arc<ParamSpec>>,
        /// What it is made of, if it was placed for no other reason than the end of its window.
        origin: Option<Origin>,
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

/// What a recorded operation takes in memory, the shapes of its tensors included.
pub(super) const OP_BYTES: usize = size_of::<OperationIr>() + 96;

/// A window in canonical form.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The operations. Tensor ids are value numbers; every step-varying scalar is `ScalarIr::UInt(slot)`.
    pub ops: Vec<OperationIr>,
    /// Values from outside.
    pub inputs: Vec<Input>,
    /// Whether each value is gone at the end of the window.
    pub dies: Vec<bool>,
    /// Values the host reads at the end of the window.
    pub reads: Vec<ValueIndex>,
    /// Structural hash over all of the above.
    pub hash: u64,
}

impl PartialEq for Window {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.reads == other.reads
            && self.dies == other.dies
            && self.inputs == other.inputs
            && self.ops == other.ops
    }
}

impl Window {
    /// Returns about how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.ops.len() * OP_BYTES + size_of_val(&*self.inputs) + self.dies.len()
    }

    /// Returns for each operation its kind, in the upper 16 bits, and a hash of the rest.
    pub fn digest(&self) -> Vec<u64> {
        self.ops
            .iter()
            .map(|op| {
                let mut hasher = FxHasher::default();
                op.hash(&mut hasher);
                (u64::from(kind_number(op)) << 48) | (hasher.finish() >> 16)
            })
            .collect()
    }
}

/// What one run of a plan is bound to: the parts of a window that change from step to step.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// The recorded id of each value.
    pub ids: Vec<TensorId>,
    /// The scalars, by slot.
    pub scalars: Vec<ScalarIr>,
    /// Tensors that had their last use in the window, but for those that are held.
    pub held: Vec<TensorId>,
}

/// Brings recorded operations into canonical form.
///
/// `lookup` tells where a value from outside is; it is asked once per such value. `dropped` are the ids dropped in the
/// window (in any order), `reads` what the host wants. What is `held` is needed after the window, even if it was
/// dropped or its last use has come.
pub fn canonicalize<E>(
    mut ops: Vec<OperationIr>,
    dropped: &[TensorId],
    held: &FxHashSet<TensorId>,
    reads: &[TensorIr],
    mut lookup: impl FnMut(&TensorIr) -> Result<InputState, E>,
) -> Result<(Window, Bindings), E> {
    let mut numbering = Numbering::new(&ops);
    let mut scalars = Vec::new();
    let mut hasher = FxHasher::default();
    for op in &mut ops {
        visit_mut(
            op,
            &mut Canonicalizer {
                numbering: &mut numbering,
                scalars: &mut scalars,
            },
        );
        op.hash(&mut hasher);
    }
    let mut read_values = Vec::with_capacity(reads.len());
    for read in reads {
        let mut read = read.clone();
        numbering.input(&mut read);
        read_values.push(read.id.value() as ValueIndex);
    }
    for id in dropped.iter().filter(|id| !held.contains(id)) {
        if let Some(value) = numbering.get(*id) {
            numbering.dies[value as usize] = true;
        }
    }
    let mut held: Vec<TensorId> = match held.is_empty() {
        true => Vec::new(),
        false => held.iter().copied().collect(),
    };
    held.retain(|id| {
        let value = numbering.get(*id);
        value.is_some_and(|value| std::mem::take(&mut numbering.dies[value as usize]))
    });
    let mut inputs = Vec::with_capacity(numbering.outside.len());
    for (value, tensor) in std::mem::take(&mut numbering.outside) {
        inputs.push(Input {
            value,
            shape: tensor.shape.to_vec(),
            dtype: tensor.dtype,
            state: lookup(&tensor)?,
        });
    }
    inputs.hash(&mut hasher);
    numbering.dies.hash(&mut hasher);
    read_values.hash(&mut hasher);
    let window = Window {
        ops,
        inputs,
        dies: numbering.dies,
        reads: read_values,
        hash: hasher.finish(),
    };
    let bindings = Bindings {
        ids: numbering.ids,
        scalars,
        held,
    };
    Ok((window, bindings))
}

/// Maps recorded ids to value numbers. Ids are handed out in sequence, so those made in the window are found by offset.
struct Numbering {
    first: u64,
    dense: Vec<ValueIndex>,
    sparse: FxHashMap<u64, ValueIndex>,
    ids: Vec<TensorId>,
    dies: Vec<bool>,
    outside: Vec<(ValueIndex, TensorIr)>,
}

const UNSEEN: ValueIndex = ValueIndex::MAX;

impl Numbering {
    fn new(ops: &[OperationIr]) -> Self {
        let first = ops
            .iter()
            .find_map(|op| op.outputs().next().map(|out| out.id.value()))
            .unwrap_or(0);
        Self {
            first,
            dense: vec![UNSEEN; 2 * ops.len()],
            sparse: FxHashMap::default(),
            ids: Vec::with_capacity(ops.len() + ops.len() / 4),
            dies: Vec::with_capacity(ops.len() + ops.len() / 4),
            outside: Vec::new(),
        }
    }

    fn get(&self, id: TensorId) -> Option<ValueIndex> {
        let offset = id.value().wrapping_sub(self.first) as usize;
        match self.dense.get(offset) {
            Some(&value) => (value != UNSEEN).then_some(value),
            None => self.sparse.get(&id.value()).copied(),
        }
    }

    fn add(&mut self, id: TensorId) -> ValueIndex {
        let value = self.ids.len() as ValueIndex;
        let offset = id.value().wrapping_sub(self.first) as usize;
        match self.dense.get_mut(offset) {
            Some(entry) => *entry = value,
            None => {
                self.sparse.insert(id.value(), value);
            }
        }
        self.ids.push(id);
        self.dies.push(false);
        value
    }

    fn input(&mut self, tensor: &mut TensorIr) {
        let value = match self.get(tensor.id) {
            Some(value) => value,
            None => {
                let value = self.add(tensor.id);
                self.outside.push((value, tensor.clone()));
                value
            }
        };
        if tensor.status == TensorStatus::ReadWrite {
            self.dies[value as usize] = true;
        }
        tensor.id = TensorId::new(value.into());
        tensor.status = TensorStatus::ReadOnly;
    }
}

struct Canonicalizer<'a> {
    numbering: &'a mut Numbering,
    scalars: &'a mut Vec<ScalarIr>,
}

impl OpVisitor for Canonicalizer<'_> {
    fn input(&mut self, tensor: &mut TensorIr) {
        self.numbering.input(tensor);
    }

    fn output(&mut self, tensor: &mut TensorIr) {
        let value = self.numbering.add(tensor.id);
        tensor.id = TensorId::new(value.into());
        tensor.status = TensorStatus::NotInit;
    }

    fn scalar(&mut self, scalar: &mut ScalarIr) {
        let slot = self.scalars.len() as u64;
        self.scalars.push(*scalar);
        *scalar = ScalarIr::UInt(slot);
    }
}
