//! Products on the host, with how far an engine may be from them.

use super::product::{BLOCK, Out, Product, Scales};
use crate::float8::reference::decode;

/// How operands are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// In f32: each addition rounds once.
    F32,
    /// By tensor cores of Hopper for float8, which align what they add to the largest of it and keep 13 bits below its
    /// leading one (DeepSeek-V3, arXiv:2412.19437, section 3.3.2); four times 32 terms, then in f32.
    TensorCores,
}

impl Sums {
    /// The largest error of a sum of products, relative to the sum of their magnitudes.
    fn error(self, depth: usize) -> f64 {
        let rounding = (depth + 8) as f64 * 2f64.powi(-24);
        match self {
            Self::F32 => rounding,
            // Each of the 32 terms and the sum so far loses less than a unit, which is at most that of all magnitudes.
            Self::TensorCores => rounding + 4.0 * 33.0 * 2f64.powi(-13),
        }
    }
}

/// Operands on the host: bytes of `[m, k]` and `[n, k]`, their scales, and a bias in the type of the result.
#[derive(Clone, Debug)]
pub struct Operands {
    /// The product that is computed with them.
    pub product: Product,
    /// Values in 8 bits, by rows.
    pub values: [Vec<u8>; 2],
    /// The factors that values were multiplied with.
    pub scales: [Vec<f32>; 2],
    /// One for each column of the result, or none at all.
    pub bias: Vec<f32>,
}

impl Operands {
    /// Returns operands that look random: all bits that are finite numbers of magnitudes that do not overflow f16.
    pub fn pseudo_random(product: Product) -> Self {
        let mut state = (product.m * 31 + product.n * 17 + product.k) as u64;
        // From -1 to 1.
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let Product {
            m,
            n,
            k,
            formats,
            scales,
            out,
            bias,
        } = product;
        let values = [(m, formats[0]), (n, formats[1])].map(|(rows, format)| -> Vec<u8> {
            let value = |x: f32| crate::float8::reference::encode(format, x * 4.0);
            (0..rows * k).map(|_| value(next())).collect()
        });
        let scales = [scales[0].count(m, k), scales[1].count(n, k)]
            .map(|count| (0..count).map(|_| (next() * 4.0 + 4.0).exp2()).collect());
        let bias = match bias {
            true => (0..n).map(|_| out.value(&out.bytes_of(next()))).collect(),
            false => Vec::new(),
        };
        Self {
            product,
            values,
            scales,
            bias,
        }
    }

    /// Returns the bias as it lies on a device.
    pub fn bias_bytes(&self) -> Vec<u8> {
        self.bias
            .iter()
            .flat_map(|value| self.product.out.bytes_of(*value))
            .collect()
    }

    /// Compares a result with the reference.
    ///
    /// # Errors
    /// Says where it is further from the reference than rounding explains.
    pub fn check(&self, found: &[u8], sums: Sums) -> Result<(), String> {
        self.check_with(&self.reference(), found, sums)
    }

    /// Returns the product before its bias, of which results of any type and any bias are made; on all processors.
    pub fn reference(&self) -> Reference {
        let Product {
            m, n, k, formats, ..
        } = self.product;
        let decoded = [0, 1].map(|side: usize| -> Vec<f64> {
            let values = self.values[side].iter();
            values
                .map(|bits| f64::from(decode(formats[side], *bits)))
                .collect()
        });
        let mut elements = vec![Element::default(); m * n];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows = m.div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            for (chunk, elements) in elements.chunks_mut((rows * n).max(1)).enumerate() {
                let decoded = &decoded;
                scope.spawn(move || {
                    for (at, element) in elements.iter_mut().enumerate() {
                        let [a, b] = [chunk * rows + at / n, at % n];
                        let values = [&decoded[0][a * k..][..k], &decoded[1][b * k..][..k]];
                        *element = self.element([a, b], values);
                    }
                });
            }
        });
        Reference(elements)
    }

    /// Adds up one element, of values of a row and of a column.
    fn element(&self, [row, column]: [usize; 2], values: [&[f64]; 2]) -> Element {
        let Product {
            m, n, k, scales, ..
        } = self.product;
        let mut of = Element::default();
        let pairs = values[0].chunks(BLOCK).zip(values[1].chunks(BLOCK));
        for (block, (a, b)) in pairs.enumerate() {
            let a_scale = self.scales[0][at(scales[0], m, k, row, block)];
            let b_scale = self.scales[1][at(scales[1], n, k, column, block)];
            let scale = f64::from(a_scale) * f64::from(b_scale);
            for (a, b) in a.iter().zip(b) {
                let term = a * b / scale;
                of.sum += term;
                of.magnitude += term.abs();
            }
        }
        of
    }

    /// Compares a result with the reference of operands with the same values and scales, as [`Operands::check`] does.
    ///
    /// # Errors
    /// As [`Operands::check`].
    pub fn check_with(
        &self,
        reference: &Reference,
        found: &[u8],
        sums: Sums,
    ) -> Result<(), String> {
        let Product { m, n, k, out, .. } = self.product;
        if found.len() != m * n * out.bytes() || reference.0.len() != m * n {
            return Err(format!(
                "{} bytes instead of {}",
                found.len(),
                m * n * out.bytes()
            ));
        }
        for (at, (element, found)) in reference
            .0
            .iter()
            .zip(found.chunks(out.bytes()))
            .enumerate()
        {
            let Element {
                mut sum,
                mut magnitude,
            } = *element;
            let [row, column] = [at / n, at % n];
            if let Some(bias) = self.bias.get(column) {
                sum += f64::from(*bias);
                magnitude += f64::from(bias.abs());
            }
            let bound = sums.error(k) * magnitude;
            let bound = bound + out.rounding(sum.abs() + bound);
            let value = f64::from(out.value(found));
            let error = (value - sum).abs();
            // NaN is no less than anything.
            if error.is_nan() || error > bound {
                return Err(format!(
                    "[{row}, {column}] of {}: {value:e} instead of {sum:e}, further than {bound:e}",
                    self.product
                ));
            }
        }
        Ok(())
    }
}

