//! Batches made item by item, joined on the host.
//!
//! Burn's batchers make a tensor per item, reshape it and join all of them (`cat`, `stack`), or write each into a row of a table full of padding
//! (`generate_padding_mask`). Recorded so, a batch is hundreds of inputs and operations, which every rank uploads and runs one by one; and where items
//! differ in length, so does every window. But all of it is data on the host, and only moves: so reshapes of data and tables of one number wait here, and
//! joining them copies on the host, in the thread that makes the batch. What is used in any other way is recorded after all, just before its use.
//!
//! Left out on purpose: arithmetic, whose last bits are the inner backend's business, and anything under fuzzed layouts, which are there to test the rules.

use std::sync::Arc;

use burn_backend::{DType, TensorData};
use burn_ir::{
    BackendIr, BaseOperationIr, CatOpIr, NumericOperationIr, OperationIr, ScalarIr,
    SliceAssignOpIr, TensorId, TensorIr, TensorStatus,
};
use burn_std::{Bytes, Shape};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Live, Recorder};
use crate::plan::window::Origin;

/// So many tensors are joined on the host; fewer are as well joined by the ranks.
const ITEMS_MIN: usize = 8;
/// Tables of one number wait if they have no more elements.
const TABLE_ELEMENTS_MAX: usize = 1 << 20;

/// What was asked for and not yet recorded.
#[derive(Default)]
pub(super) struct Items {
    waiting: FxHashMap<TensorId, Waiting>,
    /// Data that is a table into which items were written, and which no recorded operation uses.
    tables: FxHashSet<TensorId>,
}

impl Items {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.tables.is_empty()
    }
}

/// A tensor that is known without running anything, and the operations that would make it.
enum Waiting {
    /// Data in another shape. No other operation will use the data: the first one is its last use.
    Reshaped {
        data: TensorId,
        ops: Vec<OperationIr>,
    },
    /// One number everywhere.
    Full { value: i64, ops: Vec<OperationIr> },
}

impl<B: BackendIr> Recorder<B> {
    /// Returns `op` if it has to be recorded, after having recorded what it uses of what waits.
    pub(super) fn record_items(&mut self, op: OperationIr) -> Option<OperationIr> {
        if self.options.fuzz_layouts.is_some() {
            return Some(op);
        }
        if self.waits(&op) || self.runs_here(&op) {
            return None;
        }
        if !self.items.is_empty() {
            for input in op.inputs() {
                self.items.tables.remove(&input.id);
                self.record_waiting(input.id);
            }
        }
        Some(op)
    }

    /// Records what makes a tensor, if that waits.
    pub(super) fn record_waiting(&mut self, id: TensorId) {
        match self.items.waiting.remove(&id) {
            Some(Waiting::Reshaped { ops, .. } | Waiting::Full { ops, .. }) => {
                ops.into_iter().for_each(|op| self.log.push(op))
            }
            None => {}
        }
    }

    /// Forgets a tensor that waits; returns whether it did.
    pub(super) fn drop_waiting(&mut self, id: TensorId) -> bool {
        self.items.tables.remove(&id);
        match self.items.waiting.remove(&id) {
            Some(Waiting::Reshaped { data, .. }) => {
                // Operations that are recorded may use it still.
                self.log.drop_tensor(data);
                true
            }
            Some(Waiting::Full { .. }) => true,
            None => false,
        }
    }

