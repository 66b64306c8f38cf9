//! Messages that came too early, at most so many bytes of them.

use rustc_hash::FxHashMap;
use std::hash::Hash;

/// The bytes that an entry counts besides its own, so that empty ones are bounded too.
const ENTRY_BYTES: usize = 256;

/// Messages by what they wait for.
pub(super) struct Waiting<K, V> {
    messages: FxHashMap<K, Vec<(V, usize)>>,
    bytes: usize,
    bytes_max: usize,
}

impl<K: Copy + Eq + Hash, V> Waiting<K, V> {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            messages: FxHashMap::default(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Keeps a message with a body of so many bytes.
    ///
    /// # Errors
    /// The bound, if that would be too much.
    pub(super) fn put(&mut self, key: K, message: V, bytes: usize) -> Result<(), usize> {
        let bytes = bytes + ENTRY_BYTES;
        if self.bytes + bytes > self.bytes_max {
            return Err(self.bytes_max);
        }
        self.bytes += bytes;
        let of_key = self.messages.entry(key).or_default();
        of_key.push((message, bytes));
        Ok(())
    }

    /// Takes what waits for `key`, in order.
    pub(super) fn take(&mut self, key: &K) -> impl Iterator<Item = V> + use<K, V> {
        let taken = self.messages.remove(key).unwrap_or_default();
        self.bytes -= taken.iter().map(|(_, bytes)| bytes).sum::<usize>();
        taken.into_iter().map(|(message, _)| message)
    }

    /// Forgets all of it.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_bytes() {
        let mut waiting = Waiting::new(4 * ENTRY_BYTES);
        assert_eq!(waiting.put('a', 1, 0), Ok(()));
        assert_eq!(waiting.put('a', 2, ENTRY_BYTES), Ok(()));
        assert_eq!(waiting.put('b', 3, 1), Err(4 * ENTRY_BYTES));
        assert_eq!(waiting.put('b', 3, 0), Ok(()));
        assert_eq!(waiting.put('c', 4, 0), Err(4 * ENTRY_BYTES));
        assert_eq!(waiting.take(&'a').collect::<Vec<_>>(), [1, 2]);
        assert_eq!(waiting.put('c', 4, 2 * ENTRY_BYTES), Ok(()));
        assert_eq!(waiting.take(&'b').collect::<Vec<_>>(), [3]);
        assert_eq!(waiting.bytes, 3 * ENTRY_BYTES);
        waiting.clear();
        assert!(waiting.take(&'c').next().is_none());
        assert_eq!(waiting.put('c', 4, 3 * ENTRY_BYTES), Ok(()));
    }
}
