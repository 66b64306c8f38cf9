//! A window, as processes tell each other of it.

use crate::Block;
use std::sync::Arc;

/// Names a kind of operation by its number in the digest of a window.
pub type KindName = fn(u16) -> &'static str;

/// A window that a process is about to run.
#[derive(Clone, Debug)]
pub struct WindowPrint {
    /// The number in the mesh, counted alike by all processes.
    pub number: u64,
    /// Hash of its operations.
    pub hash: u64,
    /// Hash of the scalars and the data that it is run with, but for data that processes give their own parts of; and
    /// of what decides besides, by which functions it is computed.
    pub values: u64,
    /// The parts of such data that other processes have too.
    pub parts: Vec<PartPrint>,
    /// Its digest, if this process has not run such a window before: kinds of operations in the upper 16 bits, hashes
    /// below.
    pub digest: Option<Arc<[u64]>>,
}

/// A part of data that several processes give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPrint {
    /// Number of the value in its window.
    pub value: u32,
    /// Its first row.
    pub row: u64,
    /// Hash of its content.
    pub hash: u64,
}

/// The words of a window in a message, besides its hashes: the number of parts, three words for each, then the digest;
/// each of 8 bytes, the least significant first, as in heads.
pub(super) fn to_block(digest: Option<&[u64]>, parts: &[PartPrint]) -> Block {
    let digest = digest.unwrap_or_default();
    if digest.is_empty() && parts.is_empty() {
        return Block::empty();
    }
    let mut words = Vec::with_capacity(1 + 3 * parts.len() + digest.len());
    words.push(parts.len() as u64);
    words.extend(
        parts
            .iter()
            .flat_map(|part| [part.value.into(), part.row, part.hash]),
    );
    words.extend(digest);
    words.iter_mut().for_each(|word| *word = word.to_le());
    Block::from(words)
}

/// The reverse of [`to_block`]; of a block that is none, as much as there is.
pub(super) fn from_block(block: &Block) -> (Vec<PartPrint>, Option<Arc<[u64]>>) {
    let chunks = block.as_slice().chunks_exact(8);
    let words: Vec<u64> = chunks
        .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes")))
        .collect();
    let Some((&count, rest)) = words.split_first() else {
        return (Vec::new(), None);
    };
    let end = usize::try_from(count)
        .unwrap_or(usize::MAX)
        .saturating_mul(3);
    let (parts, digest) = rest.split_at(end.min(rest.len()));
    let parts = parts.chunks_exact(3).map(|part| PartPrint {
        value: part[0] as u32,
        row: part[1],
        hash: part[2],
    });
    (parts.collect(), (!digest.is_empty()).then(|| digest.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back() {
        let part = |row, hash| PartPrint {
            value: 3,
            row,
            hash,
        };
        let digest = [5_u64, 6];
        let block = to_block(Some(&digest), &[part(0, 1), part(4, 2)]);
        let (parts, found) = from_block(&block);
        assert_eq!(parts, [part(0, 1), part(4, 2)]);
        assert_eq!(found.as_deref(), Some(&digest[..]));
        assert_eq!(from_block(&to_block(None, &[])), (vec![], None));
        assert_eq!(to_block(Some(&[0x0102]), &[]).as_slice()[8..10], [2, 1]);
        // A number of parts that is not there.
        let wrong = Block::from([u64::MAX, 1, 2, 3, 4].map(u64::to_le).to_vec());
        assert_eq!(from_block(&wrong).0.len(), 1);
    }
}
