//! Gradients that are not numbers.

use burn_core::module::{Module, ModuleVisitor, Param};
use burn_core::tensor::{Int, Tensor};
use burn_optim::GradientsParams;

/// The reaction to a step whose gradients are not all finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// Leave the step out, with a warning: a loss that overflows now and then is the price of f16.
    Skip,
    /// Give the step back as an error.
    #[default]
    Stop,
}

/// A gradient that is not finite: the first in the order of the model's parameters.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the gradient of {path} has {nans} NaN and {infinities} infinite of {elements} elements at step {step}: \
     lower the learning rate, clip gradients (`clip_grad_norm`), or skip such steps (`NonFinite::Skip`)"
)]
pub struct NonFiniteGradient {
    /// Path of the parameter.
    pub path: String,
    /// The step, counted from 1.
    pub step: u64,
    /// Elements that are NaN.
    pub nans: u64,
    /// Elements that are infinite.
    pub infinities: u64,
    /// Elements in all.
    pub elements: u64,
}

burn_dist_mesh::debug_by_message!(NonFiniteGradient);

/// Looks at the gradients of every step before the optimizer does.
///
/// # Communication
/// On a mesh every rank counts in the parts it holds; the counts are summed, one number at a time, over the axes that
/// split them, and one number is read. Only when it is not zero, two are read for each parameter up to the first at
/// fault.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::GradientsParams;
/// use burn::tensor::Tensor;
/// use burn_dist::optim::{GradientCheck, NonFinite};
/// use burn_dist::{DeviceMesh, ParallelizeWith, Plan};
///
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// let model = LinearConfig::new(4, 4).init(&mesh.device().autodiff()).parallelize_with(&mesh, &Plan::new())?;
/// let mut check = GradientCheck::new(NonFinite::Stop);
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &mesh.device().autodiff())).sum() / 0.0;
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// let error = check.check(&model, gradients).unwrap_err();
/// assert!(error.to_string().starts_with("the gradient of weight has 0 NaN and 16 infinite of 16 elements at step 1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GradientCheck {
    policy: NonFinite,
    step: u64,
    skipped: u64,
    missing: Option<Vec<String>>,
}

impl GradientCheck {
    /// Starts: the first step that it looks at is step 1.
    pub fn new(policy: NonFinite) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Returns the gradients if all are finite, and `None` if this step is to be left out. Counts a step in both cases.
    ///
    /// Parameters that are trained and have no gradient (unused ones) are fine; at the first step their paths are
    /// logged as a warning, and kept: [`Self::missing`].
    ///
    /// # Errors
    /// [`NonFiniteGradient`], under [`NonFinite::Stop`].
    pub fn check<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<Option<GradientsParams>, NonFiniteGradient> {
        self.step += 1;
        let step = self.step;
        let (are_finite, missing) = are_finite(model, &gradients);
        if self.missing.is_none() {
            if !missing.is_empty() {
                tracing::warn!(
                    parameters = missing.join(", "),
                    "no gradient reaches these parameters"
                );
            }
            self.missing = Some(missing);
        }
        if are_finite {
            return Ok(Some(gradients));
        }
        let mut find = Find {
            gradients: &gradients,
            path: Vec::new(),
            step,
            found: None,
        };
        model.visit(&mut find);
        let found = find.found.expect("the sum of all counts is not zero");
        match self.policy {
            NonFinite::Stop => Err(found),
            NonFinite::Skip => {
                self.skipped += 1;
                tracing::warn!("{found}; the step is left out");
                Ok(None)
            }
        }
    }

    /// Paths of the trained parameters that had no gradient at the first step.
    pub fn missing(&self) -> &[String] {
        self.missing.as_deref().unwrap_or_default()
    }

    /// Steps that were left out.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// Returns whether all elements of all gradients are finite, and the paths of the trained parameters that have no
/// gradient.
///
/// # Communication
/// On a mesh every rank looks at the parts it holds; one number is reduced and read.
pub(super) fn are_finite<M: Module>(model: &M, gradients: &GradientsParams) -> (bool, Vec<String>) {
    let mut count = Count {
        gradients,
        path: Vec::new(),
        missing: Vec::new(),
        sum: None,
    };
    model.visit(&mut count);
    let wrong = count.sum.map_or(0, |sum| sum.into_scalar::<i64>());
    (wrong == 0, count.missing)
}

fn count<const D: usize>(what: Tensor<D, burn_core::tensor::Bool>) -> Tensor<1, Int> {
    what.int().sum()
}

/// Counts the elements of all gradients that are not finite.
struct Count<'a> {
    gradients: &'a GradientsParams,
    path: Vec<String>,
    missing: Vec<String>,
    sum: Option<Tensor<1, Int>>,
}

impl ModuleVisitor for Count<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else {
            if param.is_require_grad() {
                self.missing.push(self.path.join("."));
            }
            return;
        };
        let wrong = count::<D>(gradient.is_finite().bool_not());
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + wrong,
            None => wrong,
        });
    }
}

/// Finds the first gradient that is not finite.
struct Find<'a> {
    gradients: &'a GradientsParams,
    path: Vec<String>,
    step: u64,
    found: Option<NonFiniteGradient>,
}

impl ModuleVisitor for Find<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.found.is_some() {
            return;
        }
        let Some(gradient) = self.gradients.get::<D>(param.id) else {
            return;
        };
        let elements = gradient.shape().num_elements() as u64;
        let number = |count: Tensor<1, Int>| count.into_scalar::<i64>() as u64;
        let nans = number(count::<D>(gradient.clone().is_nan()));
        let infinities = number(count::<D>(gradient.is_inf()));
        if nans + infinities > 0 {
            self.found = Some(NonFiniteGradient {
                path: self.path.join("."),
                step: self.step,
                nans,
                infinities,
                elements,
            });
        }
    }
}
