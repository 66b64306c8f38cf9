//! Pipeline parallelism: blocks of a model on the stages of a pipeline axis (`pp`), and a training step over them:
//! forward and backward of all microbatches, planned together.
//!
//! | file | part |
//! | --- | --- |
//! | `burn-dist-front/src/parallel/plan.rs` | what users choose: [`Plan::stages`](crate::Plan::stages), [`Plan::schedule`](crate::Plan::schedule) |
//! | `burn-dist-front/src/parallel/stages.rs` | the stage of each parameter, evenly or by cost |
//! | `burn-dist-021/src/parallel/pipeline.rs` | [`forward_backward`]: a step in microbatches, recorded as one window |
//! | `burn-dist-plan/src/pipeline/` | schedules as tables: those of the literature, their text form, the validator, the search |
//! | `burn-dist-plan/src/facts/stages.rs` | the stage of each operation, by the parameters that it uses |
//! | `burn-dist-plan/src/passes/staging.rs`, `burn-dist-plan/src/passes/staging/` | the program of each stage: sends and receives, and actions in the order of the schedule |
//! | `burn-dist-engine/src/record/hold.rs` | the window that stays open until the step is recorded |
//! | `tests/pipeline.rs` | the bits of accumulation under every schedule; parameters on the ranks of their stage alone |

use std::ops::Range;

use burn_core::module::AutodiffModule;
use burn_core::tensor::backend::{AutodiffBackend, Backend};
use burn_core::tensor::{BasicOps, Tensor, TensorKind};
use burn_dist_front::parallel::microbatches as sizes;
use burn_optim::{GradientsAccumulator, GradientsParams};

use super::MeshBackend;

pub use burn_dist_front::parallel::PipelineError;

/// A batch that can be cut into microbatches along its rows: tensors, along dim 0; tuples and options of such; lists of
/// items on the host.
///
/// A struct of one's own implements it by its fields:
///
/// ```
/// use std::ops::Range;
/// use burn::tensor::backend::Backend;
/// use burn::tensor::{Int, Tensor};
/// use burn_dist::parallel::pipeline::Microbatches;
///
/// struct Batch<B: Backend> {
///     tokens: Tensor<B, 2, Int>,
///     targets: Tensor<B, 2, Int>,
/// }
///
/// impl<B: Backend> Microbatches for Batch<B> {
///     fn num_rows(&self) -> Vec<usize> {
///         vec![self.tokens.dims()[0], self.targets.dims()[0]]
///     }
///
///     fn rows(&self, rows: Range<usize>) -> Self {
///         Self { tokens: self.tokens.rows(rows.clone()), targets: self.targets.rows(rows) }
///     }
/// }
/// ```
pub trait Microbatches {
    /// Returns the number of rows of each of its parts.
    fn num_rows(&self) -> Vec<usize>;

    /// Returns the rows of a range, of each part.
    fn rows(&self, rows: Range<usize>) -> Self;
}

impl<B: Backend, const D: usize, K: TensorKind<B> + BasicOps<B>> Microbatches for Tensor<B, D, K> {
    fn num_rows(&self) -> Vec<usize> {
        vec![self.dims()[0]]
    }

    fn rows(&self, rows: Range<usize>) -> Self {
        match rows.len() == self.dims()[0] {
            true => self.clone(),
            false => self.clone().narrow(0, rows.start, rows.len()),
        }
    }
}

impl<T: Clone> Microbatches for Vec<T> {
    fn num_rows(&self) -> Vec<usize> {
        vec![self.len()]
    }

    fn rows(&self, rows: Range<usize>) -> Self {
        self[rows].to_vec()
    }
}

impl<T: Microbatches> Microbatches for Option<T> {
    fn num_rows(&self) -> Vec<usize> {
        self.iter().flat_map(T::num_rows).collect()
    }

    fn rows(&self, rows: Range<usize>) -> Self {
        self.as_ref().map(|part| part.rows(rows))
    }
}

/// Implements [`Microbatches`] for tuples.
macro_rules! tuples {
    ($($($name:ident)+;)+) => {$(
        impl<$($name: Microbatches),+> Microbatches for ($($name,)+) {
            #[allow(non_snake_case, reason = "the names of the types serve as those of the parts")]
            fn num_rows(&self) -> Vec<usize> {
                let ($($name,)+) = self;
                [$($name.num_rows()),+].concat()
            }

            #[allow(non_snake_case, reason = "the names of the types serve as those of the parts")]
            fn rows(&self, rows: Range<usize>) -> Self {
                let ($($name,)+) = self;
                ($($name.rows(rows.clone()),)+)
            }
        }
    )+};
}

