//! Buffers that come back: allocation, recycling, and the hand-over to [`Bytes`].

use crate::comm::sync::{Arc, Mutex, lock};
use burn_std::{AllocationController, AllocationError, AllocationProperty, Bytes};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Alignment of every buffer: a cache line, and a whole number of vector registers.
const ALIGN: usize = 64;
/// What [`Bytes`] is told: its clones use it, and they support at most 16.
const REPORTED_ALIGN: usize = 16;
/// Smaller buffers are left to the allocator, which recycles them well by itself.
const POOLED_MIN: usize = 64 << 10;

/// Freed output buffers, kept for the next collective of about the same size.
///
/// The first touch of fresh memory costs more than the copy into it (page faults), so a steady training step should see
/// no fresh memory. Buffers return when their [`Bytes`] is dropped, wherever that happens; what exceeds the bound is
/// given back to the allocator.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Free>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Free {
    bytes: usize,
    by_capacity: BTreeMap<usize, Vec<Region>>,
}

impl Pool {
    pub(crate) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            max_bytes,
        })
    }

    /// Returns a buffer of `len` bytes, uninitialised.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let capacity = if len < POOLED_MIN {
            len.next_multiple_of(ALIGN)
        } else {
            len.next_multiple_of(4096)
        };
        let recycled = (capacity >= POOLED_MIN)
            .then(|| lock(&self.free).take(capacity))
            .flatten();
        let region = recycled.unwrap_or_else(|| Region::new(capacity));
        Buffer {
            region: Some(region),
            len,
            pool: Arc::clone(self),
        }
    }

    fn put(&self, region: Region) {
        if region.capacity < POOLED_MIN || region.capacity > self.max_bytes {
            return;
        }
        let mut dropped = Vec::new();
        let mut free = lock(&self.free);
        // The largest go first: one of them makes room for many.
        while free.bytes + region.capacity > self.max_bytes {
            match free.take_largest() {
                Some(largest) => dropped.push(largest),
                None => break,
            }
        }
        free.bytes += region.capacity;
        free.by_capacity
            .entry(region.capacity)
            .or_default()
            .push(region);
        // Unmapping is slow; others need not wait for it.
        drop(free);
        drop(dropped);
    }

    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        lock(&self.free).bytes
    }
}

impl Free {
    fn take(&mut self, capacity: usize) -> Option<Region> {
        // At most an eighth is wasted.
        let (&found, _) = self
            .by_capacity
            .range(capacity..=capacity + capacity / 8)
            .next()?;
        self.take_exact(found)
    }

    fn take_largest(&mut self) -> Option<Region> {
        let (&found, _) = self.by_capacity.last_key_value()?;
        self.take_exact(found)
    }

    fn take_exact(&mut self, capacity: usize) -> Option<Region> {
        let regions = self.by_capacity.get_mut(&capacity)?;
        let region = regions.pop();
        if regions.is_empty() {
            self.by_capacity.remove(&capacity);
        }
        self.bytes -= region.as_ref().map_or(0, |region| region.capacity);
        region
    }
}

/// An owned allocation of `capacity` bytes, aligned to [`ALIGN`]; nothing is said about its contents.
#[derive(Debug)]
struct Region {
    /// Dangling if `capacity` is 0.
    ptr: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a region owns its memory alone, like a `Box<[MaybeUninit<u8>]>`; nothing in it belongs to a thread.
unsafe impl Send for Region {}
// SAFETY: through `&Region` one can only read the pointer and the length.
unsafe impl Sync for Region {}

impl Region {
    fn new(capacity: usize) -> Self {
        if capacity == 0 {
            return Self {
                ptr: NonNull::<u128>::dangling().cast(),
                capacity,
            };
        }
        let layout = Self::layout(capacity);
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc(layout) };
        Self {
            ptr: NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout)),
            capacity,
        }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN)
            .expect("a buffer is smaller than half of the address space")
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.capacity > 0 {
            // SAFETY: allocated in `new` with this very layout, and owned by `self` alone.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

/// A buffer on its way to become an output; returns to the pool when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// `Some` until dropped.
    region: Option<Region>,
    len: usize,
    pool: Arc<Pool>,
}

