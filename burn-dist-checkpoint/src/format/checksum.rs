//! Checksums of blocks of bytes: XXH3, 64 bits, seed 0.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// No block is longer.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// The default of small checkpoints: a cut inside a block costs little.
const BLOCK_BYTES_MIN: usize = 1 << 16;
/// The manifest of a checkpoint stays below this many blocks, as long as the longest block allows it.
const BLOCKS: usize = 1 << 16;

/// Returns the size of the blocks of a checkpoint of so many bytes: a power of two.
pub(crate) fn block_bytes(total: u64) -> usize {
    let wanted = usize::try_from(total / BLOCKS as u64).unwrap_or(usize::MAX);
    let bounded = wanted.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
    bounded.next_power_of_two()
}

/// A checksum of 64 bits. As text: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the checksum of `bytes`.
pub(crate) fn checksum(bytes: &[u8]) -> Checksum {
    Checksum(xxh3_64(bytes))
}

/// Reads exactly 16 lower-case digits.
pub(crate) fn parse(text: &[u8]) -> Option<Checksum> {
    let digit = |c: &u8| match c {
        b'0'..=b'9' => Some(u64::from(c - b'0')),
        b'a'..=b'f' => Some(u64::from(c - b'a' + 10)),
        _ => None,
    };
    let value = text.iter().try_fold(0, |n, c| Some(n << 4 | digit(c)?))?;
    (text.len() == 16).then_some(Checksum(value))
}

/// Several checksums as one text, without anything in between.
pub(crate) mod list {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        list: &[Checksum],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(list.len() * 16);
        for checksum in list {
            text.push_str(&checksum.to_string());
        }
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Checksum>, D::Error> {
        struct List;
        impl Visitor<'_> for List {
            type Value = Vec<Checksum>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("checksums of 16 hexadecimal digits each")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Vec<Checksum>, E> {
                let list = text.as_bytes().chunks(16).map(parse);
                let list: Option<Vec<Checksum>> = list.collect();
                list.ok_or_else(|| E::custom("a checksum is 16 hexadecimal digits"))
            }
        }
        deserializer.deserialize_str(List)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        list::serialize(&[*self], serializer)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match list::deserialize(deserializer)?.as_slice() {
            [one] => Ok(*one),
            _ => Err(D::Error::custom("expected one checksum")),
        }
    }
}

/// Takes the bytes of a piece as they come and gives the checksums of its blocks.
pub(crate) struct BlockHasher {
    block_bytes: usize,
    hasher: Xxh3,
    /// Bytes of the current block that the hasher has.
    filled: usize,
    done: Vec<Checksum>,
}

impl BlockHasher {
    pub(crate) fn new(block_bytes: usize) -> Self {
        Self {
            block_bytes,
            hasher: Xxh3::new(),
            filled: 0,
            done: Vec::new(),
        }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == 0 && bytes.len() >= self.block_bytes {
                // In one call, it needs no state.
                let (block, rest) = bytes.split_at(self.block_bytes);
                self.done.push(checksum(block));
                bytes = rest;
                continue;
            }
            let take = bytes.len().min(self.block_bytes - self.filled);
            let (part, rest) = bytes.split_at(take);
            self.hasher.update(part);
            self.filled += take;
            bytes = rest;
            if self.filled == self.block_bytes {
                self.end_block();
            }
        }
    }

    /// Ends the piece.
    pub(crate) fn finish(&mut self) -> Vec<Checksum> {
        if self.filled > 0 {
            self.end_block();
        }
        std::mem::take(&mut self.done)
    }

    fn end_block(&mut self) {
        self.done.push(Checksum(self.hasher.digest()));
        self.hasher.reset();
        self.filled = 0;
    }
}
