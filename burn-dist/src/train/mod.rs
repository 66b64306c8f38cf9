//! The run around a training loop: configuration, metrics, texts as rows of tokens, the run's folder (feature `train`).

mod step;

pub use burn_dist_train::*;
/// ```
/// use burn::tensor::Tensor;
/// use burn_dist::train::{StepFigures, metrics::Figures};
/// use burn_dist::{DeviceMesh, OnMesh};
///
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// let device = mesh.device();
/// let before = device.report();
/// let rows = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device);
/// rows.clone().matmul(rows).into_data();
/// let step = StepFigures::between(&before, &device.report());
/// // Two products and two sums for each of four elements, whoever computes which.
/// assert_eq!((step.num_ranks, step.model_flops), (2, 16.0));
/// let mut figures = Figures::at(1);
/// step.add_to(&mut figures);
/// assert!(figures.get("time/computing_ms").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use step::{ClassPeaks, StepFigures};
