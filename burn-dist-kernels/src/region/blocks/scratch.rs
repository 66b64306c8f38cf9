//! Scratch memory of code.

use super::loops::Ready;
use crate::region::memory::Buffer;

/// Scratch memory of code.
#[derive(Default)]
pub(in crate::region) struct Scratch {
    /// Registers, blocks of the same value, lanes of folds, and blocks for the rest of a row.
    pub(super) blocks: Buffer,
    pub(super) ready: Vec<Ready>,
    pub(super) parts: Vec<(*mut u8, usize)>,
    /// Instructions that another does the work of.
    pub(super) skips: Vec<bool>,
    /// Instructions that add to sums over rows, and the sums.
    pub(super) sums: Vec<(usize, *mut f32)>,
}
