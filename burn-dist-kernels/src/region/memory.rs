//! Memory of a region: operands, outputs, and the elements of both.

use std::mem::MaybeUninit;

use bytemuck::{Pod, Zeroable};

/// Dims, operands and results that take no memory of their own for what a run notes of them; most regions have fewer.
pub(super) const FEW: usize = 4;

/// The bytes of an operand.
#[derive(Debug)]
pub enum Memory<'a> {
    /// Memory that others may read too.
    Shared(&'a [u8]),
    /// Memory that the region alone has, so that an output may [take its place](Output::Over).
    Unique(&'a mut [u8]),
}

impl Memory<'_> {
    /// Returns the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Unique(bytes) => bytes,
        }
    }
}

/// An operand of a region.
#[derive(Debug)]
pub struct Operand<'a> {
    /// Its bytes, aligned as its elements are.
    pub memory: Memory<'a>,
    /// The element at index zero of every dim.
    pub offset: usize,
    /// Elements from one index to the next, for each dim of the space: any number, also negative. Not read where the
    /// operand has no such dim.
    pub strides: &'a [isize],
}

/// Random numbers: writes those of the elements from one on, by its number in the space of the region. They are as the
/// type of the draw has them.
pub type Draw<'a> = &'a (dyn Fn(usize, &mut [MaybeUninit<f32>]) + Sync);

/// Where a result is written: its elements in order, one after the other.
#[derive(Debug)]
pub enum Output<'a> {
    /// Memory of its own, every byte of which a run writes.
    New(&'a mut [MaybeUninit<u8>]),
    /// The place of an operand, by its index: its memory is [unique](Memory::Unique), and exactly its elements in
    /// order, as many of the same size as the result has.
    Over(usize),
}

/// A line of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: bytes, of any value, and nothing between them.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// Scratch memory for values of any type.
#[derive(Default)]
pub(super) struct Buffer(Vec<Line>);

impl Buffer {
    /// Makes room for some bytes.
    pub(super) fn reserve(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
    }

    /// Returns how many bytes it has.
    pub(super) fn len(&self) -> usize {
        self.0.len() * size_of::<Line>()
    }

    /// Returns its first byte.
    pub(super) fn first(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    /// Returns its elements.
    #[inline]
    pub(super) fn elements<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }

    /// Returns its elements, to be written.
    #[inline]
    pub(super) fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Views elements as places that are only written.
#[inline]
pub(super) fn places<T: Pod>(elements: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: the same memory, for as long; the callers are the loops of this module, which write values and never take
    // one away. `T` has no padding, so that what they write has every byte.
    unsafe { &mut *(std::ptr::from_mut(elements) as *mut [MaybeUninit<T>]) }
}

/// Views bytes that are only written as elements.
///
/// # Panics
/// If they do not begin and end where elements do.
#[inline]
pub fn places_of<T: Pod>(bytes: &mut [MaybeUninit<u8>]) -> &mut [MaybeUninit<T>] {
    // SAFETY: any bytes, written or not, are a `MaybeUninit<T>`, and a `T` without padding leaves no byte unwritten.
    let (before, elements, after) = unsafe { bytes.align_to_mut::<MaybeUninit<T>>() };
    assert!(
        before.is_empty() && after.is_empty(),
        "an output begins and ends where elements do"
    );
    elements
}

/// Views places of elements as those of their bytes.
#[inline]
pub(super) fn bytes_of<T: Pod>(places: &mut [MaybeUninit<T>]) -> &mut [MaybeUninit<u8>] {
    let len = size_of_val(places);
    // SAFETY: the same memory, for as long: bytes, written or not, that are only written.
    unsafe { std::slice::from_raw_parts_mut(places.as_mut_ptr().cast(), len) }
}
