//! Regions in numbers: how many there are, and what they save.

use std::fmt;
use std::ops::AddAssign;

use serde::Serialize;

use crate::bytes::human_bytes;

/// The regions of a window, as the first rank of the plan has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fused {
    /// Their number.
    pub regions: u64,
    /// The number of different ones, of all ranks of the plan together.
    pub different: u64,
    /// Operations in them.
    pub operations: u64,
    /// Constants, and looks at tensors, that they make themselves.
    pub absorbed: u64,
    /// Bytes that their operations would read and write one by one, and they do not.
    pub bytes_saved: u64,
    /// The most memory that the rank would hold at once without them; 0 if the plan is
    /// [not explained](crate::PlanOptions::is_explained).
    pub peak_bytes_apart: u64,
    /// The most that it holds with them, if the plan is explained.
    pub peak_bytes: u64,
}

impl AddAssign for Fused {
    /// Adds those of another window; of different ones and of memory, the most of a window.
    fn add_assign(&mut self, other: Self) {
        self.regions += other.regions;
        self.operations += other.operations;
        self.absorbed += other.absorbed;
        self.bytes_saved += other.bytes_saved;
        self.different = self.different.max(other.different);
        self.peak_bytes_apart = self.peak_bytes_apart.max(other.peak_bytes_apart);
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
    }
}

impl fmt::Display for Fused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (regions, different, operations) = (self.regions, self.different, self.operations);
        let saved = human_bytes(self.bytes_saved);
        write!(
            f,
            "regions: {operations} elementwise operation(s) in {regions} kernel(s), {different} different; {saved} less \
             read and written"
        )?;
        let (now, apart) = (self.peak_bytes, self.peak_bytes_apart);
        match apart > 0 {
            true => write!(
                f,
                "; peak {} instead of {}",
                human_bytes(now),
                human_bytes(apart)
            ),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_add_up_but_for_their_kinds_and_their_peaks() {
        let fused = |n: u64| Fused {
            regions: n,
            different: n + 1,
            operations: n + 2,
            absorbed: n + 3,
            bytes_saved: n + 4,
            peak_bytes_apart: n + 5,
            peak_bytes: n + 6,
        };
        let mut both = fused(10);
        both += fused(20);
        let expected = Fused {
            regions: 30,
            operations: 34,
            absorbed: 36,
            bytes_saved: 38,
            ..fused(20)
        };
        assert_eq!(both, expected);
    }
}
