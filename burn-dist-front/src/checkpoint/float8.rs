//! Parameters that a folder holds in 8 bits: the values of its blocks, and what they are multiplied with.

use burn_dist_checkpoint::Region;
use burn_dist_checkpoint::hf::Float8;
use burn_dist_kernels::float8::reference;
use burn_dist_plan::policy::Fp8;

const FORMAT: Fp8 = Fp8::E4M3;

/// Returns a parameter in 8 bits, and the factors of its blocks: as a layer with scales of blocks quantises it, where
/// these have the same elements. `None` if a value is not finite.
pub fn quantized(float8: &Float8, values: &[f32]) -> Option<(Vec<u8>, Vec<f32>)> {
    let mut maxima = vec![0f32; float8.factors_shape().iter().product()];
    for (element, value) in values.iter().enumerate() {
        if !value.is_finite() {
            return None;
        }
        let max = &mut maxima[float8.factor_of(element)];
        *max = max.max(value.abs());
    }
    let scales: Vec<f32> = maxima
        .into_iter()
        .map(|amax| reference::scale(FORMAT, true, amax))
        .collect();
    let values = values.iter().enumerate();
    let bits =
        values.map(|(at, value)| reference::encode(FORMAT, value * scales[float8.factor_of(at)]));
    // Exact: they are powers of two.
    Some((
        bits.collect(),
        scales.iter().map(|scale| scale.recip()).collect(),
    ))
}

/// Returns the values of a region of a parameter.
pub fn values(float8: &Float8, region: &Region, bits: &[u8], factors: &[f32]) -> Vec<f32> {
    let elements = region.ranges().flatten().zip(bits);
    let value =
        |(element, bits)| reference::decode(FORMAT, bits) * factors[float8.factor_of(element)];
    elements.map(|(at, bits)| value((at, *bits))).collect()
}
