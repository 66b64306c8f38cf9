//! Differences of two checkpoints, whatever pieces they are in.

use super::stream::{Stream, chunk, element_bytes, whole};
use crate::error::CheckpointError;
use crate::format::TensorEntry;
use crate::load::Checkpoint;
use std::fmt;

/// The differences of two checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Tensors that only the first has.
    pub only_first: Vec<String>,
    /// Tensors that only the second has.
    pub only_second: Vec<String>,
    /// Tensors of another shape or type: as text, of the first and of the second.
    pub reshaped: Vec<(String, String, String)>,
    /// Tensors with other elements.
    pub changed: Vec<Changed>,
    /// How many tensors are equal.
    pub num_equal: usize,
}

/// A tensor of which some elements differ, by their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The tensor.
    pub key: String,
    /// How many elements differ.
    pub num_elements: usize,
    /// How many there are.
    pub numel: usize,
    /// The row-major index of the first that differs.
    pub first: usize,
}

impl Difference {
    /// Returns whether the two hold the same.
    pub fn is_empty(&self) -> bool {
        let Self {
            only_first,
            only_second,
            reshaped,
            changed,
            num_equal: _,
        } = self;
        only_first.is_empty() && only_second.is_empty() && reshaped.is_empty() && changed.is_empty()
    }
}

/// Every difference on a line of its own.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors are equal", self.num_equal)?;
        for key in &self.only_first {
            write!(f, "\n  only in the first   {key}")?;
        }
        for key in &self.only_second {
            write!(f, "\n  only in the second  {key}")?;
        }
        for (key, first, second) in &self.reshaped {
            write!(f, "\n  of another kind     {key}: {first}, {second}")?;
        }
        for Changed {
            key,
            num_elements,
            numel,
            first,
        } in &self.changed
        {
            write!(
                f,
                "\n  changed             {key}: {num_elements} of {numel} elements, the first is {first}"
            )?;
        }
        Ok(())
    }
}

/// Compares two checkpoints, bit by bit.
///
/// # Errors
/// Those of reading either, damaged blocks included.
pub fn diff(first: &Checkpoint, second: &Checkpoint) -> Result<Difference, CheckpointError> {
    let mut found = Difference::default();
    let (mut left, mut right) = (Stream::new(first), Stream::new(second));
    for tensor in &first.manifest().tensors {
        let Some(other) = second.manifest().tensor(&tensor.key) else {
            found.only_first.push(tensor.key.clone());
            continue;
        };
        if (&tensor.shape, &tensor.dtype) != (&other.shape, &other.dtype) {
            let kind = |tensor: &TensorEntry| format!("{} {:?}", tensor.dtype, tensor.shape);
            found
                .reshaped
                .push((tensor.key.clone(), kind(tensor), kind(other)));
            continue;
        }
        match changed((tensor, &mut left), (other, &mut right))? {
            Some(changed) => found.changed.push(changed),
            None => found.num_equal += 1,
        }
    }
    let keys = second.manifest().tensors.iter().map(|tensor| &tensor.key);
    let only = keys.filter(|key| first.manifest().tensor(key).is_none());
    found.only_second = only.cloned().collect();
    Ok(found)
}

fn changed(
    (first, left): (&TensorEntry, &mut Stream<'_>),
    (second, right): (&TensorEntry, &mut Stream<'_>),
) -> Result<Option<Changed>, CheckpointError> {
    let (region, size) = (whole(first)?, element_bytes(first));
    let (numel, step) = (region.numel(), chunk(size));
    let (mut num_elements, mut at) = (0, None);
    for start in (0..numel).step_by(step) {
        let within = start..(start + step).min(numel);
        let a = left.part(first, &region, within.clone())?;
        let b = right.part(second, &region, within)?;
        if a == b {
            continue;
        }
        let pairs = a.chunks(size).zip(b.chunks(size)).enumerate();
        for (index, _) in pairs.filter(|(_, (a, b))| a != b) {
            num_elements += 1;
            at.get_or_insert(start + index);
        }
    }
    Ok(at.map(|at| Changed {
        key: first.key.clone(),
        num_elements,
        numel,
        first: at,
    }))
}
