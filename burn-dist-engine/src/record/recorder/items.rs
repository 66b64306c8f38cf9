//! Batches made item by item, joined on the host.
//!
//! Burn's batchers make a tensor per item, reshape it and join all of them (`cat`, `stack`), or write each into a row
//! of a table full of padding (`generate_padding_mask`). Recorded so, a batch is hundreds of inputs and operations,
//! which every rank uploads and runs one by one; and where items differ in length, so does every window. But all of it
//! is data on the host, and only moves: so reshapes of data and tables of one number wait here, and joining them copies
//! on the host, in the thread that makes the batch. What is used for anything else is recorded after all, just before
//! its use.
//!
//! Left out on purpose: arithmetic, whose last bits are the inner backend's business, and anything under fuzzed
//! layouts, which are there to test the rules.

use std::sync::Arc;

use burn_backend::DType;
use burn_ir::{
    BackendIr, BaseOperationIr, CatOpIr, NumericOperationIr, OperationIr, ScalarIr, ShapeOpIr,
    SliceAssignOpIr, TensorId, TensorIr, TensorStatus,
};
use burn_std::Shape;

use super::waiting::Waiting;
use super::{Live, Recorder};
use crate::burn::data::*;
use crate::ops::Recorded;
use crate::plan::Origin;

/// So many tensors are joined on the host; fewer are as well joined by the ranks.
const ITEMS_MIN: usize = 8;
/// Tables of one number wait if they have no more elements.
const TABLE_ELEMENTS_MAX: usize = 1 << 20;

impl<B: BackendIr> Recorder<B> {
    /// Returns whether operations may wait here: not under fuzzed layouts.
    pub(super) fn keeps_items(&self) -> bool {
        self.options.fuzz_layouts.is_none()
    }

    /// Returns `op` if it has to be recorded, after having recorded what it uses of what waits.
    pub(super) fn record_items(&mut self, op: Recorded) -> Option<Recorded> {
        if !self.keeps_items() {
            return Some(op);
        }
        if let Recorded::Burn(op) = &op
            && (self.waits(op) || self.runs_here(op))
        {
            return None;
        }
        if !self.items.is_empty() {
            op.reads().for_each(|input| self.use_item(input.id));
        }
        Some(op)
    }

    /// Records what makes a tensor, if that waits: an operation or a read is about to use it.
    pub(super) fn use_item(&mut self, id: TensorId) {
        self.items.unused.remove(&id);
        match self.items.waiting.remove(&id) {
            Some(Waiting::Reshaped { input, out, kind }) => {
                self.items.unused.remove(&input.id);
                self.log
                    .push(kind(BaseOperationIr::Reshape(ShapeOpIr { input, out })));
            }
            Some(Waiting::Full { ops, .. }) => ops.into_iter().for_each(|op| self.log.push(op)),
            None => {}
        }
    }

    /// Forgets a tensor that no recorded operation makes or uses; returns whether it is one.
    pub(super) fn drop_item(&mut self, id: TensorId) -> bool {
        match self.items.waiting.remove(&id) {
            Some(Waiting::Reshaped { input, .. }) => self.drop_tensor(input.id),
            Some(Waiting::Full { .. }) => {}
            None => {
                let is_unused = self.items.unused.remove(&id);
                if is_unused {
                    self.live.remove(&id);
                }
                return is_unused;
            }
        }
        true
    }

