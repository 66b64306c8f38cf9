//! Data of the host whose elements are on a mesh: they are read when somebody looks at them, and moved to its mesh the
//! data is the tensor that is there.
//!
//! Burn makes the state of an optimizer that is loaded on its default device, and moves it to the mesh with the next
//! step. A state that is loaded onto the mesh part by part need not go there and back: Burn holds its bytes as it does
//! those of a device (`AllocationProperty::Device`), and nothing is read unless the program does.
//!
//! A read is one of all processes, which must come to it in the same order; but Burn visits the states of an optimizer
//! in an order of its own. While a thread takes residents, such data answers with the mark of its tensor instead.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use burn_backend::{DType, Shape};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};

use super::{AnyTensor, EXCHANGE, Exchange};
use crate::MeshDevice;
use crate::data::*;

/// A tensor of a mesh that stands behind data of the host.
pub trait Resident: Send + Sync {
    /// Returns its mesh.
    fn device(&self) -> MeshDevice;
    /// Returns a handle on the tensor.
    fn tensor(&self) -> AnyTensor;
    /// Reads it, as the bytes that the data has.
    ///
    /// # Errors
    /// What has stopped the mesh, in words.
    fn read(&self) -> Result<Vec<u8>, String>;
}

/// Returns data whose elements are those of a tensor. They are read from its mesh when somebody looks at them.
///
/// Types of so few bytes that an element has no room for a mark are not for this: see [`SMALLEST`].
pub fn data_of(tensor: impl Resident + 'static, shape: Shape, dtype: DType) -> TensorData {
    let len = shape.num_elements() * dtype.size();
    let known = Known {
        resident: Box::new(tensor),
        shape: shape.clone(),
        dtype,
    };
    let behind = Behind {
        known: Some(Arc::new(known)),
        len,
        read: OnceLock::new(),
        marked: OnceLock::new(),
    };
    // SAFETY: `memory` returns `len` bytes, all of them written, or an error.
    let bytes = unsafe { Bytes::from_controller(Box::new(behind), len) };
    TensorData::from_bytes(bytes, shape, dtype)
}

/// The bytes that an element has at least, so that one has room for a mark.
pub const SMALLEST: usize = size_of::<u32>();

/// A number that only this data has, also where it is cut to [`SMALLEST`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Mark(u64);

