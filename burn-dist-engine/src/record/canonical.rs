//! Brings recorded operations into canonical form: what the planner plans and what the cache compares.

use std::hash::{Hash, Hasher};

use burn_ir::{ScalarIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::loose::bind_starts;
use crate::ops::{OpVisitor, Recorded, dtype, visit_mut};
use crate::plan::{Input, InputState, ValueIndex, Window};

/// The values that one run of a plan is bound to: the parts of a window that change from step to step.
#[derive(Clone, Debug, Default)]
pub(super) struct Bindings {
    /// The recorded id of each value.
    pub ids: Vec<TensorId>,
    /// The scalars and the starts of slices, by slot.
    pub scalars: Vec<ScalarIr>,
    /// Tensors that had their last use in the window, but for those that are held.
    pub held: Vec<TensorId>,
}

/// Brings recorded operations into canonical form.
///
/// `lookup` tells where a value from outside is; it is asked once per such value. `dropped` are the ids dropped in the
/// window (in any order), `reads` what the host wants. What is `held` is needed after the window, even if it was
/// dropped or its last use has come. With `is_loose`, starts of slices are slots.
pub(super) fn canonicalize<E>(
    mut ops: Vec<Recorded>,
    dropped: &[TensorId],
    held: &FxHashSet<TensorId>,
    reads: &[TensorIr],
    is_loose: bool,
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
        if is_loose {
            bind_starts(op, &mut scalars);
        }
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
            dtype: dtype::of_burn(tensor.dtype),
            state: lookup(&tensor)?,
        });
    }
    // As `Window::hash_all` does, whose operations are no longer at hand.
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
    fn new(ops: &[Recorded]) -> Self {
        let first = ops
            .iter()
            .find_map(|op| op.makes().next().map(|out| out.id.value()))
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
