//! Clipping of gradients over all parameters of a model.

use burn_core::module::{Module, ModuleVisitor, Param};
use burn_core::tensor::Tensor;
use burn_optim::GradientsParams;

/// Added to the norm before dividing by it, as PyTorch's `clip_grad_norm_` does.
const NORM_MIN: f32 = 1e-6;

/// Scales all gradients of `model` so that their common L2 norm is at most `norm_max`. Returns them and the norm
/// before, not yet read.
///
/// Burn's own clipping looks at one parameter at a time. The norm of all of them is the same on every mesh, to
/// rounding; parameters without a gradient count as zero.
///
/// # Shapes
/// The norm is `[1]`.
/// # Communication
/// On a mesh every rank sums the squares of the parts it holds; the sums are reduced, one number at a time, over the
/// axes that split them.
/// # Source
/// Pascanu et al., "On the difficulty of training recurrent neural networks" (arXiv:1211.5063), section 3.2.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::GradientsParams;
/// use burn::tensor::Tensor;
/// use burn_dist::optim::clip_grad_norm;
/// use burn_dist::{DeviceMesh, ParallelizeWith, Plan};
///
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// let model = LinearConfig::new(4, 4).init(&mesh.device().autodiff()).parallelize_with(&mesh, &Plan::new())?;
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &mesh.device().autodiff())).sum();
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// let (gradients, norm) = clip_grad_norm(&model, gradients, 1.0);
/// // Sixteen weights and four biases with a gradient of 3.
/// assert!((norm.into_scalar::<f32>() - 180.0_f32.sqrt()).abs() < 1e-4);
/// let weight = model.weight.id;
/// let clipped = gradients.get::<2>(weight).expect("a gradient");
/// assert!((clipped.max().into_scalar::<f32>() - 3.0 / 180.0_f32.sqrt()).abs() < 1e-4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn clip_grad_norm<M: Module>(
    model: &M,
    mut gradients: GradientsParams,
    norm_max: f32,
) -> (GradientsParams, Tensor<1>) {
    let norm = grad_norm(model, &gradients);
    let scale = ((norm.clone() + NORM_MIN).recip() * norm_max).clamp_max(1.0);
    model.visit(&mut Edit {
        gradients: &mut gradients,
        how: How::Scale(scale),
    });
    (gradients, norm)
}

/// Returns the common L2 norm of all gradients of `model`, not yet read.
///
/// It is the norm that [`clip_grad_norm`] returns, for who does not clip.
///
/// # Shapes
/// `[1]`.
/// # Communication
/// As of [`clip_grad_norm`].
pub fn grad_norm<M: Module>(model: &M, gradients: &GradientsParams) -> Tensor<1> {
    let mut squares = Squares {
        gradients,
        sum: None,
    };
    model.visit(&mut squares);
    match squares.sum {
        Some(sum) => sum.sqrt(),
        None => {
            let device = model.devices().first().cloned().unwrap_or_default();
            Tensor::zeros([1], &device)
        }
    }
}

/// Limits every element of every gradient of `model` to the range from `-value_max` to `value_max`.
///
/// # Communication
/// None.
pub fn clip_grad_value<M: Module>(
    model: &M,
    mut gradients: GradientsParams,
    value_max: f32,
) -> GradientsParams {
    model.visit(&mut Edit {
        gradients: &mut gradients,
        how: How::Limit(value_max),
    });
    gradients
}

/// Multiplies every gradient of `model` by `factor`.
pub(super) fn scale_grads<M: Module>(
    model: &M,
    mut gradients: GradientsParams,
    factor: f32,
) -> GradientsParams {
    model.visit(&mut Edit {
        gradients: &mut gradients,
        how: How::Multiply(factor),
    });
    gradients
}

/// Sums the squares of all gradients.
struct Squares<'a> {
    gradients: &'a GradientsParams,
    sum: Option<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else {
            return;
        };
        let squares = gradient.square().sum();
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + squares,
            None => squares,
        });
    }
}

#[allow(clippy::large_enum_variant, reason = "one is made for all gradients")]
enum How {
    Scale(Tensor<1>),
    Limit(f32),
    Multiply(f32),
}

/// Replaces all gradients.
struct Edit<'a> {
    gradients: &'a mut GradientsParams,
    how: How,
}

impl ModuleVisitor for Edit<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else {
            return;
        };
        let gradient = match &self.how {
            How::Scale(scale) => gradient.mul(scale.clone().reshape([1; D])),
            How::Limit(max) => gradient.clamp(-max, *max),
            How::Multiply(factor) => gradient.mul_scalar(*factor),
        };
        self.gradients.register(param.id, gradient);
    }
}
