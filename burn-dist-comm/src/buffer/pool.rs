//! Buffers that come back: allocation, recycling, and the hand-over as outputs.

use crate::block::{Block, SharedBuffer, downcast};
use crate::sync::lock;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Alignment of every buffer: a cache line, and a whole number of vector registers.
const ALIGN: usize = 64;
/// Smaller buffers are left to the allocator, which recycles them well by itself.
const POOLED_MIN: usize = 64 << 10;

/// Freed output buffers, kept for the next collective of about the same size.
///
/// The first touch of fresh memory costs more than the copy into it (page faults), so a steady training step should see
/// no fresh memory. Buffers return when they are dropped, wherever that happens; memory beyond the bound goes back
/// to the allocator.
#[derive(Debug)]
pub struct Pool {
    free: Mutex<Free>,
    max_bytes: AtomicUsize,
    /// The part of a buffer that may be more than what is asked for: one of so many. `None`: nothing may.
    waste: Option<usize>,
    /// Makes outputs of buffers; without it they are outputs themselves.
    share: Option<Share>,
}

/// Makes of an output the buffer that ranks share: see [`LocalOptions::share`](crate::LocalOptions::share).
pub type Share = fn(PoolBuffer) -> SharedBuffer;

#[derive(Debug, Default)]
struct Free {
    bytes: usize,
    by_capacity: BTreeMap<usize, Vec<Region>>,
}

impl Pool {
    /// Returns a pool that keeps at most so many freed bytes.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        Self::sharing(max_bytes, None)
    }

    /// Returns a pool that keeps nothing until it [may](Pool::keep_at_most), and whose buffers are never larger than
    /// what is asked for, but for the end of a page.
    pub fn exact() -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            max_bytes: AtomicUsize::new(0),
            waste: None,
            share: None,
        })
    }

    /// Like [`Pool::new`], with outputs of the kind that `share` makes.
    pub(crate) fn sharing(max_bytes: usize, share: Option<Share>) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            max_bytes: AtomicUsize::new(max_bytes),
            waste: Some(8),
            share,
        })
    }

    /// Sets how many freed bytes are kept at most, from now on. Gives back what is more.
    pub fn keep_at_most(&self, max_bytes: usize) {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        let dropped = lock(&self.free).shrink_to(max_bytes);
        drop(dropped);
    }

    /// Returns how many freed bytes are kept.
    pub fn kept_bytes(&self) -> usize {
        lock(&self.free).bytes
    }

    /// Returns a buffer of `len` bytes, uninitialised.
    pub fn take(self: &Arc<Self>, len: usize) -> PoolMemory {
        let capacity = if len < POOLED_MIN {
            len.next_multiple_of(ALIGN)
        } else {
            len.next_multiple_of(4096)
        };
        let recycled = (capacity >= POOLED_MIN)
            .then(|| {
                let waste = self.waste.map_or(0, |of| capacity / of);
                lock(&self.free).take(capacity, waste)
            })
            .flatten();
        let region = recycled.unwrap_or_else(|| Region::new(capacity));
        PoolMemory {
            region: Some(region),
            len,
            pool: Arc::clone(self),
        }
    }

    /// Returns a copy of `bytes`, aligned for every element type.
    pub fn copy_of(self: &Arc<Self>, bytes: &[u8]) -> SharedBuffer {
        let memory = self.take(bytes.len());
        // SAFETY: the new memory has `bytes.len()` bytes and is not shared yet; afterwards all of them are initialised.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.as_ptr(), bytes.len());
            memory.finish()
        }
    }

    /// Returns a member's input as an output: its buffer, where that is of the kind that outputs are, or a copy.
    pub(crate) fn adopt(self: &Arc<Self>, input: Block) -> SharedBuffer {
        let buffer = match input.into_whole() {
            Ok(buffer) => buffer,
            Err(part) => return self.copy_of(part.as_slice()),
        };
        let Some(share) = self.share else {
            return buffer;
        };
        // A transport that does not know what outputs are has received it.
        match downcast::<PoolBuffer>(buffer).map(Arc::try_unwrap) {
            Ok(Ok(received)) => share(received),
            Ok(Err(held)) => self.copy_of(&held),
            Err(buffer) => buffer,
        }
    }

    fn put(&self, region: Region) {
        let mut free = lock(&self.free);
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        if region.capacity < POOLED_MIN || region.capacity > max_bytes {
            return;
        }
        let dropped = free.shrink_to(max_bytes - region.capacity);
        free.bytes += region.capacity;
        free.by_capacity
            .entry(region.capacity)
            .or_default()
            .push(region);
        // Unmapping is slow; others need not wait for it.
        drop(free);
        drop(dropped);
    }
}