impl Mark {
    fn new() -> Self {
        static NEXT: OnceLock<AtomicU64> = OnceLock::new();
        let next = NEXT.get_or_init(|| RandomState::new().hash_one(()).into());
        Self(next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns what `len` bytes, or the first of more, have of it.
    fn cut(self, len: usize) -> Self {
        let mut bytes = self.0.to_le_bytes();
        bytes.iter_mut().skip(len).for_each(|byte| *byte = 0);
        Self(u64::from_le_bytes(bytes))
    }

    /// Returns the first bytes of data as one.
    fn of(data: &[u8]) -> Self {
        let mut bytes = [0; size_of::<u64>()];
        bytes
            .iter_mut()
            .zip(data)
            .for_each(|(to, from)| *to = *from);
        Self(u64::from_le_bytes(bytes))
    }

    /// Returns it with zeros after it, for `len` bytes.
    fn with_zeros(self, len: usize) -> Vec<u64> {
        let mut words = vec![0; len.div_ceil(size_of::<u64>())];
        words[0] = self.0.to_le();
        words
    }
}

/// Tensors that a thread met behind data, by their marks.
pub struct Residents(HashMap<Mark, Arc<Known>>);

impl Residents {
    /// Returns a handle on the tensor that `data` stands for.
    pub fn tensor(&self, data: &TensorData) -> Option<AnyTensor> {
        let known = self.0.get(&Mark::of(data.as_bytes()))?;
        known.is_of(data).then(|| known.resident.tensor())
    }
}

thread_local! {
    /// The answer that this thread waits for when it asks bytes for the tensor behind them.
    static ASKING: Cell<bool> = const { Cell::new(false) };
    static ANSWER: RefCell<Option<Arc<Known>>> = const { RefCell::new(None) };
    /// Tensors that this thread has met while it takes them.
    static TAKEN: RefCell<Option<Residents>> = const { RefCell::new(None) };
}

/// Calls `f`, to which data with a tensor behind it has a mark in place of elements, and returns the tensors of these.
pub fn taking_residents<T>(f: impl FnOnce() -> T) -> (T, Residents) {
    /// Ends it also if `f` panics.
    struct End;

    impl Drop for End {
        fn drop(&mut self) {
            TAKEN.set(None);
        }
    }

    TAKEN.set(Some(Residents(HashMap::new())));
    let end = End;
    let result = f();
    let taken = TAKEN.take();
    drop(end);
    (result, taken.unwrap_or(Residents(HashMap::new())))
}

/// Returns the tensor of `device` that stands behind data, if one does.
pub(crate) fn tensor<T: 'static>(data: &TensorData, device: &MeshDevice) -> Option<T> {
    ASKING.set(true);
    // Whatever holds the bytes passes the question on.
    data.bytes().property();
    ASKING.set(false);
    let known = ANSWER.take()?;
    if known.resident.device() != *device || !known.is_of(data) {
        return None;
    }
    known
        .resident
        .tensor()
        .downcast()
        .ok()
        .map(|tensor| *tensor)
}

/// Calls `f` as if this thread neither took tensors nor gave any.
fn apart<T>(f: impl FnOnce() -> T) -> T {
    /// Goes on also if `f` panics.
    struct GoOn(Option<Exchange>);

    impl Drop for GoOn {
        fn drop(&mut self) {
            EXCHANGE.set(self.0.take());
        }
    }

    let _go_on = GoOn(EXCHANGE.take());
    f()
}

/// A tensor, and the data that it stands behind.
struct Known {
    resident: Box<dyn Resident>,
    shape: Shape,
    dtype: DType,
}

impl Known {
    /// Returns whether data with these bytes has the elements in their order: it may be a part, or of another shape.
    fn is_of(&self, data: &TensorData) -> bool {
        *data.shape() == self.shape && data.dtype() == self.dtype
    }
}

/// The memory of bytes with a tensor behind them.
struct Behind {
    /// `None` once somebody has written to the bytes.
    known: Option<Arc<Known>>,
    len: usize,
    read: OnceLock<Bytes>,
    /// A mark and zeros, as long as the bytes or longer.
    marked: OnceLock<(Mark, Vec<u64>)>,
}

impl Behind {
    fn read(&self, policy: AccessPolicy) -> Result<&Bytes, AccessError> {
        if self.len == 0 {
            return Ok(self.read.get_or_init(|| Bytes::from_bytes_vec(Vec::new())));
        }
        if let Some(read) = self.read.get() {
            return Ok(read);
        }
        let Some(known) = &self.known else {
            return Err(AccessError::Read("they are gone".into()));
        };
        if !policy.copy_allowed() {
            return Err(AccessError::WouldCopy);
        }
        // A thread that takes tensors out of a record takes none on the way here.
        let bytes = apart(|| known.resident.read()).map_err(AccessError::Read)?;
        if bytes.len() != self.len {
            let (found, expected) = (bytes.len(), self.len);
            let text = format!("{found} bytes were read, and the data has {expected}");
            return Err(AccessError::Read(text));
        }
        Ok(self.read.get_or_init(|| Bytes::from_bytes_vec(bytes)))
    }

    /// Returns a mark and zeros, if this thread takes residents.
    fn marked(&self) -> Option<&[u64]> {
        let known = self.known.as_ref().filter(|_| self.len > 0)?;
        TAKEN.with_borrow_mut(|taken| {
            let taken = taken.as_mut()?;
            let (mark, words) = self.marked.get_or_init(|| {
                let mark = Mark::new();
                (mark.cut(self.len), mark.with_zeros(self.len))
            });
            taken.0.insert(*mark, known.clone());
            Some(words.as_slice())
        })
    }
}

impl AllocationController for Behind {
    fn alloc_align(&self) -> usize {
        align_of::<u64>()
    }

    fn property(&self) -> AllocationProperty {
        let Some(known) = &self.known else {
            return AllocationProperty::Other;
        };
        if ASKING.get() {
            ANSWER.set(Some(known.clone()));
        }
        AllocationProperty::Device
    }

    unsafe fn memory_mut(
        &mut self,
        policy: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        self.read(policy)?;
        self.known = None;
        let Some(read) = self.read.get_mut() else {
            return Err(AccessError::Read("they are gone".into()));
        };
        // SAFETY: the caller writes initialised bytes alone, so they stay bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(read.as_mut_ptr().cast(), read.len()) })
    }

