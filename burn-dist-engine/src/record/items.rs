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

use burn_backend::DType;
use burn_ir::{
    BaseOperationIr, CatOpIr, NumericOperationIr, OperationIr, ScalarIr, ShapeOpIr,
    SliceAssignOpIr, TensorId, TensorIr, TensorStatus,
};
use burn_std::Shape;
use rustc_hash::FxHashMap;

use super::log::Log;
use super::on_host::{OnHost, Part};
use crate::burn::data::*;
use crate::plan::Origin;

/// So many tensors are joined on the host; fewer are as well joined by the ranks.
const ITEMS_MIN: usize = 8;
/// Tables of one number wait if they have no more elements.
const TABLE_ELEMENTS_MAX: usize = 1 << 20;

/// Tensors that are known without running anything.
#[derive(Default)]
pub(super) struct Items(FxHashMap<TensorId, Item>);

enum Item {
    /// Data that no recorded operation uses.
    Data {
        data: TensorData,
        origin: Origin,
        part: Option<Box<Part>>,
        /// Set if the tensor has another shape than the data.
        reshaped: Option<Reshaped>,
    },
    /// Data that recorded operations use.
    Used(OnHost),
    /// One number everywhere, and the operations that would make it.
    Full { value: i64, ops: Vec<OperationIr> },
}

/// A reshape at the last use of data.
struct Reshaped {
    /// The tensor that the data entered as.
    input: TensorId,
    out: Shape,
    kind: fn(BaseOperationIr) -> OperationIr,
}

impl Items {
    /// Adds data that no operation uses yet.
    pub(super) fn add(
        &mut self,
        id: TensorId,
        data: TensorData,
        origin: Origin,
        part: Option<Part>,
    ) {
        let item = Item::Data {
            data,
            origin,
            part: part.map(Box::new),
            reshaped: None,
        };
        self.0.insert(id, item);
    }

    /// Returns data, and the part that it is if this process has not all.
    pub(super) fn data(&self, id: TensorId) -> Option<(&TensorData, Option<&Part>)> {
        match self.0.get(&id)? {
            Item::Data {
                data,
                part,
                reshaped: None,
                ..
            } => Some((data, part.as_deref())),
            Item::Used(OnHost { data, part, .. }) => Some((data, part.as_ref())),
            Item::Data { .. } | Item::Full { .. } => None,
        }
    }

    /// Takes data that is whole and that no operation uses.
    pub(super) fn take(&mut self, id: TensorId) -> Option<TensorData> {
        let Some(Item::Data {
            part: None,
            reshaped: None,
            ..
        }) = self.0.get(&id)
        else {
            return None;
        };
        match self.0.remove(&id) {
            Some(Item::Data { data, .. }) => Some(data),
            _ => None,
        }
    }

