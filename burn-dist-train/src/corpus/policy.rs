use super::choice::named;

/// How documents become rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Whole documents, several in a row: best fit among those of a block; what fills no row well waits for the next
    /// block.
    #[default]
    Pack,
    /// One document a row, and padding.
    Pad,
    /// One document after the other, cut where a row ends: nothing is wasted.
    Stream,
}

/// The treatment of a document that does not fit into a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Longer {
    /// It goes on in other rows, which do not see what came before.
    #[default]
    Split,
    /// It is left out, and counted.
    Drop,
    /// It is an error.
    Refuse,
}

impl Packing {
    const NAMES: [(&'static str, Self); 3] = [
        ("pack", Self::Pack),
        ("pad", Self::Pad),
        ("stream", Self::Stream),
    ];
}

impl Longer {
    const NAMES: [(&'static str, Self); 3] = [
        ("split", Self::Split),
        ("drop", Self::Drop),
        ("refuse", Self::Refuse),
    ];
}

named!(Packing, "pack, pad and stream");
named!(Longer, "split, drop and refuse");

/// How rows are made of documents. Together with the sources it says what every row is.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Positions of a row, which holds one token more: the last is only predicted.
    pub seq: usize,
    /// How documents become rows.
    pub packing: Packing,
    /// The treatment of a document that does not fit.
    pub longer: Longer,
    /// Bytes of text that are shuffled together, over all lanes and sources: what a process that reads everything
    /// holds. One that reads its part holds as much less.
    pub shuffle_bytes: u64,
    /// The seed that orders are drawn from.
    pub seed: u64,
    /// The id of positions without a document.
    pub pad: u32,
    /// The longest document in bytes of its file.
    pub document_bytes_max: usize,
    /// How many lanes there are; by default as many as data and buffer allow.
    pub lanes: Option<usize>,
}

/// Bytes of text that are shuffled together by default.
pub const SHUFFLE_BYTES: u64 = 16 << 20;
/// The longest document by default, in bytes.
pub const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// The most lanes by default.
const LANES_MAX: u64 = 512;
/// The least data of a lane, in bytes.
const LANE_BYTES: u64 = 4 << 20;
/// The least rows of a block, so that packing has a choice, at four bytes a token.
const BLOCK_ROWS: u64 = 64;
const TOKEN_BYTES: u64 = 4;
const BLOCK_BYTES: u64 = 64 << 10;

impl Policy {
    /// Packs documents into rows of `seq` positions, splits longer ones, and shuffles 16 MiB of text.
    pub fn new(seq: usize) -> Self {
        Self {
            seq,
            packing: Packing::default(),
            longer: Longer::default(),
            shuffle_bytes: SHUFFLE_BYTES,
            seed: 0,
            pad: 0,
            document_bytes_max: DOCUMENT_BYTES_MAX,
            lanes: None,
        }
    }

    /// Lanes of sources that hold so many bytes: a power of two. A lane has 4 MiB of data, and a block for each source
    /// that makes 64 rows.
    pub(super) fn num_lanes(&self, bytes: u64, num_sources: usize) -> usize {
        if let Some(lanes) = self.lanes {
            return lanes.max(1);
        }
        let block = (BLOCK_ROWS * TOKEN_BYTES)
            .saturating_mul(self.seq as u64)
            .max(BLOCK_BYTES);
        let by_buffer = self.shuffle_bytes / block.saturating_mul(num_sources as u64);
        let most = by_buffer.min(bytes / LANE_BYTES).clamp(1, LANES_MAX);
        1 << most.ilog2()
    }

    /// Bytes of text of a block, where there are so many lanes.
    pub(super) fn block_bytes(&self, lanes: usize, num_sources: usize) -> u64 {
        (self.shuffle_bytes / (lanes * num_sources) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for (name, packing) in Packing::NAMES {
            assert_eq!(
                (name.parse(), packing.to_string().as_str()),
                (Ok(packing), name)
            );
        }
        for (name, longer) in Longer::NAMES {
            assert_eq!(
                (name.parse(), longer.to_string().as_str()),
                (Ok(longer), name)
            );
        }
        let error = "padding".parse::<Packing>().unwrap_err().to_string();
        assert_eq!(error, "`padding` is none of pack, pad and stream");
    }

    #[test]
    fn lanes_follow_data_and_buffer() {
        let lanes = |seq, bytes, sources| Policy::new(seq).num_lanes(bytes, sources);
        assert_eq!(lanes(256, 7 << 20, 1), 1);
        assert_eq!(lanes(256, 9 << 20, 1), 2);
        assert_eq!(lanes(256, 10 << 30, 1), 256);
        assert_eq!(lanes(256, 10 << 30, 3), 64);
        assert_eq!(lanes(8192, 10 << 30, 1), 8);
        let many = Policy {
            shuffle_bytes: 4 << 30,
            ..Policy::new(8192)
        };
        assert_eq!(many.num_lanes(1 << 44, 1), 512);
    }
}
