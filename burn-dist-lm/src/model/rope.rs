use std::f64::consts::TAU;
use std::fmt;

use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::Serialize;

/// How fast each pair of a head turns.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Pair `i` of a head of width `e` turns by `theta^(-2i/e)` per position.
    pub theta: f64,
    /// Slows pairs down, for sequences longer than those first trained on.
    pub scaling: Option<RopeScaling>,
}

/// How pairs are slowed down: the `rope_type` of a `config.json`, in whose form it is written.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// All alike (`linear`).
    Linear {
        /// How much slower pairs turn.
        factor: f64,
    },
    /// By the length of the sequence (`dynamic`): not at all up to that first trained on, and then by a larger base.
    Dynamic {
        /// How much longer sequences may become, roughly.
        factor: f64,
        /// The sequence length first trained on, in tokens. It stands outside of the scaling.
        #[serde(skip)]
        max_position: usize,
    },
    /// The slow ones, as Llama 3.1 and later have it (`llama3`).
    Llama3 {
        /// How much slower pairs of long wavelength turn.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are slowed by the whole factor.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are left alone.
        high_freq_factor: f64,
        /// The sequence length first trained on, in tokens.
        #[serde(rename = "original_max_position_embeddings")]
        original_max_position: usize,
    },
    /// The slow ones, by their number, and scores grow (`yarn`).
    ///
    /// # Source
    /// Peng et al., "YaRN" (arXiv:2309.00071), sections 3.2 to 3.4.
    Yarn {
        /// How much slower the slow pairs turn.
        factor: f64,
        /// Queries and keys are multiplied with it.
        attention_factor: f64,
        /// Pairs that turn more often within `original_max_position` are left alone.
        beta_fast: f64,
        /// Pairs that turn less often are slowed by the whole factor.
        beta_slow: f64,
        /// True if the pairs between are counted from whole numbers.
        truncate: bool,
        /// The sequence length first trained on, in tokens.
        #[serde(rename = "original_max_position_embeddings")]
        original_max_position: usize,
    },
}

impl RopeConfig {
    /// Radians per position for each pair of a head, in a sequence of `seq` tokens.
    pub fn frequencies(&self, head_dim: usize, seq: usize) -> Vec<f64> {
        let width = head_dim as f64;
        let of_base =
            |base: f64| (0..head_dim / 2).map(move |pair| base.powf(-2.0 * pair as f64 / width));
        let plain = of_base(self.theta);
        match self.scaling {
            None => plain.collect(),
            Some(RopeScaling::Linear { factor }) => plain.map(|it| it / factor).collect(),
            Some(RopeScaling::Dynamic {
                factor,
                max_position,
            }) => {
                let longer = seq.max(max_position) as f64 / max_position as f64;
                let grown = factor * longer - (factor - 1.0);
                of_base(self.theta * grown.powf(width / (width - 2.0))).collect()
            }
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            }) => {
                let scaled = |frequency: f64| {
                    let turns = original_max_position as f64 * frequency / TAU;
                    let keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    slowed(frequency, factor, keep)
                };
                plain.map(scaled).collect()
            }
            Some(RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                truncate,
                original_max_position,
                ..
            }) => {
                // The pair that turns so often within the length.
                let pair_of = |turns: f64| {
                    width * (original_max_position as f64 / (turns * TAU)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(width - 1.0));
                if low == high {
                    high += 0.001;
                }
                let scaled = |(pair, frequency): (usize, f64)| {
                    let slow = (pair as f64 - low) / (high - low);
                    slowed(frequency, factor, 1.0 - slow.clamp(0.0, 1.0))
                };
                plain.enumerate().map(scaled).collect()
            }
        }
    }

    /// The factor of queries and keys as they are turned.
    fn amplitude(&self) -> f64 {
        match self.scaling {
            Some(RopeScaling::Yarn {
                attention_factor, ..
            }) => attention_factor,
            _ => 1.0,
        }
    }

    /// The number that the base has to be above.
    pub(super) fn theta_floor(&self) -> f64 {
        match self.scaling {
            // Pairs are counted by its logarithm.
            Some(RopeScaling::Yarn { .. }) => 1.0,
            _ => 0.0,
        }
    }

    /// Returns whether positions depend on the length of the sequence.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, Some(RopeScaling::Dynamic { .. }))
    }
}

