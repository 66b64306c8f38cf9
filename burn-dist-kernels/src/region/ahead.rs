//! Memory that is read soon is asked for now: chunks are shorter than what a processor looks ahead by itself, and it
//! stops at the end of a page.

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Memory that is read soon, and how fast it is asked for.
#[derive(Default)]
pub(super) struct Ahead {
    /// Addresses of the first and behind the last byte.
    ranges: Vec<(usize, usize)>,
    lines: usize,
    /// Work that is left meanwhile, in weights of steps.
    weight: usize,
}

impl Ahead {
    /// Notes what is read next.
    pub(super) fn note(&mut self, memory: &[u8], next: std::ops::Range<usize>) {
        if let Some(bytes) = memory.get(next.start..next.end.min(memory.len()))
            && !bytes.is_empty()
        {
            let first = bytes.as_ptr().addr();
            self.ranges.push((first, first + bytes.len()));
            self.lines += bytes.len().div_ceil(LINE);
        }
    }

    /// Begins a chunk, of steps with some weight together.
    pub(super) fn begin(&mut self, weight: usize) {
        self.ranges.clear();
        self.lines = 0;
        self.weight = weight;
    }

    /// Asks for as large a share of what is left as some weight is of what is still computed meanwhile.
    #[inline]
    pub(super) fn ask(&mut self, weight: usize) {
        if weight == 0 || self.lines == 0 {
            return;
        }
        let quota = (self.lines * weight).div_ceil(self.weight.max(weight));
        self.weight = self.weight.saturating_sub(weight);
        self.ask_lines(quota);
    }

    /// Returns the lines of one of some parts of what is left.
    pub(super) fn share(&self, parts: usize) -> usize {
        self.lines.div_ceil(parts.max(1))
    }

    /// Asks for some lines.
    #[inline]
    pub(super) fn ask_lines(&mut self, mut quota: usize) {
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
}

/// Asks for every line of some bytes.
#[inline(always)]
pub(super) fn fetch_all(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        fetch(line.as_ptr().addr());
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
