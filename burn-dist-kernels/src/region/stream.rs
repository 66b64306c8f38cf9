//! Results that are too large to be read again from a cache: they are written past it, so that memory is not read
//! first.

use std::mem::MaybeUninit;

use super::functions::{Instructions, Portable};

/// Bytes of a result that is written past the cache.
pub(super) const STREAM_MIN: usize = 16 << 20;

/// Bytes of a line of the cache.
pub(super) const LINE: usize = 64;

/// Writes bytes past the cache, where the processor can; [`finish`] comes after the last.
pub(super) fn write(to: &mut [MaybeUninit<u8>], of: &[u8]) {
    // Up to where a line begins.
    let before = (to.as_ptr().addr().wrapping_neg() % LINE).min(to.len());
    let rest = before + (to.len() - before) / LINE * LINE;
    to[..before].write_copy_of_slice(&of[..before]);
    write_lines::<Portable>(&mut to[before..rest], &of[before..rest]);
    to[rest..].write_copy_of_slice(&of[rest..]);
}

/// Writes whole lines past the cache, where the processor can.
#[inline(always)]
pub(super) fn write_lines<I: Instructions>(to: &mut [MaybeUninit<u8>], of: &[u8]) {
    assert_eq!(to.len(), of.len());
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps, _mm256_loadu_ps, _mm256_stream_ps};
        assert!(
            to.is_empty()
                || to.as_ptr().addr().is_multiple_of(LINE) && to.len().is_multiple_of(LINE)
        );
        for first in (0..to.len()).step_by(LINE) {
            // SAFETY: a line of each lies there; that of `to` begins where lines do. AVX is used where there is AVX.
            unsafe {
                let to = to.as_mut_ptr().add(first).cast::<f32>();
                let of = of.as_ptr().add(first).cast::<f32>();
                match I::AVX {
                    true => {
                        _mm256_stream_ps(to, _mm256_loadu_ps(of));
                        _mm256_stream_ps(to.add(8), _mm256_loadu_ps(of.add(8)));
                    }
                    false => {
                        for at in (0..LINE / 4).step_by(4) {
                            _mm_stream_ps(to.add(at), _mm_loadu_ps(of.add(at)));
                        }
                    }
                }
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.write_copy_of_slice(of);
}

/// Writes a block past the cache, where the processor can. Lines that it shares with the block before and the one after
/// are joined by the processor.
#[inline(always)]
pub(super) fn write_block<I: Instructions, const N: usize>(
    to: &mut [MaybeUninit<f32>; N],
    of: &[f32; N],
) {
    #[cfg(target_arch = "x86_64")]
    if to.as_ptr().addr().is_multiple_of(16) {
        use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps, _mm256_loadu_ps, _mm256_stream_ps};
        const { assert!(N.is_multiple_of(LANES) && N >= 2 * LANES) };
        const LANES: usize = 16;
        let to: *mut f32 = to.as_mut_ptr().cast();
        // Floats before the first line of its own.
        let before = to.addr().wrapping_neg() % 64 / 4;
        let lines = (N - before) / LANES;
        let quarters = |from: usize, end: usize| {
            for at in (from..end).step_by(4) {
                // SAFETY: four floats of each lie there; of `to` they begin where 16 bytes do.
                unsafe { _mm_stream_ps(to.add(at), _mm_loadu_ps(of.as_ptr().add(at))) };
            }
        };
        quarters(0, before);
        for line in 0..lines {
            let at = before + line * LANES;
            match I::AVX {
                // SAFETY: a line of each; that of `to` begins where lines do, and the processor has AVX.
                true => unsafe {
                    let of = of.as_ptr().add(at);
                    _mm256_stream_ps(to.add(at), _mm256_loadu_ps(of));
                    _mm256_stream_ps(to.add(at + 8), _mm256_loadu_ps(of.add(8)));
                },
                false => quarters(at, at + LANES),
            }
        }
        quarters(before + lines * LANES, N);
        return;
    }
    write(super::memory::bytes_of(to), bytemuck::cast_slice(of));
}

/// Has other threads see what was written past the cache.
pub(super) fn finish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it waits for this thread's writes, and nothing else.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_place_and_length() {
        let of: Vec<u8> = (0..400u32).map(|i| i as u8).collect();
        for first in 0..70 {
            for len in [0, 1, 15, 63, 64, 65, 130, 257] {
                let mut to = vec![7u8; 400];
                write(
                    super::super::memory::places(&mut to[first..first + len]),
                    &of[..len],
                );
                finish();
                assert_eq!(to[first..first + len], of[..len]);
                assert!(
                    to[..first]
                        .iter()
                        .chain(&to[first + len..])
                        .all(|x| *x == 7)
                );
            }
        }
    }
}
