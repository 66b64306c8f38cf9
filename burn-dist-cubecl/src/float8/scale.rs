//! Scales from absolute maxima.

use burn_dist_kernels::float8::reference::AMAX_MIN;
use burn_dist_plan::policy::Fp8;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::bits;
use crate::dialect::{Buffer, Client, array};
use crate::element::{INFINITY, NAN};
use crate::launch::cubes;

/// Returns the bits of what brings values up to a maximum to the largest of a format: those of [`reference::scale`].
///
/// The reference divides in f64 and rounds to f32, which is the quotient rounded once: f64 has more than twice the digits of f32
/// (Figueroa, "When is double rounding innocuous?", 1995), and no quotient is subnormal.
///
/// [`reference::scale`]: burn_dist_kernels::float8::reference::scale
#[cube]
pub(crate) fn scale(amax: u32, #[comptime] format: Fp8, #[comptime] power_of_two: bool) -> u32 {
    let least = comptime!(AMAX_MIN.to_bits());
    // Numbers with a sign are larger than all without, as bits.
    let is_less = amax < least || amax >= 0x8000_0000u32;
    let clamped = select(is_less, least, amax);
    // Whatever is no number is replaced below.
    let quotient = bits::divide(comptime!(format.max().to_bits()), clamped);
    let kept = comptime!(if power_of_two { 0xff80_0000 } else { u32::MAX });
    let finite = quotient & kept;
    let magnitude = amax & 0x7fff_ffffu32;
    let finite = select(amax == INFINITY, 0u32, finite);
    select(magnitude > INFINITY, NAN, finite)
}

#[cube(launch)]
pub(crate) fn scales(
    maxima: &Buffer<u32>,
    out: &mut Buffer<u32>,
    #[comptime] format: Fp8,
    #[comptime] power_of_two: bool,
) {
    if ABSOLUTE_POS < out.len() {
        out[ABSOLUTE_POS] = scale(maxima[ABSOLUTE_POS], format, power_of_two);
    }
}

/// Makes scales of `count` maxima.
pub fn scale_all<C: Client>(
    client: &C,
    maxima: &Handle,
    count: usize,
    format: Fp8,
    power_of_two: bool,
) -> Handle {
    let out = client.cubecl().empty(count * size_of::<f32>());
    if count > 0 {
        scales::launch(
            client.cubecl(),
            cubes(count.div_ceil(64)),
            CubeDim::new_1d(64),
            array(maxima, count),
            array(&out, count),
            format,
            power_of_two,
        );
    }
    out
}