impl RopeScaling {
    /// Its numbers, each with its name and what it has to be above.
    pub(super) fn numbers(&self) -> Vec<(&'static str, f64, f64)> {
        let (factor, length) = (
            "the factor of rotary scaling",
            "the original length of rotary scaling",
        );
        match *self {
            Self::Linear { factor: by } => vec![(factor, by, 0.0)],
            Self::Dynamic {
                factor: by,
                max_position,
            } => vec![(factor, by, 0.0), (length, max_position as f64, 0.0)],
            Self::Llama3 {
                factor: by,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position,
            } => vec![
                (factor, by, 0.0),
                ("the low_freq_factor of rotary scaling", low, 0.0),
                ("the high_freq_factor of rotary scaling", high, low),
                (length, original_max_position as f64, 0.0),
            ],
            Self::Yarn {
                factor: by,
                attention_factor,
                beta_fast,
                beta_slow,
                truncate: _,
                original_max_position,
            } => vec![
                (factor, by, 0.0),
                (
                    "the attention_factor of rotary scaling",
                    attention_factor,
                    0.0,
                ),
                ("the beta_slow of rotary scaling", beta_slow, 0.0),
                ("the beta_fast of rotary scaling", beta_fast, beta_slow),
                (length, original_max_position as f64, 0.0),
            ],
        }
    }
}

/// Text for people.
impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear { factor } => write!(f, "{factor} for all pairs"),
            Self::Dynamic {
                factor,
                max_position,
            } => write!(
                f,
                "up to {factor} by the length beyond {max_position} tokens"
            ),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => write!(
                f,
                "{factor} beyond {original_max_position} tokens, from {low_freq_factor} to {high_freq_factor} turns"
            ),
            Self::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                truncate,
                original_max_position,
            } => {
                let whole = if *truncate { " of whole pairs" } else { "" };
                write!(
                    f,
                    "{factor} beyond {original_max_position} tokens, from {beta_slow} to {beta_fast} turns{whole}, and \
                     scores times {attention_factor} squared"
                )
            }
        }
    }
}

/// Returns a frequency of which the share `keep` is left alone, and the rest is slowed.
fn slowed(frequency: f64, factor: f64, keep: f64) -> f64 {
    let keep = keep.clamp(0.0, 1.0);
    frequency * (keep + (1.0 - keep) / factor)
}

/// Rotary position tables: of the positions of a sequence, or of the tokens of a batch (`t = b * s`).
///
/// Neighbouring elements `(2i, 2i + 1)` of a head are one complex number, turned by its frequency times the position.
///
/// # Source
/// Su et al., "RoFormer" (arXiv:2104.09864). Interleaved pairs, as in Meta's Llama; Hugging Face checkpoints keep the
/// pairs half a head apart, which the loader undoes in the weights.
#[derive(Debug, Clone)]
pub struct Rope {
    /// `[s, 1, e]` or `[t, 1, e]`: the cosine, for both elements of a pair.
    cos_s1e: Tensor<3>,
    /// `[s, 1, e]` or `[t, 1, e]`: the sine, for both elements of a pair.
    sin_s1e: Tensor<3>,
    /// `[e, e]`: turns every pair by a right angle, `(a, b)` to `(-b, a)`.
    quarter_ee: Tensor<2>,
}

impl Rope {
    /// Computes the tables.
    pub fn new(seq: usize, head_dim: usize, config: &RopeConfig, device: &Device) -> Self {
        let frequencies = config.frequencies(head_dim, seq);
        let amplitude = config.amplitude();
        let mut cos = Vec::with_capacity(seq * head_dim);
        let mut sin = Vec::with_capacity(seq * head_dim);
        for position in 0..seq {
            for frequency in &frequencies {
                let angle = position as f64 * frequency;
                cos.extend([(amplitude * angle.cos()) as f32; 2]);
                sin.extend([(amplitude * angle.sin()) as f32; 2]);
            }
        }
        let mut quarter = vec![0.0_f32; head_dim * head_dim];
        for first in (0..head_dim).step_by(2) {
            quarter[first * head_dim + first + 1] = 1.0;
            quarter[(first + 1) * head_dim + first] = -1.0;
        }
        let table = |values| Tensor::from_data(TensorData::new(values, [seq, 1, head_dim]), device);
        Self {
            cos_s1e: table(cos),
            sin_s1e: table(sin),
            quarter_ee: Tensor::from_data(TensorData::new(quarter, [head_dim, head_dim]), device),
        }
    }

