use super::row::Row;

/// Counts of what was read and made in this process. A run that goes on from a position counts anew, and blocks that
/// are read again count again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Documents that were read.
    pub documents: u64,
    /// Documents that were longer than a row, and split.
    pub split: u64,
    /// Documents that were longer, and left out.
    pub dropped: u64,
    /// Documents with fewer than two tokens, in which nothing follows anything.
    pub short: u64,
    /// Rows that were made.
    pub rows: u64,
    /// Their positions.
    pub positions: u64,
    /// Places in rows without a document.
    pub padding: u64,
}

impl Counts {
    pub(super) fn add_row(&mut self, row: &Row) {
        self.rows += 1;
        self.positions += row.learn.len() as u64;
        self.padding += row.padding as u64;
    }

    /// The share of positions without a document, from 0 to 1.
    pub fn waste(&self) -> f64 {
        self.padding as f64 / (self.positions as f64).max(1.0)
    }
}
