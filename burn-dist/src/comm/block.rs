//! The input of a collective: a shared immutable run of bytes.

use super::CommError;
use burn_std::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A contiguous part of a shared buffer, passed to a collective without a copy.
///
/// The buffer is read by the other members until the collective has finished; holding the [`Arc`] is what keeps it
/// alive and unchanged.
#[derive(Clone, Debug)]
pub struct Block {
    data: Arc<Bytes>,
    range: Range<usize>,
}

impl Block {
    /// Returns the bytes `range` of `data`.
    ///
    /// # Errors
    /// [`CommError::OutOfBounds`] if `range` does not lie within `data`.
    pub fn new(data: Arc<Bytes>, range: Range<usize>) -> Result<Self, CommError> {
        if range.start > range.end || range.end > data.len() {
            return Err(CommError::OutOfBounds {
                range,
                len: data.len(),
            });
        }
        Ok(Self { data, range })
    }

    /// Returns all bytes of `data`.
    pub fn whole(data: Arc<Bytes>) -> Self {
        let range = 0..data.len();
        Self { data, range }
    }

    /// Returns no bytes.
    pub(crate) fn empty() -> Self {
        Self::whole(Arc::new(Bytes::from_elems::<u128>(Vec::new())))
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

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.data[self.range.clone()]
    }

    /// The whole buffer, if the block covers all of it.
    pub(crate) fn as_whole(&self) -> Option<&Arc<Bytes>> {
        (self.range.len() == self.data.len()).then_some(&self.data)
    }
}

impl From<Arc<Bytes>> for Block {
    fn from(data: Arc<Bytes>) -> Self {
        Self::whole(data)
    }
}

impl From<Bytes> for Block {
    fn from(data: Bytes) -> Self {
        Self::whole(Arc::new(data))
    }
}