    /// Returns whether `op` is known without running it, and keeps it if so.
    fn waits(&mut self, op: &OperationIr) -> bool {
        use BaseOperationIr::{Reshape, Zeros};
        let (out, waiting) = match op {
            OperationIr::BaseFloat(Reshape(desc))
            | OperationIr::BaseInt(Reshape(desc))
            | OperationIr::BaseBool(Reshape(desc))
                if desc.input.status == TensorStatus::ReadWrite =>
            {
                let (data, mut ops) = match self.items.waiting.remove(&desc.input.id) {
                    Some(Waiting::Reshaped { data, ops }) => (data, ops),
                    Some(full) => {
                        self.items.waiting.insert(desc.input.id, full);
                        return false;
                    }
                    None if self.data(desc.input.id).is_some() => {
                        self.items.tables.remove(&desc.input.id);
                        (desc.input.id, Vec::new())
                    }
                    None => return false,
                };
                ops.push(op.clone());
                (&desc.out, Waiting::Reshaped { data, ops })
            }
            OperationIr::BaseInt(Zeros(desc))
                if desc.out.shape.num_elements() <= TABLE_ELEMENTS_MAX =>
            {
                let ops = vec![op.clone()];
                (&desc.out, Waiting::Full { value: 0, ops })
            }
            OperationIr::NumericInt(dtype, NumericOperationIr::AddScalar(desc))
                if desc.lhs.status == TensorStatus::ReadWrite =>
            {
                let Some(Waiting::Full { value, .. }) = self.items.waiting.get(&desc.lhs.id) else {
                    return false;
                };
                let Some(value) = sum(*value, &desc.rhs, *dtype) else {
                    return false;
                };
                let mut ops = match self.items.waiting.remove(&desc.lhs.id) {
                    Some(Waiting::Full { ops, .. }) => ops,
                    _ => Vec::new(),
                };
                ops.push(op.clone());
                (&desc.out, Waiting::Full { value, ops })
            }
            _ => return false,
        };
        self.items.waiting.insert(out.id, waiting);
        true
    }

    /// Runs `op` on the host if it joins items; returns whether it did.
    fn runs_here(&mut self, op: &OperationIr) -> bool {
        use BaseOperationIr::{Cat, SliceAssign};
        match op {
            OperationIr::BaseFloat(Cat(desc))
            | OperationIr::BaseInt(Cat(desc))
            | OperationIr::BaseBool(Cat(desc)) => self.joins(desc),
            OperationIr::BaseInt(SliceAssign(desc)) => self.writes(desc),
            _ => false,
        }
    }

    /// Data, if a tensor is that and waits for nothing, whole and in plain numbers.
    fn data(&self, id: TensorId) -> Option<&Arc<TensorData>> {
        match self.live.get(&id)? {
            Live::Host {
                data, rows: None, ..
            } if !matches!(data.dtype, DType::QFloat(_)) => Some(data),
            _ => None,
        }
    }

    /// The data of an item.
    fn item(&self, tensor: &TensorIr) -> Option<&Arc<TensorData>> {
        let id = match self.items.waiting.get(&tensor.id) {
            Some(Waiting::Reshaped { data, .. }) => *data,
            Some(Waiting::Full { .. }) => return None,
            None => tensor.id,
        };
        self.data(id).filter(|data| {
            data.dtype == tensor.dtype && data.num_elements() == tensor.shape.num_elements()
        })
    }

    /// What an item or a table is made of.
    fn item_origin(&self, tensor: &TensorIr) -> Origin {
        let id = match self.items.waiting.get(&tensor.id) {
            Some(Waiting::Reshaped { data, .. }) => *data,
            Some(Waiting::Full { .. }) => return Origin::Constants,
            None => tensor.id,
        };
        match self.live.get(&id) {
            Some(
                Live::Host { origin, .. }
                | Live::Placed {
                    origin: Some(origin),
                    ..
                },
            ) => *origin,
            _ => Origin::Constants,
        }
    }

    /// After the last use of an item: nothing waits for it any more.
    fn used(&mut self, tensor: &TensorIr) {
        if tensor.status == TensorStatus::ReadWrite && !self.drop_waiting(tensor.id) {
            self.log.drop_tensor(tensor.id);
        }
    }

