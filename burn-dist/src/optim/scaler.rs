//! Loss scaling, for gradients in f16.

use burn_core::module::Module;
use burn_core::tensor::Tensor;
use burn_optim::GradientsParams;
use serde::{Deserialize, Serialize};

use super::clip::scale_grads;
use super::finite::are_finite;

/// Scales a loss so that small gradients do not vanish in f16, and finds out by itself how far it can go.
///
/// bf16 and f32 have the exponents to do without. The factor is at least [`LossScaler::MIN`], so that gradients are
/// divided by what is no less than 1: what was finite stays so. It is at most [`LossScaler::MAX`], of which f16 has the
/// inverse.
///
/// # Source
/// Mixed precision training (arXiv:1710.03740), section 3.2; growth and backoff are those of PyTorch's `GradScaler`;
/// it has no bounds.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::Tensor;
/// use burn_dist::optim::LossScaler;
/// use burn_dist::{DeviceMesh, Float, ParallelizeWith, Plan, Precision};
///
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// let plan = Plan::new().precision(Precision::new(Float::F16));
/// let mut model = LinearConfig::new(4, 4).init(&mesh.device().autodiff()).parallelize_with(&mesh, &plan)?;
/// let mut optimizer = SgdConfig::new().init();
/// let mut scaler = LossScaler::new(1024.0);
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &mesh.device().autodiff())).mean();
/// let gradients = GradientsParams::from_grads(scaler.scale(loss).backward(), &model);
/// if let Some(gradients) = scaler.unscale(&model, gradients) {
///     model = optimizer.step(1e-2, model, gradients);
/// }
/// assert_eq!(scaler.factor(), 1024.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct LossScaler {
    /// From `MIN` to `MAX`.
    factor: f32,
    /// Steps with finite gradients since the factor changed.
    good: u32,
}

/// Steps with finite gradients after which the factor is doubled.
const GROWTH_INTERVAL: u32 = 2000;

impl LossScaler {
    /// The smallest factor. Where gradients are not finite even so, no factor mends that.
    pub const MIN: f32 = 1.0;
    /// The largest factor, 2^24: its inverse is the smallest number above 0 in f16.
    pub const MAX: f32 = 16_777_216.0;

    /// Starts with `factor`; 65536 is usual.
    ///
    /// # Panics
    /// If it is not from [`Self::MIN`] to [`Self::MAX`].
    pub fn new(factor: f32) -> Self {
        assert!(
            (Self::MIN..=Self::MAX).contains(&factor),
            "losses cannot be scaled by {factor}: a factor is from {} to {}",
            Self::MIN,
            Self::MAX
        );
        Self { factor, good: 0 }
    }

    /// Returns what losses are multiplied by now.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Returns the loss that the backward starts from.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        loss.mul_scalar(self.factor)
    }

    /// Returns the gradients of the loss itself; `None` if one of them is not finite: leave the step out, the factor
    /// has been halved, down to [`Self::MIN`]. At that a warning is logged: the loss itself has such gradients, and if
    /// they stay, the model or the data is at fault. After 2,000 steps without, the factor is doubled, up to
    /// [`Self::MAX`].
    ///
    /// # Communication
    /// On a mesh every rank looks at the parts it holds; one number is reduced and read.
    pub fn unscale<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
    ) -> Option<GradientsParams> {
        let (are_finite, _) = are_finite(model, &gradients);
        let inverse = self.after(are_finite)?;
        Some(scale_grads(model, gradients, inverse))
    }

    /// Takes down whether the gradients of a step are finite; returns what they are multiplied by, if they are: a
    /// number above 0 and up to 1.
    fn after(&mut self, are_finite: bool) -> Option<f32> {
        let factor = self.factor;
        if !are_finite {
            if factor == Self::MIN {
                tracing::warn!(
                    "gradients are not finite though the loss is not scaled up (a factor of {}): the loss itself has \
                     such gradients",
                    Self::MIN
                );
            }
            self.factor = (factor / 2.0).max(Self::MIN);
            self.good = 0;
            return None;
        }
        self.good += 1;
        if self.good == GROWTH_INTERVAL {
            self.factor = (factor * 2.0).min(Self::MAX);
            self.good = 0;
        }
        Some(1.0 / factor)
    }
}

/// A scaler as it was saved: one of a version without bounds may have any factor.
#[derive(Deserialize)]
struct Stored {
    factor: f32,
    good: u32,
}

impl TryFrom<Stored> for LossScaler {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        if stored.factor.is_nan() {
            return Err("a loss scaler has no factor".to_string());
        }
        Ok(Self {
            factor: stored.factor.clamp(Self::MIN, Self::MAX),
            good: stored.good.min(GROWTH_INTERVAL - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever gradients do, the factor and its inverse are those of the law: finite, from 1 to 2^24, and no gradient
    /// grows when it is divided.
    #[test]
    fn a_factor_stays_within_its_bounds() {
        let mut scaler = LossScaler::new(65536.0);
        for _ in 0..200 {
            assert_eq!(scaler.after(false), None);
        }
        assert_eq!(scaler.factor(), LossScaler::MIN);
        // Up again, for longer than it takes to the ceiling; and what was finite stays so.
        for _ in 0..40 * GROWTH_INTERVAL {
            let inverse = scaler.after(true).unwrap();
            assert!(inverse > 0.0 && inverse <= 1.0, "{inverse}");
            assert!((f32::MAX * inverse).is_finite());
        }
        assert_eq!(scaler.factor(), LossScaler::MAX);
        assert_eq!(scaler.after(true), Some(2f32.powi(-24)));
        assert_eq!(scaler.after(false), None);
        assert_eq!(scaler.factor(), LossScaler::MAX / 2.0);
        assert_eq!(scaler.good, 0);
    }

    #[test]
    fn a_factor_that_is_none_is_refused() {
        for factor in [f32::NAN, f32::INFINITY, 0.0, -2.0, 0.5, 2f32.powi(25)] {
            let refused = std::panic::catch_unwind(|| LossScaler::new(factor));
            assert!(refused.is_err(), "{factor}");
        }
        for factor in [LossScaler::MIN, 1000.0, LossScaler::MAX] {
            assert_eq!(LossScaler::new(factor).factor(), factor);
        }
    }

    #[test]
    fn a_scaler_that_was_saved_comes_back_within_its_bounds() {
        let scaler = LossScaler::new(1024.0);
        let text = serde_json::to_string(&scaler).unwrap();
        assert_eq!(serde_json::from_str::<LossScaler>(&text).unwrap(), scaler);
        for (factor, expected) in [
            ("0.0", LossScaler::MIN),
            ("0.25", 1.0),
            ("1e38", LossScaler::MAX),
        ] {
            let text = format!("{{\"factor\":{factor},\"good\":2000}}");
            let mut found: LossScaler = serde_json::from_str(&text).unwrap();
            assert_eq!(found.factor(), expected);
            // The next good step is counted, and ends the interval.
            assert!(found.after(true).is_some());
            assert_eq!(found.good, 0);
        }
    }
}
