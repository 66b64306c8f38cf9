//! What an operation is lowered to: local operations and, where it needs them, shifts of blocks between ranks.

use std::sync::Arc;

use crate::ir::TensorIndex;
use crate::layout::Layout;
use crate::mesh::{AxisIndex, DType};

/// Blocks of a tensor that move round the ranks of some axes, all at once.
///
/// Along a group of k ranks, each rank sends the block that it has to the rank `by` places further, cyclically, and gets
/// that of the rank as many places before it. The blocks may have different sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Shift {
    /// The block that this rank sends.
    pub from: TensorIndex,
    /// Where the block is put that it gets.
    pub to: TensorIndex,
    /// Element type.
    pub dtype: DType,
    /// The layout of the tensor: its blocks are those that move.
    pub layout: Arc<Layout>,
    /// The axes, major to minor, as they split the tensor.
    pub axes: Vec<AxisIndex>,
    /// How many places the block that is sent has come already, from the rank whose it is by the layout.
    pub come: isize,
    /// How many places it moves: no multiple of the number of ranks.
    pub by: isize,
}

impl Shift {
    /// Returns whether ranks that say this and `other` speak of the same shift.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let said = |shift: &Self| (shift.dtype, shift.come, shift.by);
        said(self) == said(other) && self.axes == other.axes && self.layout == other.layout
    }
}

/// Shifts under way: what they bring is there once they are [finished](Steps::finish).
#[derive(Debug)]
#[must_use = "what was shifted is there only once it is finished"]
pub struct Launched {
    number: u32,
    to: Vec<TensorIndex>,
}

/// A step of one rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Emitted<O> {
    /// Runs an operation.
    Op(O),
    /// Starts shifts, without waiting for them.
    Launch { number: u32, shifts: Vec<Shift> },
    /// Waits for them.
    Finish { number: u32, to: Vec<TensorIndex> },
}

/// The steps of one rank that an operation becomes, in order.
///
/// All ranks of a group launch the same shifts in the same order, also those that hold nothing.
#[derive(Debug)]
pub struct Steps<O> {
    /// Number of the next slot for an intermediate tensor.
    next: TensorIndex,
    launches: u32,
    under_way: u32,
    emitted: Vec<Emitted<O>>,
}

impl<O> Steps<O> {
    /// Creates no steps yet; intermediate tensors get slots from `first_temp` on.
    pub fn new(first_temp: TensorIndex) -> Self {
        Self {
            next: first_temp,
            launches: 0,
            under_way: 0,
            emitted: Vec::new(),
        }
    }

    /// Returns a slot for an intermediate tensor.
    pub fn temp(&mut self) -> TensorIndex {
        self.next += 1;
        self.next - 1
    }

    /// Adds a local operation.
    pub fn push(&mut self, op: O) {
        self.emitted.push(Emitted::Op(op));
    }

    /// Starts shifts together: what comes next runs beside them.
    pub fn launch(&mut self, shifts: Vec<Shift>) -> Launched {
        let number = self.launches;
        let to = shifts.iter().map(|shift| shift.to).collect();
        self.launches += 1;
        self.under_way += 1;
        self.emitted.push(Emitted::Launch { number, shifts });
        Launched { number, to }
    }

    /// Waits for shifts.
    pub fn finish(&mut self, launched: Launched) {
        let Launched { number, to } = launched;
        self.under_way -= 1;
        self.emitted.push(Emitted::Finish { number, to });
    }

    /// Returns the local operations, in order.
    pub fn ops(&self) -> impl Iterator<Item = &O> {
        self.emitted.iter().filter_map(|step| match step {
            Emitted::Op(op) => Some(op),
            _ => None,
        })
    }

    /// Returns the shifts of each launch, in order.
    pub(crate) fn launches(&self) -> impl Iterator<Item = &[Shift]> {
        self.emitted.iter().filter_map(|step| match step {
            Emitted::Launch { shifts, .. } => Some(shifts.as_slice()),
            _ => None,
        })
    }

    /// Returns how many launches are not finished.
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Returns the slot after those of intermediate tensors, and takes the steps out.
    pub(crate) fn take(&mut self) -> (TensorIndex, Vec<Emitted<O>>) {
        (self.next, std::mem::take(&mut self.emitted))
    }
}