/// A product on the host, before its bias.
#[derive(Clone, Debug)]
pub struct Reference(Vec<Element>);

/// An element of a product.
#[derive(Clone, Copy, Debug, Default)]
struct Element {
    sum: f64,
    /// The sum of its terms' magnitudes.
    magnitude: f64,
}

/// Returns which scale a row has in a block of what is added up.
fn at(scales: Scales, rows: usize, depth: usize, row: usize, block: usize) -> usize {
    let [row_stride, block_stride] = scales.strides(rows, depth);
    let row = match scales {
        Scales::Block | Scales::BlockOfColumn => row / BLOCK,
        _ => row,
    };
    row * row_stride + block * block_stride
}

impl Out {
    /// How far the nearest number may be from one of a magnitude.
    fn rounding(self, magnitude: f64) -> f64 {
        match self {
            Self::F32 => magnitude * 2f64.powi(-24),
            Self::F16 => magnitude * 2f64.powi(-11) + 2f64.powi(-25),
            Self::BF16 => magnitude * 2f64.powi(-8),
        }
    }

    /// Returns a value as it lies in memory, rounded to the nearest.
    pub fn bytes_of(self, value: f32) -> Vec<u8> {
        match self {
            Self::F32 => value.to_le_bytes().to_vec(),
            Self::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            Self::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        }
    }

    /// Returns the value of an element in memory.
    ///
    /// # Panics
    /// If there are not as many bytes as an element has.
    pub fn value(self, bytes: &[u8]) -> f32 {
        match self {
            Self::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
            Self::F16 => half::f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32(),
            Self::BF16 => half::bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f32(),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_dist_plan::policy::Fp8::{E4M3, E5M2};

    use super::*;

    /// By the definition: every element has its own scale.
    fn plain(operands: &Operands) -> Vec<f32> {
        let Product {
            m,
            n,
            k,
            formats,
            scales,
            ..
        } = operands.product;
        let value = |side: usize, rows: usize, row: usize, inner: usize| {
            let bits = operands.values[side][row * k + inner];
            let blocks = k.div_ceil(BLOCK);
            let scale = match scales[side] {
                Scales::Tensor => 0,
                Scales::Row => row,
                Scales::Tile => row * blocks + inner / BLOCK,
                Scales::TileOfColumn => inner / BLOCK * rows + row,
                Scales::Block => row / BLOCK * blocks + inner / BLOCK,
                Scales::BlockOfColumn => inner / BLOCK * rows.div_ceil(BLOCK) + row / BLOCK,
            };
            decode(formats[side], bits) / operands.scales[side][scale]
        };
        let mut out = Vec::new();
        for row in 0..m {
            for column in 0..n {
                let terms =
                    (0..k).map(|inner| value(0, m, row, inner) * value(1, n, column, inner));
                out.push(terms.sum::<f32>() + operands.bias.get(column).copied().unwrap_or(0.0));
            }
        }
        out
    }

    #[test]
    fn what_is_right_passes_and_what_is_wrong_does_not() {
        for (scales, out) in [
            ([Scales::Tensor, Scales::Row], Out::F32),
            ([Scales::Tile, Scales::Block], Out::F16),
            ([Scales::TileOfColumn; 2], Out::BF16),
            ([Scales::Tile, Scales::BlockOfColumn], Out::F32),
        ] {
            let product = Product {
                m: 131,
                n: 144,
                k: 272,
                formats: [E4M3, E5M2],
                scales,
                out,
                bias: true,
            };
            let operands = Operands::pseudo_random(product);
            let values = plain(&operands);
            let bytes = |values: &[f32]| -> Vec<u8> {
                values
                    .iter()
                    .flat_map(|value| out.bytes_of(*value))
                    .collect()
            };
            for sums in [Sums::F32, Sums::TensorCores] {
                assert_eq!(operands.check(&bytes(&values), sums), Ok(()));
                // Two columns are exchanged; one element is nothing.
                let mut wrong = values.clone();
                wrong.chunks_mut(product.n).for_each(|row| row.swap(3, 7));
                assert!(operands.check(&bytes(&wrong), sums).is_err());
                let mut wrong = values.clone();
                wrong[1000] = f32::NAN;
                assert!(operands.check(&bytes(&wrong), sums).is_err());
            }
        }
    }
}
