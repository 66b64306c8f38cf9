//! CubeCL's language where its versions differ: the same names for both, so that all other files are one text.
//!
//! CubeCL 0.11 (Burn 0.22) has slices where 0.10 (Burn 0.21) has arrays, one client for all runtimes where 0.10 has one
//! for each, and functions where 0.10 indexes vectors.

use cubecl::ir::FloatKind;
use cubecl::prelude::*;
use cubecl::server::Handle;

pub use names::Client;
pub(crate) use names::{Buffer, Kind, Shared, array, insert, kind, part, shared};
#[cfg(not(burn_021))]
pub(crate) use names::{Buffers, arrays, read, words, write};

#[cfg(not(burn_021))]
mod names {
    use super::*;

    /// A device's queue of kernels, with its memory: a client of CubeCL's.
    pub trait Client {
        /// Returns CubeCL's own.
        fn cubecl(&self) -> &cubecl::client::Client;
    }

    impl Client for cubecl::client::Client {
        fn cubecl(&self) -> &cubecl::client::Client {
            self
        }
    }

    /// Elements in a device's memory, as an argument of kernels.
    pub(crate) type Buffer<T> = [T];
    /// The buffers of words that a kernel is launched with.
    pub(crate) type Buffers = Sequence<Box<[u32]>>;
    /// Memory that the units of a cube share.
    pub(crate) type Shared<T> = cubecl::prelude::Shared<[T]>;
    /// The type of numbers.
    pub(crate) type Kind = cubecl::ir::ElemType;

    /// Returns the type of floats of a kind.
    pub(crate) fn kind(float: FloatKind) -> Kind {
        Kind::Float(float)
    }

    /// Returns shared memory for so many elements, which are not set yet.
    #[cube]
    pub(crate) fn shared<T: CubePrimitive>(#[comptime] length: usize) -> Shared<T> {
        Shared::<T>::new_slice(length)
    }

    /// Returns an element of a vector.
    #[cube]
    pub(crate) fn part<T: Scalar, N: Size>(vector: Vector<T, N>, #[comptime] index: usize) -> T {
        vector.extract(index)
    }

    /// Sets an element of a vector.
    #[cube]
    pub(crate) fn insert<T: Scalar, N: Size>(
        vector: &mut Vector<T, N>,
        #[comptime] index: usize,
        value: T,
    ) {
        vector.insert(index, value);
    }

    /// Returns a word of one of some buffers.
    #[cube]
    pub(crate) fn read(buffers: &Buffers, #[comptime] buffer: usize, at: usize) -> u32 {
        buffers.index(buffer)[at]
    }

    /// Sets a word of one of some buffers.
    #[cube]
    pub(crate) fn write(buffers: &mut Buffers, #[comptime] buffer: usize, at: usize, word: u32) {
        buffers.index_mut(buffer)[at] = word;
    }

    /// Hands buffers to a kernel, each with its words.
    pub(crate) fn arrays(buffers: &[(Handle, usize)]) -> SequenceArg<Box<[u32]>> {
        let each = buffers.iter().map(|(handle, words)| array(handle, *words));
        each.collect()
    }

    /// Hands numbers to a kernel, in order.
    pub(crate) fn words(words: &[u32]) -> SequenceArg<u32> {
        words.iter().copied().collect()
    }

    /// Hands a buffer of `length` words, or of vectors of them, to a kernel.
    pub(crate) fn array(handle: &Handle, length: usize) -> BufferArg {
        let mut binding = handle.clone().binding();
        binding.size += super::rest_of_word(handle);
        // SAFETY: kernels are launched with checks of bounds, which are those of the buffer.
        unsafe { BufferArg::from_raw_parts_binding(binding, length) }
    }
}

#[cfg(burn_021)]
mod names {
    use super::*;

    /// A device's queue of kernels, with its memory: a client of CubeCL's.
    pub trait Client {
        /// The runtime of its kernels.
        type Runtime: Runtime;

        /// Returns CubeCL's own.
        fn cubecl(&self) -> &ComputeClient<Self::Runtime>;
    }

    impl<R: Runtime> Client for ComputeClient<R> {
        type Runtime = R;

        fn cubecl(&self) -> &ComputeClient<R> {
            self
        }
    }

    /// Elements in a device's memory, as an argument of kernels.
    pub(crate) type Buffer<T> = Array<T>;
    /// Memory that the units of a cube share.
    pub(crate) type Shared<T> = SharedMemory<T>;
    /// The type of numbers.
    pub(crate) type Kind = StorageType;

    /// Returns the type of floats of a kind.
    pub(crate) fn kind(float: FloatKind) -> Kind {
        cubecl::ir::ElemType::Float(float).into()
    }

    /// Returns shared memory for so many elements, which are not set yet.
    #[cube]
    pub(crate) fn shared<T: CubePrimitive>(#[comptime] length: usize) -> Shared<T> {
        SharedMemory::<T>::new(length)
    }

    /// Returns an element of a vector.
    #[cube]
    pub(crate) fn part<T: Scalar, N: Size>(vector: Vector<T, N>, #[comptime] index: usize) -> T {
        vector[index]
    }

    /// Sets an element of a vector.
    #[cube]
    pub(crate) fn insert<T: Scalar, N: Size>(
        vector: &mut Vector<T, N>,
        #[comptime] index: usize,
        value: T,
    ) {
        vector[index] = value;
    }

    /// Hands a buffer of `length` words, or of vectors of them, to a kernel.
    pub(crate) fn array<R: Runtime>(handle: &Handle, length: usize) -> ArrayArg<R> {
        let mut binding = handle.clone().binding();
        binding.size += super::rest_of_word(handle);
        // SAFETY: kernels are launched with checks of bounds, which are those of the buffer.
        unsafe { ArrayArg::from_raw_parts_binding(binding, length) }
    }
}

/// Returns the bytes of a buffer's last word that are no element's: memory is handed out in steps of more than a word.
fn rest_of_word(handle: &Handle) -> u64 {
    let used = handle.size_in_used();
    used.next_multiple_of(4) - used
}