impl Free {
    fn take(&mut self, capacity: usize, waste: usize) -> Option<Region> {
        let (&found, _) = self.by_capacity.range(capacity..=capacity + waste).next()?;
        self.take_exact(found)
    }

    /// Takes buffers until no more than so many bytes are left. The largest go first: one of them makes room for many.
    fn shrink_to(&mut self, bytes: usize) -> Vec<Region> {
        let mut taken = Vec::new();
        while self.bytes > bytes {
            match self.take_largest() {
                Some(largest) => taken.push(largest),
                None => break,
            }
        }
        taken
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

/// An owned allocation of `capacity` bytes, aligned to [`ALIGN`], with any contents.
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

/// Memory of a [`Pool`], initialised or not; returns to it when dropped.
#[derive(Debug)]
pub struct PoolMemory {
    /// `Some` until dropped.
    region: Option<Region>,
    len: usize,
    pool: Arc<Pool>,
}

impl PoolMemory {
    /// The number of which addresses are multiples.
    pub const ALIGN: usize = ALIGN;

    fn region(&self) -> &Region {
        self.region
            .as_ref()
            .expect("memory has its region until it is dropped")
    }

    /// Number of bytes that were asked for.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// All bytes, at least as many as were asked for.
    pub fn as_uninit(&self) -> &[MaybeUninit<u8>] {
        let region = self.region();
        // SAFETY: the region is valid for `capacity` bytes of any content, and who writes through `as_ptr` has not
        // handed it out yet.
        unsafe { std::slice::from_raw_parts(region.ptr.as_ptr().cast(), region.capacity) }
    }

    /// All bytes, at least as many as were asked for.
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let region = self.region();
        // SAFETY: as above, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(region.ptr.as_ptr().cast(), region.capacity) }
    }

    /// Moves the content into memory of at least `bytes` bytes.
    pub fn grow(&mut self, bytes: usize) {
        let mut larger = self.pool.take(bytes);
        let len = self.as_uninit().len().min(larger.as_uninit().len());
        larger.as_uninit_mut()[..len].copy_from_slice(&self.as_uninit()[..len]);
        *self = larger;
    }

    /// Start of the bytes, aligned to 64. Valid for reads of initialised bytes and for writes, for `len` bytes, as long
    /// as `self` lives; the caller keeps accesses of different threads apart.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.region().ptr.as_ptr()
    }

    /// Hands the memory over as an output.
    ///
    /// # Safety
    /// All `len` bytes are initialised, and nobody writes them through [`PoolMemory::as_ptr`] any more.
    pub(crate) unsafe fn finish(self) -> SharedBuffer {
        let share = self.pool.share;
        let output = PoolBuffer(self);
        match share {
            Some(share) => share(output),
            None => Arc::new(output),
        }
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.put(region);
        }
    }
}

/// A finished output: bytes that return to their pool when dropped.
#[derive(Debug)]
pub struct PoolBuffer(PoolMemory);

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `PoolMemory::finish` was promised that these bytes are initialised and nobody writes them.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len) }
    }
}