    /// Returns whether `op` is known without running it, and keeps it if so.
    fn waits(&mut self, op: &OperationIr) -> bool {
        use BaseOperationIr::{Reshape, Zeros};
        let (out, waiting) = match op {
            OperationIr::BaseFloat(Reshape(desc)) => {
                return self.reshapes(desc, OperationIr::BaseFloat);
            }
            OperationIr::BaseInt(Reshape(desc)) => {
                return self.reshapes(desc, OperationIr::BaseInt);
            }
            OperationIr::BaseBool(Reshape(desc)) => {
                return self.reshapes(desc, OperationIr::BaseBool);
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

    /// Keeps a reshape at the last use of data, or of data in another shape.
    fn reshapes(&mut self, desc: &ShapeOpIr, kind: fn(BaseOperationIr) -> OperationIr) -> bool {
        if desc.input.status != TensorStatus::ReadWrite {
            return false;
        }
        let input = match self.items.waiting.get(&desc.input.id) {
            Some(Waiting::Reshaped { input, .. }) => input.clone(),
            None if self.data(desc.input.id).is_some() => desc.input.clone(),
            Some(Waiting::Full { .. }) | None => return false,
        };
        self.items.waiting.remove(&desc.input.id);
        let out = desc.out.clone();
        self.items
            .waiting
            .insert(desc.out.id, Waiting::Reshaped { input, out, kind });
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

    /// Data, if a tensor is that, whole and in plain numbers, and what it is made of.
    fn data(&self, id: TensorId) -> Option<(&Arc<TensorData>, Origin)> {
        match self.live.get(&id)? {
            Live::Host {
                data,
                origin,
                part: None,
            } if !matches!(data.dtype(), DType::QFloat(_)) => Some((data, *origin)),
            _ => None,
        }
    }

    /// The data of an item, and what it is made of.
    fn item(&self, tensor: &TensorIr) -> Option<(&Arc<TensorData>, Origin)> {
        let id = match self.items.waiting.get(&tensor.id) {
            Some(Waiting::Reshaped { input, .. }) => input.id,
            Some(Waiting::Full { .. }) => return None,
            None => tensor.id,
        };
        self.data(id).filter(|(data, _)| {
            data.dtype() == tensor.dtype && data.num_elements() == tensor.shape.num_elements()
        })
    }

    /// After the last use of an item: nothing waits for it any more.
    fn used(&mut self, tensor: &TensorIr) {
        if tensor.status == TensorStatus::ReadWrite {
            self.drop_tensor(tensor.id);
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
        let mut origin = Origin::Constants;
        for tensor in &desc.tensors {
            match self.item(tensor) {
                Some((data, of)) if data.dtype() == desc.out.dtype => {
                    bytes.extend_from_slice(data.bytes());
                    origin = origin.max(of);
                }
                _ => return false,
            }
        }
        desc.tensors.iter().for_each(|tensor| self.used(tensor));
        let data = TensorData::from_bytes_vec(bytes, desc.out.shape.clone(), desc.out.dtype);
        self.keep_data(desc.out.id, data, origin);
        true
    }

    fn writes(&mut self, desc: &SliceAssignOpIr) -> bool {
        let (table, value) = (&desc.tensor, &desc.value);
        if table.status != TensorStatus::ReadWrite || table.dtype != value.dtype {
            return false;
        }
        let (Some(slice), Some((item, of_item))) = (Slice::new(desc), self.item(value)) else {
            return false;
        };
        let item = item.clone();
        let (whole, of_table) = match self.items.waiting.get(&table.id) {
            Some(Waiting::Full { value, .. }) => {
                (full(*value, &table.shape, table.dtype), Origin::Constants)
            }
            None if self.items.unused.contains(&table.id) => match self.live.remove(&table.id) {
                Some(Live::Host { data, origin, .. }) => (Arc::unwrap_or_clone(data), origin),
                _ => return false,
            },
            _ => return false,
        };
        self.drop_item(table.id);
        let (mut bytes, shape, dtype) = whole.into_parts();
        slice.copy(item.bytes(), &mut bytes, table.dtype.size());
        drop(item);
        let whole = TensorData::from_bytes(bytes, shape, dtype);
        self.used(value);
        self.keep_data(desc.out.id, whole, of_table.max(of_item));
        true
    }
}

/// A slice of a tensor: where it lies in it.
struct Slice {
    /// Sizes of the tensor and of the slice, and where it starts.
    dims: Vec<(usize, usize, usize)>,
}

impl Slice {
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
