//! Memory that is read soon is asked for now: chunks are shorter than what a processor looks ahead by itself, and it stops
//! at the end of a page.

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// What is to be read soon, and how fast it is asked for.
#[derive(Default)]
pub(super) struct Ahead {
    /// Addresses of the first and behind the last byte.
    ranges: Vec<(usize, usize)>,
    lines: usize,
}

impl Ahead {
    /// Notes that as many bytes as were found are read behind them next.
    pub(super) fn note(&mut self, memory: &[u8], end: usize, bytes: usize) {
        let next = (end + bytes).min(memory.len());
        if let Some(bytes) = memory.get(end..next)
            && !bytes.is_empty()
        {
            let first = bytes.as_ptr().addr();
            self.ranges.push((first, first + bytes.len()));
            self.lines += bytes.len().div_ceil(LINE);
        }
    }

    /// Asks for a share of what is left, so that all is asked for after some steps.
    #[inline]
    pub(super) fn ask(&mut self, steps: usize) {
        let mut quota = self.lines.div_ceil(steps.max(1));
        while quota > 0
            && let Some((first, end)) = self.ranges.last_mut()
        {
            let now = quota.min((*end - *first).div_ceil(LINE));
            for line in 0..now {
                fetch(*first + line * LINE);
            }
            *first += now * LINE;
            quota -= now;
            self.lines -= now;
            if first >= end {
                self.ranges.pop();
            }
        }
    }

    /// Forgets what was not asked for.
    pub(super) fn clear(&mut self) {
        self.ranges.clear();
        self.lines = 0;
    }
}

/// Asks for a line.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fetch(address: usize) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: it is a hint: nothing is read, and no address is wrong.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) }
}

/// Asks for a line.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn fetch(_: usize) {}