impl PoolBuffer {
    /// Returns the memory, whose first bytes are these ones: for a type of one's own around it.
    pub fn into_memory(self) -> PoolMemory {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_output_is_used_again_and_the_bound_holds() {
        let pool = Pool::new(1 << 20);
        let bytes = pool.copy_of(&vec![7; 100_000]);
        assert_eq!(bytes.len(), 100_000);
        assert!(bytes.iter().all(|&byte| byte == 7));
        let address = bytes.as_ptr();
        assert!(address.addr().is_multiple_of(64));
        drop(bytes);
        assert_eq!(pool.kept_bytes(), 102_400);
        let again = pool.copy_of(&vec![8; 99_000]);
        assert_eq!(again.as_ptr(), address);
        assert_eq!(pool.kept_bytes(), 0);
        drop(again);
        for _ in 0..2 {
            let many: Vec<_> = (0..12).map(|_| pool.take(100_000)).collect();
            drop(many);
            assert!(
                pool.kept_bytes() <= 1 << 20 && pool.kept_bytes() > 900_000,
                "{}",
                pool.kept_bytes()
            );
        }
        drop(pool.take(2 << 20));
        assert!(pool.kept_bytes() <= 1 << 20);
        pool.keep_at_most(200_000);
        assert_eq!(pool.kept_bytes(), 102_400);
    }

    #[test]
    fn an_exact_pool_keeps_what_it_may_and_wastes_nothing() {
        let pool = Pool::exact();
        drop(pool.take(102_400));
        assert_eq!(pool.kept_bytes(), 0);
        pool.keep_at_most(1 << 20);
        drop(pool.take(102_400));
        assert_eq!(pool.take(95_000).as_uninit().len(), 98_304);
        assert_eq!(pool.kept_bytes(), 102_400 + 98_304);
        assert_eq!(pool.take(102_400).as_uninit().len(), 102_400);
        pool.keep_at_most(0);
        assert_eq!(pool.kept_bytes(), 0);
    }

    #[test]
    fn empty_and_small_outputs_are_plain_memory() {
        let pool = Pool::new(1 << 20);
        assert_eq!(pool.copy_of(&[]).len(), 0);
        let small = downcast::<PoolBuffer>(pool.copy_of(&[1, 2, 3])).expect("a plain pool");
        let mut small = Arc::into_inner(small).expect("not shared").into_memory();
        small.grow(200);
        assert!(small.as_uninit().len() >= 200);
        // SAFETY: these three were.
        let bytes = small.as_uninit()[..3]
            .iter()
            .map(|byte| unsafe { byte.assume_init() });
        assert!(bytes.eq([1, 2, 3]));
        drop(small);
        assert_eq!(pool.kept_bytes(), 0);
    }

    /// Another library's buffer.
    struct Foreign(PoolMemory, usize);

    impl Deref for Foreign {
        type Target = [u8];

        fn deref(&self) -> &[u8] {
            // SAFETY: made of so many initialised bytes.
            unsafe { self.0.as_uninit()[..self.1].assume_init_ref() }
        }
    }

    fn foreign(output: PoolBuffer) -> SharedBuffer {
        let len = output.len();
        Arc::new(Foreign(output.into_memory(), len))
    }

    #[test]
    fn what_is_handed_on_is_of_the_kind_of_outputs_and_copied_only_where_others_hold_it() {
        let (received, pool) = (Pool::new(1 << 20), Pool::sharing(1 << 20, Some(foreign)));
        let address = |buffer: &SharedBuffer| buffer.as_ptr();
        let own = pool.copy_of(&[5; 8]);
        let same = pool.adopt(Block::from(Arc::clone(&own)));
        assert_eq!(address(&same), address(&own));
        let arrived = received.copy_of(&[6; 8]);
        let before = address(&arrived);
        let adopted = pool.adopt(Block::from(arrived));
        assert_eq!(address(&adopted), before);
        assert!(downcast::<Foreign>(adopted).is_ok());
        let held = received.copy_of(&[7; 8]);
        let copy = pool.adopt(Block::from(Arc::clone(&held)));
        assert!(address(&copy) != address(&held) && copy[..] == held[..]);
        let part = pool.adopt(Block::new(Arc::clone(&own), 2..5).expect("a part"));
        assert!(part[..] == [5; 3] && downcast::<Foreign>(part).is_ok());
        let plain = received.adopt(Block::from(Arc::clone(&held)));
        assert_eq!(address(&plain), address(&held));
    }
}
