//! Shared runs of bytes: the inputs and outputs of collectives.

use super::CommError;
use bytemuck::NoUninit;
use std::any::Any;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Memory that ranks share: whatever derefs to bytes which stay where and as they are while it is shared.
///
/// A tensor library's own buffers are inputs as they are, and it says in [`LocalOptions::share`] what outputs are.
///
/// [`LocalOptions::share`]: super::LocalOptions::share
pub trait Buffer: Deref<Target = [u8]> + Any + Send + Sync {}

impl<T: Deref<Target = [u8]> + Any + Send + Sync> Buffer for T {}

impl fmt::Debug for dyn Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// A buffer with all who hold it: members whose outputs are equal get the same one.
pub type SharedBuffer = Arc<dyn Buffer>;

/// Returns a buffer as the type that it was made from, or unchanged.
///
/// # Errors
/// The buffer, if it is of another type.
pub fn downcast<T: Buffer>(buffer: SharedBuffer) -> Result<Arc<T>, SharedBuffer> {
    if !(&*buffer as &dyn Any).is::<T>() {
        return Err(buffer);
    }
    let any: Arc<dyn Any + Send + Sync> = buffer;
    Ok(any.downcast().expect("asked above"))
}

/// Returns elements as a buffer, without a copy.
pub fn elements<E: NoUninit + Send + Sync>(elements: Vec<E>) -> SharedBuffer {
    Arc::new(Elements(elements))
}

struct Elements<E>(Vec<E>);

impl<E: NoUninit> Deref for Elements<E> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// A contiguous part of a shared buffer, passed to a collective without a copy.
///
/// The buffer is read by the other members until the collective has finished; holding the [`Arc`] is what keeps it
/// alive and unchanged.
#[derive(Clone, Debug)]
pub struct Block {
    data: SharedBuffer,
    range: Range<usize>,
}

impl Block {
    /// Returns the bytes `range` of `data`.
    ///
    /// # Errors
    /// [`CommError::OutOfBounds`] if `range` does not lie within `data`.
    pub fn new(data: SharedBuffer, range: Range<usize>) -> Result<Self, CommError> {
        if range.start > range.end || range.end > data.len() {
            return Err(CommError::OutOfBounds {
                range,
                len: data.len(),
            });
        }
        Ok(Self { data, range })
    }

    /// Returns all bytes of `data`.
    pub fn whole(data: SharedBuffer) -> Self {
        let range = 0..data.len();
        Self { data, range }
    }

    /// Returns no bytes.
    pub fn empty() -> Self {
        Self::from(Vec::<u128>::new())
    }

    /// Returns the bytes `range` of this block.
    ///
    /// # Panics
    /// If they do not lie within it.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len());
        Self {
            data: Arc::clone(&self.data),
            range: self.range.start + range.start..self.range.start + range.end,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }

    /// The whole buffer, if the block covers all of it.
    ///
    /// # Errors
    /// The block, if it is a part.
    pub(crate) fn into_whole(self) -> Result<SharedBuffer, Self> {
        match self.range.len() == self.data.len() {
            true => Ok(self.data),
            false => Err(self),
        }
    }
}

impl From<SharedBuffer> for Block {
    fn from(data: SharedBuffer) -> Self {
        Self::whole(data)
    }
}

impl<T: Buffer> From<Arc<T>> for Block {
    fn from(data: Arc<T>) -> Self {
        Self::whole(data)
    }
}

impl<E: NoUninit + Send + Sync> From<Vec<E>> for Block {
    fn from(elements: Vec<E>) -> Self {
        Self::whole(self::elements(elements))
    }
}