impl Buffer {
    fn region(&self) -> &Region {
        self.region
            .as_ref()
            .expect("a buffer has its region until it is dropped")
    }

    /// Number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Start of the bytes, aligned to 64. Valid for reads of initialised bytes and for writes, for `len` bytes, as long
    /// as `self` lives; the caller keeps accesses of different threads apart.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.region().ptr.as_ptr()
    }

    /// Hands the buffer over.
    ///
    /// # Safety
    /// All `len` bytes are initialised, and nobody writes them through [`Buffer::as_ptr`] any more.
    pub(crate) unsafe fn into_bytes(self) -> Bytes {
        let len = self.len;
        // SAFETY: the caller says that the first `len` bytes are initialised.
        unsafe { Bytes::from_controller(Box::new(Pooled(self)), len) }
    }

    /// Returns a copy of `bytes` in a pooled buffer.
    pub(crate) fn copy_of(pool: &Arc<Pool>, bytes: &[u8]) -> Bytes {
        let buffer = pool.take(bytes.len());
        // SAFETY: the new buffer has `bytes.len()` bytes and is not shared yet; afterwards all of them are initialised.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.as_ptr(), bytes.len());
            buffer.into_bytes()
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.put(region);
        }
    }
}

/// The owner behind a [`Bytes`] made from a [`Buffer`].
struct Pooled(Buffer);

impl AllocationController for Pooled {
    fn alloc_align(&self) -> usize {
        REPORTED_ALIGN
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Native
    }

    fn grow(&mut self, size: usize, align: usize) -> Result<(), AllocationError> {
        if align > ALIGN {
            return Err(AllocationError::UnsupportedOperation);
        }
        let (larger, smaller) = (self.0.pool.take(size), self.0.region());
        // SAFETY: both regions are owned alone (`&mut self`, and a new one), and the larger one holds the whole content
        // of the smaller one; the bytes are copied untyped, initialised or not.
        unsafe {
            let len = smaller.capacity.min(larger.region().capacity);
            std::ptr::copy_nonoverlapping(smaller.ptr.as_ptr(), larger.as_ptr(), len);
        }
        self.0 = larger;
        Ok(())
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the region is valid for `capacity` bytes of any content and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast(), self.0.region().capacity) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: the region is valid for `capacity` bytes of any content; `into_bytes` ended all writers but
        // `memory_mut`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.region().capacity) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_output_is_used_again_and_the_bound_holds() {
        let pool = Pool::new(1 << 20);
        let bytes = Buffer::copy_of(&pool, &vec![7; 100_000]);
        assert_eq!(bytes.len(), 100_000);
        assert!(bytes.iter().all(|&byte| byte == 7));
        let address = bytes.as_ptr();
        assert!(address.addr().is_multiple_of(64));
        drop(bytes);
        assert_eq!(pool.free_bytes(), 102_400);
        let again = Buffer::copy_of(&pool, &vec![8; 99_000]);
        assert_eq!(again.as_ptr(), address);
        assert_eq!(pool.free_bytes(), 0);
        let clone = again.clone();
        assert_eq!(clone, again);
        drop(again);
        for _ in 0..2 {
            let many: Vec<_> = (0..12).map(|_| pool.take(100_000)).collect();
            drop(many);
            assert!(
                pool.free_bytes() <= 1 << 20 && pool.free_bytes() > 900_000,
                "{}",
                pool.free_bytes()
            );
        }
        drop(pool.take(2 << 20));
        assert!(pool.free_bytes() <= 1 << 20);
    }

    #[test]
    fn empty_and_small_outputs_are_plain_memory() {
        let pool = Pool::new(1 << 20);
        assert_eq!(Buffer::copy_of(&pool, &[]).len(), 0);
        let mut small = Buffer::copy_of(&pool, &[1, 2, 3]);
        small.extend_from_byte_slice(&[4; 200]);
        assert_eq!(small[..4], [1, 2, 3, 4]);
        drop(small);
        assert_eq!(pool.free_bytes(), 0);
    }
}
