//! Who used memory last, for each 64 bytes of it.

use crate::clock::{Epoch, Moment};
use std::ops::Range;

/// Bytes that are told apart: as many as a word of `written` has bits.
pub(crate) const GRANULE: u64 = 64;

/// The last write, and two reads of different streams. Of more than two reads that nothing orders, some are forgotten:
/// a write that races with such a read alone is not found.
#[derive(Default)]
pub(crate) struct Shadow {
    born: Epoch,
    writes: Vec<u64>,
    reads: [Vec<u64>; 2],
    /// Granules that have been used lie in here.
    used: Range<usize>,
}

/// How a use and an earlier one are out of order.
pub(crate) struct Race {
    pub(crate) granule: usize,
    pub(crate) earlier: Epoch,
    pub(crate) how: &'static str,
}

fn packed(epoch: Epoch) -> u64 {
    (epoch.stream as u64) << 48 | epoch.number
}

fn unpacked(word: u64) -> Epoch {
    Epoch {
        stream: (word >> 48) as usize,
        number: word & ((1 << 48) - 1),
    }
}

impl Shadow {
    /// Which operation gave the memory, if one of a stream did.
    pub(crate) fn born(&mut self, by: Epoch) {
        self.born = by;
    }

    /// Whether the operation that gave the memory happened before.
    pub(crate) fn check_born(&self, now: &Moment) -> Result<(), Race> {
        match now.clock.has(self.born) {
            true => Ok(()),
            false => Err(Race {
                granule: 0,
                earlier: self.born,
                how: "gives",
            }),
        }
    }

    /// Whether all that used the memory happened before.
    pub(crate) fn check_all(&self, now: &Moment) -> Result<(), Race> {
        for (uses, how) in [
            (&self.writes, "writes"),
            (&self.reads[0], "reads"),
            (&self.reads[1], "reads"),
        ] {
            for granule in self.used.clone() {
                let earlier = unpacked(uses[granule]);
                if !now.clock.has(earlier) {
                    return Err(Race {
                        granule,
                        earlier,
                        how,
                    });
                }
            }
        }
        Ok(())
    }

    /// Counts a use of a granule, of `granules`.
    pub(crate) fn use_of(
        &mut self,
        granule: usize,
        granules: usize,
        now: &Moment,
        writes: bool,
    ) -> Result<(), Race> {
        if self.writes.is_empty() {
            self.writes = vec![0; granules];
            self.reads = [vec![0; granules], vec![0; granules]];
            self.used = granule..granule + 1;
        }
        self.used = self.used.start.min(granule)..self.used.end.max(granule + 1);
        let before = |word: u64| now.clock.has(unpacked(word));
        let last = self.writes[granule];
        if !before(last) {
            return Err(Race {
                granule,
                earlier: unpacked(last),
                how: "writes",
            });
        }
        if writes {
            for reads in &mut self.reads {
                if !before(reads[granule]) {
                    return Err(Race {
                        granule,
                        earlier: unpacked(reads[granule]),
                        how: "reads",
                    });
                }
                reads[granule] = 0;
            }
            self.writes[granule] = packed(now.epoch);
        } else {
            let free = self.reads.iter().position(|reads| before(reads[granule]));
            self.reads[free.unwrap_or(0)][granule] = packed(now.epoch);
        }
        Ok(())
    }
}