    /// Forgets data that goes to the ranks.
    pub(super) fn forget(&mut self, id: TensorId) {
        self.0.remove(&id);
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an operation is done with here: its result is known without running it.
    pub(super) fn keep(&mut self, op: &OperationIr) -> bool {
        self.waits(op) || self.runs_here(op)
    }

    /// Records what makes a tensor, if that waits: an operation or a read is about to use it.
    pub(super) fn record(&mut self, tensor: &TensorIr, log: &mut Log) {
        match self.0.remove(&tensor.id) {
            Some(Item::Data {
                data,
                origin,
                part,
                reshaped: None,
            }) => {
                let on_host = OnHost::new(data, origin, part);
                log.enter(tensor.id, on_host.clone());
                self.0.insert(tensor.id, Item::Used(on_host));
            }
            Some(Item::Data {
                data,
                origin,
                part,
                reshaped: Some(Reshaped { input, out, kind }),
            }) => {
                let reshape = ShapeOpIr {
                    input: TensorIr {
                        id: input,
                        shape: data.shape().clone(),
                        status: TensorStatus::ReadWrite,
                        dtype: data.dtype(),
                    },
                    out: TensorIr {
                        id: tensor.id,
                        shape: out,
                        status: TensorStatus::NotInit,
                        dtype: data.dtype(),
                    },
                };
                log.enter(input, OnHost::new(data, origin, part));
                log.push(kind(BaseOperationIr::Reshape(reshape)));
            }
            Some(Item::Full { ops, .. }) => ops.into_iter().for_each(|op| log.push(op)),
            Some(used @ Item::Used(_)) => {
                self.0.insert(tensor.id, used);
            }
            None => {}
        }
    }

    /// Forgets a tensor; returns whether it is here and no recorded operation makes or uses it.
    pub(super) fn drop(&mut self, id: TensorId) -> bool {
        let item = self.0.remove(&id);
        matches!(item, Some(Item::Data { .. } | Item::Full { .. }))
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
                (&desc.out, Item::Full { value: 0, ops })
            }
            OperationIr::NumericInt(dtype, NumericOperationIr::AddScalar(desc))
                if desc.lhs.status == TensorStatus::ReadWrite =>
            {
                let Some(Item::Full { value, .. }) = self.0.get(&desc.lhs.id) else {
                    return false;
                };
                let Some(value) = sum(*value, &desc.rhs, *dtype) else {
                    return false;
                };
                let mut ops = match self.0.remove(&desc.lhs.id) {
                    Some(Item::Full { ops, .. }) => ops,
                    _ => Vec::new(),
                };
                ops.push(op.clone());
                (&desc.out, Item::Full { value, ops })
            }
            _ => return false,
        };
        self.0.insert(out.id, waiting);
        true
    }

    /// Keeps a reshape at the last use of data, or of data in another shape.
    fn reshapes(&mut self, desc: &ShapeOpIr, kind: fn(BaseOperationIr) -> OperationIr) -> bool {
        if desc.input.status != TensorStatus::ReadWrite {
            return false;
        }
        let (data, origin, reshaped) = match self.0.remove(&desc.input.id) {
            Some(Item::Data {
                data,
                origin,
                part: None,
                reshaped,
            }) if is_item(&data, &desc.input) => (data, origin, reshaped),
            Some(other) => {
                self.0.insert(desc.input.id, other);
                return false;
            }
            None => return false,
        };
        let input = reshaped.map_or(desc.input.id, |reshaped| reshaped.input);
        let out = desc.out.shape.clone();
        let item = Item::Data {
            data,
            origin,
            part: None,
            reshaped: Some(Reshaped { input, out, kind }),
        };
        self.0.insert(desc.out.id, item);
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

    /// Returns the data of a tensor that no recorded operation uses, if it is whole and plain numbers, and what it is
    /// made of.
    fn item(&self, tensor: &TensorIr) -> Option<(&TensorData, Origin)> {
        let Some(Item::Data {
            data,
            origin,
            part: None,
            ..
        }) = self.0.get(&tensor.id)
        else {
            return None;
        };
        is_item(data, tensor).then_some((data, *origin))
    }

    /// Ends an item after its last use.
    fn used(&mut self, tensor: &TensorIr) {
        if tensor.status == TensorStatus::ReadWrite {
            self.0.remove(&tensor.id);
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
        self.add(desc.out.id, data, origin, None);
        true
    }

    fn writes(&mut self, desc: &SliceAssignOpIr) -> bool {
        let (table, value) = (&desc.tensor, &desc.value);
        if table.status != TensorStatus::ReadWrite || table.dtype != value.dtype {
            return false;
        }
        let (Some(slice), Some((_, of_item))) = (Slice::new(desc), self.item(value)) else {
            return false;
        };
        let is_table = match self.0.get(&table.id) {
            Some(Item::Full { .. }) => true,
            Some(Item::Data { reshaped, .. }) => reshaped.is_none() && self.item(table).is_some(),
            Some(Item::Used(_)) | None => false,
        };
        if !is_table {
            return false;
        }
        let (whole, of_table) = match self.0.remove(&table.id) {
            Some(Item::Data { data, origin, .. }) => (data, origin),
            Some(Item::Full { value, .. }) => {
                (full(value, &table.shape, table.dtype), Origin::Constants)
            }
            Some(Item::Used(_)) | None => return false,
        };
        let (mut bytes, shape, dtype) = whole.into_parts();
        if let Some((item, _)) = self.item(value) {
            slice.copy(item.bytes(), &mut bytes, table.dtype.size());
        }
        let whole = TensorData::from_bytes(bytes, shape, dtype);
        self.used(value);
        self.add(desc.out.id, whole, of_table.max(of_item), None);
        true
    }
}

/// Returns whether data are the numbers of a tensor, whole and plain.
fn is_item(data: &TensorData, tensor: &TensorIr) -> bool {
    let is_plain = !matches!(data.dtype(), DType::QFloat(_)) && data.dtype() == tensor.dtype;
    is_plain && data.num_elements() == tensor.shape.num_elements()
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
