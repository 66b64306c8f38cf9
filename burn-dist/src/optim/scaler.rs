//! Loss scaling, for gradients in f16.

use burn_core::module::AutodiffModule;
use burn_core::tensor::Tensor;
use burn_core::tensor::backend::AutodiffBackend;
use burn_optim::GradientsParams;
use serde::{Deserialize, Serialize};

use super::clip::scale_grads;
use super::finite::are_finite;

/// Scales a loss so that small gradients do not vanish in f16, and finds out by itself how far it can go.
///
/// bf16 and f32 have the exponents to do without.
///
/// # Source
/// Mixed precision training (arXiv:1710.03740), section 3.2; growth and backoff are those of PyTorch's `GradScaler`.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::LinearConfig;
/// use burn::optim::{GradientsParams, Optimizer, SgdConfig};
/// use burn::tensor::Tensor;
/// use burn_dist::optim::LossScaler;
/// use burn_dist::{DeviceMesh, Dist, Float, ParallelizeWith, Plan, Precision};
///
/// type B = Autodiff<Dist<Flex>>;
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// let plan = Plan::new().precision(Precision::new(Float::F16));
/// let mut model = LinearConfig::new(4, 4).init::<B>(&mesh.device()).parallelize_with(&mesh, &plan)?;
/// let mut optimizer = SgdConfig::new().init();
/// let mut scaler = LossScaler::new(1024.0);
/// let loss = model.forward(Tensor::<B, 2>::ones([3, 4], &mesh.device())).mean();
/// let gradients = GradientsParams::from_grads(scaler.scale(loss).backward(), &model);
/// if let Some(gradients) = scaler.unscale(&model, gradients) {
///     model = optimizer.step(1e-2, model, gradients);
/// }
/// assert_eq!(scaler.factor(), 1024.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    factor: f32,
    /// Steps with finite gradients since the factor changed.
    good: u32,
}

/// Steps with finite gradients after which the factor is doubled.
const GROWTH_INTERVAL: u32 = 2000;

impl LossScaler {
    /// Starts with `factor`; 65536 is usual.
    pub fn new(factor: f32) -> Self {
        Self { factor, good: 0 }
    }

    /// Returns what losses are multiplied by now.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Returns the loss that the backward starts from.
    pub fn scale<B: AutodiffBackend, const D: usize>(&self, loss: Tensor<B, D>) -> Tensor<B, D> {
        loss.mul_scalar(self.factor)
    }

    /// Returns the gradients of the loss itself; `None` if one of them is not finite: leave the step out, the factor
    /// has been halved. After 2,000 steps without, it is doubled.
    ///
    /// # Communication
    /// On a mesh every rank looks at the parts it holds; one number is reduced and read.
    pub fn unscale<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
    ) -> Option<GradientsParams> {
        if !are_finite(model, &gradients).0 {
            self.factor /= 2.0;
            self.good = 0;
            return None;
        }
        let inverse = 1.0 / self.factor;
        self.good += 1;
        if self.good == GROWTH_INTERVAL {
            self.factor *= 2.0;
            self.good = 0;
        }
        Some(scale_grads(model, gradients, inverse))
    }
}