tuples! {
    A;
    A C;
    A C D;
    A C D E;
    A C D E F;
    A C D E F G;
}

/// Runs forward and backward over a batch in microbatches; returns the loss, not yet read, and the gradients, for the
/// optimizer as ever.
///
/// The batch is cut along its rows, the first microbatches having one row more where the number does not divide them.
/// `loss` is called for each in turn and returns its mean over the rows of the microbatch. The loss of the step is the
/// mean over all rows: those of the microbatches are weighted by their share of the rows, and so are the gradients.
///
/// On a mesh with a pipeline axis, ranks work on the microbatches as the plan's [schedule](crate::Plan::schedule) says.
/// On any other mesh this is accumulation of gradients. In both cases the results are, bit by bit, those of this loop:
///
/// ```text
/// for each microbatch {
///     let loss = loss(&model, microbatch) * (rows of the microbatch / rows of the batch);
///     accumulator.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
///     sum = sum + loss;
/// }
/// ```
///
/// A tensor that is read within `loss` ends what is planned together, see [`MeshBackend::hold`]; read the loss of the
/// step after it.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::loss::{MseLoss, Reduction};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{Optimizer, SgdConfig};
/// use burn::tensor::Tensor;
/// use burn_dist::{DeviceMesh, Dist};
/// use burn_dist::parallel::pipeline;
///
/// type B = Autodiff<Dist<Flex>>;
///
/// let mesh = DeviceMesh::parse("dp=2")?;
/// let device = mesh.device();
/// let mut model: Linear<B> = LinearConfig::new(2, 1).init(&device);
/// let mut optimizer = SgdConfig::new().init();
/// let x = Tensor::<B, 2>::from_data([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], &device);
/// let y = Tensor::<B, 2>::from_data([[1.0], [2.0], [3.0], [4.0]], &device);
///
/// let (loss, gradients) = pipeline::forward_backward(&model, (x, y), 2, |model, (x, y)| {
///     MseLoss::new().forward(model.forward(x), y, Reduction::Mean)
/// })?;
/// model = optimizer.step(0.01, model, gradients);
/// assert!(loss.into_scalar() > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Shapes
/// `loss` returns `[1]`, and so does this.
/// # Communication
/// None by itself; activations and their gradients go from stage to stage where the window runs.
/// # Errors
/// [`PipelineError`] for a batch that cannot be cut so.
/// # Source
/// GPipe (arXiv:1811.06965) for the microbatches; `torch.distributed.pipelining`'s `schedule.step`. Differs: the model
/// is called whole, and the gradients are returned.
#[track_caller]
pub fn forward_backward<B, M, T>(
    model: &M,
    batch: T,
    microbatches: usize,
    mut loss: impl FnMut(&M, T) -> Tensor<B, 1>,
) -> Result<(Tensor<B, 1>, GradientsParams), PipelineError>
where
    B: AutodiffBackend + MeshBackend,
    M: AutodiffModule<B>,
    T: Microbatches,
{
    let sizes = sizes(batch.num_rows(), microbatches)?;
    let rows: usize = sizes.iter().sum();
    // Asking for the device initialises parameters: before the hold, since that is no part of the step.
    let device = model.devices().into_iter().next();
    #[allow(
        clippy::manual_map,
        reason = "a hold names its caller, and that is not a closure"
    )]
    let hold = match device {
        Some(device) => Some(B::hold(&device)),
        None => None,
    };
    let mut accumulator = GradientsAccumulator::new();
    let mut sum: Option<Tensor<B::InnerBackend, 1>> = None;
    let mut start = 0;
    for (number, size) in sizes.iter().copied().enumerate() {
        if let Some(hold) = &hold {
            hold.at_microbatch(number, microbatches);
        }
        let part = batch.rows(start..start + size);
        start += size;
        let mut loss = loss(model, part);
        if microbatches > 1 {
            loss = loss * (size as f64 / rows as f64);
        }
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        accumulator.accumulate(model, gradients);
        let loss = loss.inner();
        sum = Some(match sum {
            Some(sum) => sum + loss,
            None => loss,
        });
    }
    let sum = sum.ok_or(PipelineError::NoMicrobatches)?;
    Ok((Tensor::from_inner(sum), accumulator.grads()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_alike() {
        let two = (vec![0; 4], Some(vec![""; 4]), None::<Vec<u8>>);
        assert_eq!(two.num_rows(), [4, 4]);
        assert_eq!(two.rows(1..3), (vec![0; 2], Some(vec![""; 2]), None));
    }
}
