//! Copies that go past the caches.
//!
//! A plain store first reads the line that it overwrites. For outputs that do not fit the last-level cache anyway,
//! storing past it saves that third of the traffic.

/// Copies `len` bytes, past the caches if the processor has such stores. Followed by [`fence`] before others may read.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: handed on.
    unsafe { arch::copy(src, dst, len) }
}

/// Makes all earlier streamed copies of this thread visible to whom it synchronises with afterwards.
pub(super) fn fence() {
    arch::fence();
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;

    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`].
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        let head = dst.align_offset(LINE).min(len);
        let lines = (len - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: all accesses are within the `len` bytes; streamed stores are aligned, since `dst + head` is; SSE2 is
        // part of x86-64.
        unsafe {
            std::ptr::copy_nonoverlapping(src, dst, head);
            for line in 0..lines {
                let at = head + line * LINE;
                let from = src.add(at).cast::<__m128i>();
                let to = dst.add(at).cast::<__m128i>();
                let (a, b, c, d) = (
                    _mm_loadu_si128(from),
                    _mm_loadu_si128(from.add(1)),
                    _mm_loadu_si128(from.add(2)),
                    _mm_loadu_si128(from.add(3)),
                );
                _mm_stream_si128(to, a);
                _mm_stream_si128(to.add(1), b);
                _mm_stream_si128(to.add(2), c);
                _mm_stream_si128(to.add(3), d);
            }
            std::ptr::copy_nonoverlapping(src.add(tail), dst.add(tail), len - tail);
        }
    }

    pub(super) fn fence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`].
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: handed on.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }

    pub(super) fn fence() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_copy_is_a_copy_at_any_alignment() {
        let src: Vec<u8> = (0..1000).map(|i| (i * 7 % 251) as u8).collect();
        for (from, to, len) in [
            (0, 0, 0),
            (0, 0, 1),
            (3, 5, 63),
            (1, 0, 64),
            (0, 1, 200),
            (7, 9, 640),
            (64, 64, 512),
        ] {
            let mut dst = vec![255_u8; 1000];
            // SAFETY: both ranges lie within their vectors.
            unsafe { copy(src.as_ptr().add(from), dst.as_mut_ptr().add(to), len) };
            fence();
            assert_eq!(dst[to..to + len], src[from..from + len]);
            assert!(
                dst[..to]
                    .iter()
                    .chain(&dst[to + len..])
                    .all(|&byte| byte == 255)
            );
        }
    }
}