    /// The tables of tokens at these positions, which lie within the sequence.
    ///
    /// # Shapes
    /// `positions`: `[b, s]`.
    pub fn at(&self, positions_bs: Tensor<2, Int>) -> Self {
        let [b, s] = positions_bs.dims();
        let positions_t = positions_bs.reshape([b * s]);
        let of_tokens = |table_s1e: &Tensor<3>| table_s1e.clone().select(0, positions_t.clone());
        Self {
            cos_s1e: of_tokens(&self.cos_s1e),
            sin_s1e: of_tokens(&self.sin_s1e),
            quarter_ee: self.quarter_ee.clone(),
        }
    }

    /// Turns every pair by its position: `x cos + ix sin`, `ix` being a quarter turn of `x`.
    ///
    /// The quarter turn is a small matrix product, exact since each sum has one term: cheaper than swapping
    /// neighbours in memory. The tables are repeated for the heads, so that each row meets a row of its own width.
    ///
    /// # Shapes
    /// Input and output: `[b, s, h * e]`, for any number of heads.
    pub fn apply(&self, x_bsq: Tensor<3>) -> Tensor<3> {
        let [b, s, q] = x_bsq.dims();
        let [t, _, e] = self.cos_s1e.dims();
        let h = q / e;
        let for_heads =
            |table_t1e: &Tensor<3>| table_t1e.clone().expand([t, h, e]).reshape([t / s, s, q]);
        let turned_bsq = x_bsq
            .clone()
            .reshape([b * s * h, e])
            .matmul(self.quarter_ee.clone())
            .reshape([b, s, q]);
        x_bsq * for_heads(&self.cos_s1e) + turned_bsq * for_heads(&self.sin_s1e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Tolerance;

    #[test]
    fn agrees_with_complex_multiplication() {
        let (b, h, s, e, theta) = (2, 3, 5, 8, 10_000.0_f64);
        let values: Vec<f32> = (0..b * h * s * e)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0)
            .collect();
        let mut expected = values.clone();
        for (row, pairs) in expected.chunks_mut(e).enumerate() {
            let position = (row / h % s) as f64;
            for (i, pair) in pairs.chunks_mut(2).enumerate() {
                let angle = position / theta.powf(2.0 * i as f64 / e as f64);
                let (re, im) = (f64::from(pair[0]), f64::from(pair[1]));
                pair[0] = (re * angle.cos() - im * angle.sin()) as f32;
                pair[1] = (re * angle.sin() + im * angle.cos()) as f32;
            }
        }
        let x = Tensor::<3>::from_data(TensorData::new(values, [b, s, h * e]), &Device::flex());
        let got = Rope::new(
            s,
            e,
            &RopeConfig {
                theta,
                scaling: None,
            },
            &Device::flex(),
        )
        .apply(x)
        .into_data();
        got.assert_approx_eq::<f32>(
            &TensorData::new(expected, [b, s, h * e]),
            Tolerance::absolute(1e-5),
        );
    }

    #[test]
    fn scaling_slows_only_the_slow_pairs() {
        let plain = RopeConfig {
            theta: 500_000.0,
            scaling: None,
        };
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        let scaled = RopeConfig {
            scaling: Some(scaling),
            ..plain.clone()
        };
        let (plain, scaled) = (plain.frequencies(128, 8), scaled.frequencies(128, 8));
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[63] / scaled[63] - 8.0).abs() < 1e-9);
        let middle = (0..64)
            .filter(|&i| (1.01..7.99).contains(&(plain[i] / scaled[i])))
            .count();
        assert!((2..20).contains(&middle), "{middle} pairs lie between");
    }
}
