//! Rotary positions.

use burn::tensor::{Device, Tensor, TensorData};

/// Rotary position tables of a sequence.
///
/// Neighbouring elements `(2i, 2i + 1)` of a head are one complex number, turned by its frequency times the position.
///
/// # Source
/// Su et al., "RoFormer" (arXiv:2104.09864). Interleaved pairs, as in Meta's Llama; Hugging Face checkpoints keep the
/// pairs half a head apart, which the loader undoes in the weights.
#[derive(Debug, Clone)]
pub struct Rope {
    /// `[s, 1, e]`: the cosine, for both elements of a pair.
    cos_s1e: Tensor<3>,
    /// `[s, 1, e]`: the sine, for both elements of a pair.
    sin_s1e: Tensor<3>,
    /// `[e, e]`: turns every pair by a right angle, `(a, b)` to `(-b, a)`.
    quarter_ee: Tensor<2>,
}

impl Rope {
    /// Computes the tables.
    pub fn new(seq: usize, head_dim: usize, theta: f64, device: &Device) -> Self {
        let frequency = |pair: usize| theta.powf(-2.0 * pair as f64 / head_dim as f64);
        let frequencies: Vec<f64> = (0..head_dim / 2).map(frequency).collect();
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
