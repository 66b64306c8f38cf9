//! The check that the formula of a custom operation goes with its outputs: made once for each operation, and each set
//! of shapes and types of its inputs.

use std::any::Any;
use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use super::super::formula::Unwritten;
use super::{CustomError, CustomOp, Definition, TensorInfo, numbered};

/// Operations that are remembered at most; a program has some dozen, times the shapes of its batches.
const CHECKED_MAX: usize = 1 << 10;

/// Operations whose formulas go with their outputs, as far as they were checked.
#[derive(Default)]
pub struct CheckedFormulas {
    /// By the hash of an operation and its inputs, the last ones that have it.
    known: FxHashMap<u64, Checked>,
}

struct Checked {
    op: Box<dyn Any + Send>,
    inputs: Vec<TensorInfo>,
}

impl CheckedFormulas {
    /// Returns whether an operation was checked on inputs like that.
    pub fn contains<O: CustomOp>(&self, op: &O, inputs: &[TensorInfo]) -> bool {
        let known = self.known.get(&hash(op, inputs));
        known
            .is_some_and(|known| known.inputs == inputs && known.op.downcast_ref::<O>() == Some(op))
    }

    /// Notes that an operation was checked on inputs like that.
    pub fn insert<O: CustomOp>(&mut self, op: &O, inputs: &[TensorInfo]) {
        if self.known.len() >= CHECKED_MAX {
            self.known.clear();
        }
        let checked = Checked {
            op: Box::new(op.clone()),
            inputs: inputs.to_vec(),
        };
        self.known.insert(hash(op, inputs), checked);
    }
}

fn hash<O: CustomOp>(op: &O, inputs: &[TensorInfo]) -> u64 {
    let mut hasher = FxHasher::default();
    O::ID.hash(&mut hasher);
    op.hash(&mut hasher);
    inputs.hash(&mut hasher);
    hasher.finish()
}

/// Checks that the formula of an operation, if it has one, goes with its outputs.
///
/// # Errors
/// [`CustomError::Formula`].
pub fn check_formula<O: CustomOp>(
    op: &O,
    inputs: &[TensorInfo],
    outputs: &[TensorInfo],
) -> Result<(), CustomError> {
    let shapes = |infos: &[TensorInfo]| {
        let shapes = infos.iter().map(|info| format!("{:?}", info.shape));
        shapes.collect::<Vec<_>>().join(", ")
    };
    let reason = match op.written(&numbered(0, inputs), &numbered(0, outputs)) {
        Ok(_) | Err(Unwritten::Left) => return Ok(()),
        Err(Unwritten::Results(found)) => {
            let outputs = outputs.len();
            format!("it has {found} result(s) for {outputs} output(s)")
        }
        Err(Unwritten::Mixed) => {
            "values of different types meet in it, and `Value::cast` gives one of them the type of the other".into()
        }
        Err(Unwritten::Shapes) => format!(
            "inputs of {} and outputs of {} do not broadcast to one shape",
            shapes(inputs),
            shapes(outputs)
        ),
    };
    Err(CustomError::Formula { id: O::ID, reason })
}