    fn joins(&mut self, desc: &CatOpIr) -> bool {
        // One after the other in memory.
        let in_rows = desc.out.shape.iter().take(desc.dim).all(|&size| size == 1);
        if desc.tensors.len() < ITEMS_MIN || !in_rows {
            return false;
        }
        let size = desc.out.shape.num_elements() * desc.out.dtype.size();
        let mut bytes = Vec::with_capacity(size);
        for tensor in &desc.tensors {
            match self.item(tensor) {
                Some(data) if data.dtype == desc.out.dtype => bytes.extend_from_slice(&data.bytes),
                _ => return false,
            }
        }
        let origins = desc.tensors.iter().map(|tensor| self.item_origin(tensor));
        let origin = origins.max().unwrap_or(Origin::Constants);
        desc.tensors.iter().for_each(|tensor| self.used(tensor));
        let data = TensorData {
            bytes: Bytes::from_bytes_vec(bytes),
            shape: desc.out.shape.clone(),
            dtype: desc.out.dtype,
        };
        self.add_data(desc.out.id, data, origin);
        true
    }

    fn writes(&mut self, desc: &SliceAssignOpIr) -> bool {
        let (table, value) = (&desc.tensor, &desc.value);
        let is_ours = table.status == TensorStatus::ReadWrite
            && (matches!(
                self.items.waiting.get(&table.id),
                Some(Waiting::Full { .. })
            ) || self.items.tables.contains(&table.id));
        let place = match is_ours && table.dtype == value.dtype {
            true => Place::new(desc),
            false => None,
        };
        let (Some(place), Some(item)) = (place, self.item(value).cloned()) else {
            return false;
        };
        let origin = self.item_origin(table).max(self.item_origin(value));
        let mut whole = match self.items.waiting.get(&table.id) {
            Some(Waiting::Full { value, .. }) => full(*value, &table.shape, table.dtype),
            _ => match self.live.remove(&table.id) {
                Some(Live::Host { data, .. }) => Arc::unwrap_or_clone(data),
                _ => return false,
            },
        };
        self.drop_waiting(table.id);
        place.copy(&item.bytes, &mut whole.bytes, table.dtype.size());
        drop(item);
        self.used(value);
        self.add_data(desc.out.id, whole, origin);
        self.items.tables.insert(desc.out.id);
        true
    }
}

/// Where a slice lies in a tensor.
struct Place {
    /// Sizes of the tensor and of the slice, and where it starts.
    dims: Vec<(usize, usize, usize)>,
}

impl Place {
    /// Returns `None` for slices with steps, or counted from the end.
    fn new(desc: &SliceAssignOpIr) -> Option<Self> {
        let (table, value) = (&desc.tensor.shape, &desc.value.shape);
        let mut dims = Vec::new();
        for (dim, (&size, &part)) in table.iter().zip(value.iter()).enumerate() {
            let start = match desc.ranges.get(dim) {
                None => 0,
                Some(range) if range.step == 1 && range.start >= 0 => range.start as usize,
                Some(_) => return None,
            };
            if start + part > size {
                return None;
            }
            dims.push((size, part, start));
        }
        Some(Self { dims })
    }

    /// Copies a slice, row by row.
    fn copy(&self, from: &[u8], to: &mut [u8], elem: usize) {
        let Some((&(width, part, start), outer)) = self.dims.split_last() else {
            to.copy_from_slice(from);
            return;
        };
        if part == 0 {
            return;
        }
        for (row, bytes) in from.chunks_exact(part * elem).enumerate() {
            // The row's place in the table, from the innermost of the outer dims on.
            let (mut rest, mut place, mut stride) = (row, 0, 1);
            for &(size, part, start) in outer.iter().rev() {
                place += (start + rest % part) * stride;
                rest /= part;
                stride *= size;
            }
            let at = (place * width + start) * elem;
            to[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

fn full(value: i64, shape: &Shape, dtype: DType) -> TensorData {
    TensorData::new(vec![value; shape.num_elements()], shape.clone()).convert_dtype(dtype)
}

/// Returns a sum that `dtype` can hold.
fn sum(value: i64, scalar: &ScalarIr, dtype: DType) -> Option<i64> {
    let term = match scalar {
        ScalarIr::Int(term) => *term,
        ScalarIr::UInt(term) => i64::try_from(*term).ok()?,
        ScalarIr::Float(_) | ScalarIr::Bool(_) => return None,
    };
    let sum = value.checked_add(term)?;
    let held = full(sum, &Shape::new([1]), dtype);
    held.iter::<i64>().next().filter(|held| *held == sum)
}
