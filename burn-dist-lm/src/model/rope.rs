use burn::tensor::{Device, Int, Tensor, TensorData};

/// How fast each pair of a head turns.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Pair `i` of a head of width `e` turns by `theta^(-2i/e)` per position.
    pub theta: f64,
    /// Slows the slow pairs down, for sequences longer than those first trained on.
    pub scaling: Option<RopeScaling>,
}

/// The frequency scaling of Llama 3.1 and later (`rope_type: llama3` in a `config.json`).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeScaling {
    /// How much slower pairs of long wavelength turn.
    pub factor: f64,
    /// Wavelengths above `original_max_position / low_freq_factor` are slowed by the whole factor.
    pub low_freq_factor: f64,
    /// Wavelengths below `original_max_position / high_freq_factor` are left alone.
    pub high_freq_factor: f64,
    /// The sequence length first trained on, in tokens.
    pub original_max_position: usize,
}

impl RopeConfig {
    /// Radians per position for each pair of a head.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let plain =
            (0..head_dim / 2).map(|pair| self.theta.powf(-2.0 * pair as f64 / head_dim as f64));
        match &self.scaling {
            None => plain.collect(),
            Some(scaling) => plain.map(|frequency| scaling.apply(frequency)).collect(),
        }
    }
}

impl RopeScaling {
    fn apply(&self, frequency: f64) -> f64 {
        let turns = self.original_max_position as f64 * frequency / std::f64::consts::TAU;
        let keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
        let keep = keep.clamp(0.0, 1.0);
        frequency * (keep + (1.0 - keep) / self.factor)
    }
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
        let frequencies = config.frequencies(head_dim);
        let mut cos = Vec::with_capacity(seq * head_dim);
        let mut sin = Vec::with_capacity(seq * head_dim);
        for position in 0..seq {
            for frequency in &frequencies {
                let angle = position as f64 * frequency;
                cos.extend([angle.cos() as f32; 2]);
                sin.extend([angle.sin() as f32; 2]);
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
        let scaling = RopeScaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        let scaled = RopeConfig {
            scaling: Some(scaling),
            ..plain.clone()
        };
        let (plain, scaled) = (plain.frequencies(128), scaled.frequencies(128));
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[63] / scaled[63] - 8.0).abs() < 1e-9);
        let middle = (0..64)
            .filter(|&i| (1.01..7.99).contains(&(plain[i] / scaled[i])))
            .count();
        assert!((2..20).contains(&middle), "{middle} pairs lie between");
    }
}