    fn memory(&self, policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: *const u8 = match self.marked() {
            Some(words) => words.as_ptr().cast(),
            None => self.read(policy)?.as_ptr(),
        };
        // SAFETY: both have `len` bytes or more, and they live as long as `self` and are not written to until then;
        // bytes may be taken for ones that need not be initialised.
        Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), self.len) })
    }

    fn capacity(&self) -> usize {
        self.len
    }

    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        Some(Box::new(Self {
            known: self.known.clone(),
            len: self.len,
            // What was written to is copied.
            read: match &self.known {
                Some(_) => OnceLock::new(),
                None => self.read.clone(),
            },
            marked: OnceLock::new(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A tensor of no mesh, which is a number; it counts how often it was read.
    struct Seven(Arc<AtomicUsize>, Vec<f32>);

    impl Resident for Seven {
        fn device(&self) -> MeshDevice {
            MeshDevice::NO_MESH
        }

        fn tensor(&self) -> AnyTensor {
            Box::new(7u32)
        }

        fn read(&self) -> Result<Vec<u8>, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(self.1.iter().flat_map(|x| x.to_ne_bytes()).collect())
        }
    }

    fn seven(elements: &[f32]) -> (Arc<AtomicUsize>, TensorData) {
        let count = Arc::new(AtomicUsize::new(0));
        let seven = Seven(count.clone(), elements.into());
        (count, data_of(seven, [elements.len()].into(), DType::F32))
    }

    fn here(data: &TensorData) -> Option<u32> {
        tensor(data, &MeshDevice::NO_MESH)
    }

    #[test]
    fn what_is_moved_to_its_mesh_is_not_read() {
        let (count, data) = seven(&[1.0, 2.0]);
        for data in [data.clone(), data.clone().convert_dtype(DType::F32)] {
            assert_eq!(here(&data), Some(7));
            assert_eq!(tensor::<u32>(&data, &MeshDevice::find(41_000)), None);
            assert_eq!(tensor::<u64>(&data, &MeshDevice::NO_MESH), None);
        }
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!(here(&TensorData::from([1.0f32, 2.0])), None);
    }

    #[test]
    fn bytes_under_another_shape_or_type_or_a_part_of_them_are_other_data() {
        let (_, data) = seven(&[1.0, 2.0]);
        let (bytes, _, _) = data.into_parts();
        let of = |shape: &[usize], dtype| TensorData::from_bytes(bytes.clone(), shape, dtype);
        assert_eq!(here(&of(&[2], DType::F32)), Some(7));
        assert_eq!(here(&of(&[1, 2], DType::F32)), None);
        assert_eq!(here(&of(&[1], DType::F64)), None);
        let (half, _) = bytes
            .shared()
            .split(4, burn_std::SplitPolicy::Shared)
            .expect("in two");
        let half = TensorData::from_bytes(half, [1], DType::F32);
        assert_eq!(here(&half), None);
        assert_eq!(half, TensorData::from([1.0f32]));
    }

    #[test]
    fn who_looks_at_it_sees_its_elements() {
        let (count, data) = seven(&[1.0, 2.0]);
        assert_eq!(data, TensorData::from([1.0f32, 2.0]));
        assert_eq!(data, TensorData::from([1.0f32, 2.0]));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // And it stays what it is.
        assert_eq!(here(&data), Some(7));
    }

    #[test]
    fn what_was_written_to_is_other_data() {
        let (_, data) = seven(&[1.0, 2.0]);
        let (mut bytes, shape, dtype) = data.into_parts();
        bytes[..4].copy_from_slice(&5.0f32.to_ne_bytes());
        let data = TensorData::from_bytes(bytes, shape, dtype);
        for data in [data.clone(), data] {
            assert_eq!(here(&data), None);
            assert_eq!(data, TensorData::from([5.0f32, 2.0]));
            let (copy, taken) = taking_residents(|| data.as_bytes().to_vec());
            assert_eq!(copy, data.as_bytes());
            assert!(taken.0.is_empty());
        }
    }

    #[test]
    fn who_takes_residents_reads_none() {
        let copy = |data: &TensorData| {
            let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
            TensorData::from_bytes(bytes, data.shape().clone(), data.dtype())
        };
        for elements in [vec![1.0], vec![1.0, 2.0], vec![1.0, 2.0, 3.0]] {
            let (count, data) = seven(&elements);
            let (_, other) = seven(&elements);
            for _ in 0..2 {
                let ((copied, another), taken) = taking_residents(|| (copy(&data), copy(&other)));
                assert_eq!(count.load(Ordering::Relaxed), 0);
                assert_ne!(copied, another);
                let tensor = taken.tensor(&copied).expect("a mark");
                assert_eq!(tensor.downcast_ref(), Some(&7u32));
                assert!(taken.tensor(&another).is_some());
                let plain = TensorData::new(elements.clone(), [elements.len()]);
                assert!(taken.tensor(&plain).is_none());
            }
            assert_eq!(
                copy(&data),
                TensorData::new(elements.clone(), [elements.len()])
            );
            // One that was looked at is taken too.
            let (copied, taken) = taking_residents(|| copy(&data));
            assert!(taken.tensor(&copied).is_some());
        }
    }

    #[test]
    fn a_panic_ends_the_taking() {
        let panicked = std::panic::catch_unwind(|| taking_residents(|| panic!("on the way")));
        assert!(panicked.is_err());
        assert!(TAKEN.with_borrow(Option::is_none));
    }

    #[test]
    fn of_no_elements_nothing_is_read() {
        let (count, data) = seven(&[]);
        let (bytes, taken) = taking_residents(|| data.as_bytes().to_vec());
        assert!(bytes.is_empty() && taken.0.is_empty());
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!(here(&data), Some(7));
    }
}
