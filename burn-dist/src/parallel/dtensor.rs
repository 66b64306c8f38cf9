//! Layouts of tensors, for people: asking, moving, and the parts of single ranks.

use std::sync::Arc;

use burn_autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn_core::backend::{BackendTensor, DispatchAutodiffContext};
use burn_core::tensor::kind::Basic;
use burn_core::tensor::{
    Bool, Bytes, Device, Float, GradientCheckpointingStrategy, Int, Tensor, TensorData,
};
use burn_dist_plan::Role;

use super::redistribute::redistribute;
use crate::bridge::{from_mesh, from_parts, mesh_device, on_device, on_mesh, taken};
use crate::layout::{Layout, LayoutError, Rows};
use crate::mesh::{MeshShape, Rank};
use crate::ops::dtype::of_burn;
use crate::plan::clock::{ClockError, Hardware, Simulation};
use crate::plan::explain::{Ask, Explanation};
use crate::plan::{PASSES, PlanError, pass_index};
use crate::record::parts::{Placement, TensorParts};
use crate::record::{self, Hold, MeshReport};
use crate::run::{Fault, Trace};
use crate::{MeshDevice, Registered};

/// A layout that cannot be asked for or read.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DTensorError {
    /// The text is not a layout of that tensor on that mesh.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The mesh has stopped.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The tensor, or the device, is of no mesh.
    #[error(
        "{device} is no device of a mesh: make the tensor on the device of one (`DeviceMesh::device`)"
    )]
    NoMesh {
        /// The device.
        device: String,
    },
    /// A rank that the mesh does not have.
    #[error("rank {rank} does not exist: mesh {mesh} has ranks 0 to {last}")]
    NoSuchRank {
        /// The rank that was asked for.
        rank: u32,
        /// Text form of the mesh.
        mesh: String,
        /// The last rank.
        last: usize,
    },
    /// The parts passed to [`LocalParts::from_local`] do not make up the tensor.
    #[error(
        "rank {rank} must hold {expected:?} of a tensor in layout {layout}, but was given {found:?}"
    )]
    LocalShape {
        /// Whose part.
        rank: u32,
        /// Shape that the layout gives it.
        expected: Vec<usize>,
        /// Shape that was passed.
        found: Vec<usize>,
        /// Text form of the layout.
        layout: String,
    },
    /// The rows passed to [`ProcessLocal::from_process_local`] are not those of this process.
    #[error(
        "this process was given {found} row(s), and its ranks hold {expected} ({rows}): give the rows that \
         `DeviceMesh::local_rows` names, in that order"
    )]
    LocalRows {
        /// Rows passed.
        found: usize,
        /// Rows that the ranks of this process hold.
        expected: usize,
        /// Which.
        rows: Rows,
    },
    /// The data passed to [`ProcessLocal::from_process_local`] has not as many dims as the tensor.
    #[error(
        "a tensor of {expected} dim(s) was asked for, and the rows given have {found}: give data of shape [rows, ..] \
         with {expected} dim(s)"
    )]
    NumDims {
        /// Dims of the data.
        found: usize,
        /// Dims of the tensor.
        expected: usize,
    },
    /// Not one part per rank that this process runs.
    #[error(
        "this process runs {ranks} rank(s) of mesh {mesh}, but {found} parts were given: give one per rank that it \
         runs, in rank order"
    )]
    NumParts {
        /// Text form of the mesh.
        mesh: String,
        /// Ranks that this process runs.
        ranks: usize,
        /// Parts passed.
        found: usize,
    },
}

burn_dist_mesh::debug_by_message!(DTensorError);

/// A device of a mesh: what its ranks did, and what it does with what a program records.
///
/// ```
/// use burn_dist::{DeviceMesh, OnMesh};
///
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// assert!(mesh.device().fault().is_none());
/// # Ok::<(), burn_dist::mesh::MeshError>(())
/// ```
///
/// # Panics
/// All of its functions, on a device of another backend.
pub trait OnMesh {
    /// Returns what the mesh did since it was made.
    ///
    /// # Communication
    /// Closes the window and waits for the local ranks.
    fn report(&self) -> MeshReport;

    /// Returns what the ranks did when, so far; `None` unless the mesh was built with
    /// [`DeviceMeshBuilder::trace`](crate::DeviceMeshBuilder::trace), or if it has ended.
    ///
    /// # Communication
    /// Closes the window and waits for the local ranks.
    fn trace(&self) -> Option<Trace>;

    /// Returns the fault that has stopped the mesh, if one has: the error of failed reads, as data. A program that ends
    /// with it returns its [`exit_code`](Fault::exit_code) to the scheduler.
    fn fault(&self) -> Option<Fault>;

    /// Keeps the window of the mesh open until the result is dropped, so that what is recorded meanwhile is planned
    /// together: the forward and backward passes of all microbatches of a step, which a pipeline overlaps.
    ///
    /// [`pipeline::forward_backward`](super::pipeline::forward_backward) does it for a step; a loop of one's own takes
    /// a hold around its microbatches:
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::{GradientsAccumulator, GradientsParams, SgdConfig};
    /// use burn::tensor::Tensor;
    /// use burn_dist::{DeviceMesh, OnMesh};
    ///
    /// let mesh = DeviceMesh::parse("dp=2")?;
    /// let device = mesh.device().autodiff();
    /// let mut model: Linear = LinearConfig::new(2, 1).init(&device);
    /// let mut optimizer = SgdConfig::new().init();
    /// let microbatches = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]];
    ///
    /// let hold = device.hold();
    /// let mut accumulator = GradientsAccumulator::new();
    /// for rows in microbatches {
    ///     let loss = model.forward(Tensor::<2>::from_data(rows, &device)).mean() / 2.0;
    ///     accumulator.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
    /// }
    /// drop(hold);
    /// model = optimizer.step(0.1, model, accumulator.grads());
    /// # Ok::<(), burn_dist::mesh::MeshError>(())
    /// ```
    ///
    /// A read, a sync or a change of seed by the thread that holds ends the window all the same, and a warning says so
    /// once: what was recorded so far runs alone. Results are the same; over data axes to rounding, since gradients are
    /// reduced once for each window ([`Accumulation`](crate::Accumulation)). The number of operations that
    /// [`DeviceMeshBuilder::window_ops_max`](crate::DeviceMeshBuilder::window_ops_max) allows ends it too.
    #[track_caller]
    fn hold(&self) -> Hold;

    /// Starts collecting what the plans of the following windows do, and what is asked beside that.
    #[doc(hidden)]
    fn start_explaining(&self, ask: Ask);

    /// Returns what was collected since [`Self::start_explaining`], closing the window.
    #[doc(hidden)]
    fn explained(&self) -> Explanation;
}

impl OnMesh for Device {
    fn report(&self) -> MeshReport {
        record::report::<Registered>(of_mesh(self))
    }

    fn trace(&self) -> Option<Trace> {
        record::trace::<Registered>(of_mesh(self))
    }

    fn fault(&self) -> Option<Fault> {
        record::fault::<Registered>(of_mesh(self))
    }

    #[track_caller]
    fn hold(&self) -> Hold {
        record::hold::<Registered>(of_mesh(self))
    }

    fn start_explaining(&self, ask: Ask) {
        record::start_explaining::<Registered>(of_mesh(self), ask);
    }

    fn explained(&self) -> Explanation {
        record::explained::<Registered>(of_mesh(self))
    }
}

/// Returns the mesh that a device stands for.
///
/// # Panics
/// If it stands for none.
#[track_caller]
fn of_mesh(device: &Device) -> &MeshDevice {
    mesh_device(device).unwrap_or_else(|| panic!("{}", no_mesh(device)))
}

fn no_mesh(device: &Device) -> DTensorError {
    DTensorError::NoMesh {
        device: format!("{device:?}"),
    }
}

/// Returns a device as one of a mesh, with the shape of that.
pub(crate) fn mesh_of(device: &Device) -> Result<(MeshDevice, MeshShape), DTensorError> {
    let mesh = mesh_device(device).ok_or_else(|| no_mesh(device))?;
    match mesh.shape().cloned() {
        Some(shape) => Ok((mesh.clone(), shape)),
        None => Err(Fault::ended(mesh).into()),
    }
}

/// A tensor on a mesh: its layout, moves to other layouts, and the parts that ranks hold. Values never change by them.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_dist::mesh::Rank;
/// use burn_dist::{DTensor, DeviceMesh, LocalParts};
///
/// let mesh = DeviceMesh::builder().axis("tp", 2).build()?;
/// let x = Tensor::<2>::ones([3, 4], &mesh.device().autodiff());
/// let x = x.redistribute("[-, {tp}]")?;
/// assert_eq!(x.layout_text()?, "[-, {tp}]");
/// assert_eq!(x.to_local(Rank(1))?.shape().as_slice(), [3, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait DTensor: Sized {
    /// Returns the layout of the tensor on the ranks.
    ///
    /// # Communication
    /// Closes the window; a partial value is resolved, since it outlives it.
    /// # Errors
    /// [`DTensorError::Fault`] if the mesh has stopped, [`DTensorError::NoMesh`].
    fn layout(&self) -> Result<Layout, DTensorError>;

    /// Returns the text form of [`Self::layout`].
    ///
    /// # Errors
    /// As [`Self::layout`].
    fn layout_text(&self) -> Result<String, DTensorError>;

    /// Moves the tensor to the layout that `target` describes (text form), by the cheapest sequence of collectives.
    ///
    /// In a partial layout the ranks hold terms that reduce to the value, bit by bit, whatever the reduction: of a sum
    /// or a product one rank has the value and the others the identity (-0.0 of floats, 1), of a mean, minimum or
    /// maximum all have the value.
    ///
    /// # Gradient
    /// The gradient has the same global value.
    /// # Errors
    /// [`DTensorError::Layout`] if the text does not describe a layout of this tensor on its mesh.
    fn redistribute(self, target: &str) -> Result<Self, DTensorError>;
}

/// The parts of single ranks of a float tensor, as data of the host.
pub trait LocalParts: Sized {
    /// Returns a rank's part.
    ///
    /// # Errors
    /// [`DTensorError::NoSuchRank`], [`DTensorError::Fault`].
    fn to_local(&self, rank: Rank) -> Result<TensorData, DTensorError>;

    /// Makes a tensor of `shape` from the parts of all ranks that this process runs, in rank order, laid out as
    /// `layout` (text form) says.
    ///
    /// # Errors
    /// [`DTensorError`] if there is not one part per rank here, or a part does not have the shape that the layout gives
    /// it.
    fn from_local(
        parts: Vec<TensorData>,
        shape: &[usize],
        layout: &str,
        device: &Device,
    ) -> Result<Self, DTensorError>;
}

/// A tensor of which every process gives its own rows: a batch that no process reads as a whole.
///
/// Rows are split over the data axes as those of a whole batch are ([`InputPolicy::Batch`](crate::InputPolicy)), so
/// results are bitwise the same.
///
/// ```
/// use burn::tensor::{Tensor, TensorData};
/// use burn_dist::launch::World;
/// use burn_dist::{DeviceMesh, ProcessLocal};
///
/// // Two processes, which are threads here; each has two of the four ranks.
/// std::thread::scope(|scope| {
///     for world in World::simulated(2) {
///         scope.spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///             let mesh = DeviceMesh::builder().axis("fsdp", 2).axis("tp", 2).world(world).build()?;
///             let rows = mesh.local_rows(6); // rows 0..3 in the first process, 3..6 in the second
///             let values: Vec<f32> = rows.iter().flat_map(|row| [row as f32, 1.0]).collect();
///             let mine = TensorData::new(values, [rows.len(), 2]);
///             let x = Tensor::<2>::from_process_local(mine, 6, &mesh.device())?;
///             assert_eq!(x.dims(), [6, 2]);
///             assert_eq!(x.sum().into_scalar::<f32>(), 15.0 + 6.0);
///             Ok(())
///         });
///     }
/// });
/// ```
pub trait ProcessLocal: Sized {
    /// Makes a tensor with `rows` rows (dim 0), of which `data` has those of this process:
    /// [`DeviceMesh::local_rows`](crate::DeviceMesh::local_rows), in order. All processes call it, with the same
    /// `rows`, or none does: whether to must not follow from which rows a process holds, which may be all of them.
    ///
    /// # Shapes
    /// `data`: `[local rows, ..]`; the tensor: `[rows, ..]`.
    /// # Communication
    /// None. Where ranks of several processes hold the same rows (along `tp`, say), hashes of them are compared with
    /// the window: data that differs ends the mesh with an error that names both processes.
    /// # Errors
    /// [`DTensorError::NumDims`] if `data` does not have as many dims as the tensor, [`DTensorError::LocalRows`] if it
    /// does not have as many rows as the ranks of this process hold.
    /// # Source
    /// `jax.make_array_from_process_local_data`. Differs: the number of rows is an argument, so that nothing has to be
    /// exchanged.
    fn from_process_local(
        data: TensorData,
        rows: usize,
        device: &Device,
    ) -> Result<Self, DTensorError>;
}

/// Implements [`ProcessLocal`] for a kind of tensors: its element type on a device.
macro_rules! process_local {
    ($($kind:ident, $dtype:ident;)*) => {$(
        impl<const D: usize> ProcessLocal for Tensor<D, $kind> {
            fn from_process_local(
                data: TensorData,
                rows: usize,
                device: &Device,
            ) -> Result<Self, DTensorError> {
                let (num_dims, found) = (data.shape().num_dims(), data.shape().first().copied());
                if num_dims != D {
                    return Err(DTensorError::NumDims {
                        found: num_dims,
                        expected: D,
                    });
                }
                let (mesh, _) = mesh_of(device)?;
                let data = data.convert_dtype(device.settings().$dtype.into());
                let wrong = |rows: Rows| DTensorError::LocalRows {
                    found: found.unwrap_or(1),
                    expected: rows.len(),
                    rows,
                };
                let tensor = record::from_process_local(data, rows, &mesh).map_err(wrong)?;
                let tensor = from_mesh::<D, $kind>(BackendTensor::$kind(tensor), PLAIN);
                Ok(on_device(tensor, device))
            }
        }
    )*};
}

process_local! {
    Float, float_dtype;
    Int, int_dtype;
    Bool, bool_dtype;
}

const PLAIN: DispatchAutodiffContext = DispatchAutodiffContext::Disabled;

/// Runs `program` and returns what its plans do: every collective with its reason, and the memory of each rank.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_dist::DeviceMesh;
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let device = mesh.device();
/// let batch = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device);
/// let (sum, explanation) = burn_dist::explain(&device, || batch.exp().sum().into_scalar::<f32>());
/// assert!(sum > 80.0);
/// assert!(explanation.to_string().starts_with("mesh fsdp=2"));
/// # Ok::<(), burn_dist::mesh::MeshError>(())
/// ```
///
/// # Panics
/// If the device is none of a mesh.
pub fn explain<T>(device: &Device, program: impl FnOnce() -> T) -> (T, Explanation) {
    device.start_explaining(Ask::default());
    let result = program();
    (result, device.explained())
}

/// Explains as [`explain`] does, and shows in [`Explanation::after`] each window after one of the planner's
/// [passes](crate::explanation::PASSES): the window with what its values are, the program common to all ranks, or the tasks of
/// the first rank.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_dist::{DTensor, DeviceMesh};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let device = mesh.device();
/// let rows = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device).redistribute("[{fsdp}, -]")?;
/// let (_, explanation) =
///     burn_dist::explain_after(&device, "propagate", || rows.exp().sum().into_scalar::<f32>())?;
/// assert!(explanation.after[0].contains("s1 = exp(s0)  f32 [{fsdp}, -]"), "{}", explanation.after[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// As [`explain`].
/// # Errors
/// [`PlanError::UnknownPass`] if there is no pass of that name; `program` is not run.
pub fn explain_after<T>(
    device: &Device,
    pass: &str,
    program: impl FnOnce() -> T,
) -> Result<(T, Explanation), PlanError> {
    let (after, _) = PASSES[pass_index(pass)?];
    let ask = Ask {
        after: Some(after),
        ..Ask::default()
    };
    device.start_explaining(ask);
    let result = program();
    Ok((result, device.explained()))
}

/// Explains as [`explain`] does, and says in [`Explanation::why`] of each window that has a value why the operation that
/// makes it is split as it is: the splits that it was offered, with what each of them costs. A value is named as in what
/// [`explain_after`] returns: `%12` after the passes before `propagate`, `s34` after that.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_dist::{DTensor, DeviceMesh};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let device = mesh.device();
/// let rows = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device).redistribute("[{fsdp}, -]")?;
/// let (_, explanation) = burn_dist::explain_why(&device, "s1", || rows.exp().sum().into_scalar::<f32>())?;
/// assert!(explanation.why[0].contains("* [{fsdp}, -] -> [{fsdp}, -]"), "{}", explanation.why[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// As [`explain`].
/// # Errors
/// [`PlanError::NoValue`] if the text names no value; `program` is not run.
pub fn explain_why<T>(
    device: &Device,
    value: &str,
    program: impl FnOnce() -> T,
) -> Result<(T, Explanation), PlanError> {
    let ask = Ask {
        why: Some(value.parse()?),
        ..Ask::default()
    };
    device.start_explaining(ask);
    let result = program();
    Ok((result, device.explained()))
}

/// Runs `program` and returns how long the plan of each window takes on modelled hardware, and what ranks hold when.
///
/// On a mesh that is a [dry run](crate::DeviceMeshBuilder::dry_run) nothing is computed, so that the mesh may be of any
/// size; of more than 16 ranks, the first is simulated.
///
/// ```
/// use burn::tensor::{Distribution, Tensor};
/// use burn_dist::{DeviceMesh, clock::Hardware};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 8).dry_run().build()?;
/// let device = mesh.device();
/// let (_, windows) = burn_dist::simulate(&device, &Hardware::preset("h100")?, || {
///     let x = Tensor::<2>::ones([4096, 4096], &device);
///     x.clone().matmul(x).sum().into_scalar::<f32>()
/// })?;
/// assert!(windows[0].step_s() > 2.0 * 4096f64.powi(3) / 8.0 / 66.9e12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// As [`explain`].
/// # Errors
/// [`ClockError`]; `program` has run.
pub fn simulate<T>(
    device: &Device,
    hardware: &Hardware,
    program: impl FnOnce() -> T,
) -> Result<(T, Vec<Simulation>), ClockError> {
    let ask = Ask {
        hardware: Some(hardware.clone()),
        ..Ask::default()
    };
    device.start_explaining(ask);
    let result = program();
    let simulations = device.explained().simulations.into_iter();
    Ok((result, simulations.collect::<Result<_, _>>()?))
}

impl<const D: usize> DTensor for Tensor<D> {
    fn layout(&self) -> Result<Layout, DTensorError> {
        layout(self)
    }

    fn layout_text(&self) -> Result<String, DTensorError> {
        layout_text(self)
    }

    fn redistribute(self, target: &str) -> Result<Self, DTensorError> {
        let (_, mesh) = mesh_of(&self.device())?;
        let target = Layout::parse(target, &mesh, Some(&self.dims()))?;
        let tensor = on_mesh(self).map_err(|tensor| no_mesh(&tensor.device()))?;
        let moved = match (&tensor.tensor, tensor.context()) {
            (BackendTensor::Autodiff(tracked), DispatchAutodiffContext::Enabled(strategy)) => {
                let tracked = tracked.clone();
                BackendTensor::Autodiff(match strategy {
                    GradientCheckpointingStrategy::Disabled => {
                        redistribute::<NoCheckpointing>(tracked, &target)
                    }
                    GradientCheckpointingStrategy::Balanced => {
                        redistribute::<BalancedCheckpointing>(tracked, &target)
                    }
                })
            }
            (BackendTensor::Float(plain), _) => {
                BackendTensor::Float(record::redistribute(plain.clone(), &target))
            }
            // A quantized one is whole on every rank.
            (other, _) => other.clone(),
        };
        Ok(tensor.with(moved).into_tensor())
    }
}

impl<const D: usize> DTensor for Tensor<D, Int> {
    fn layout(&self) -> Result<Layout, DTensorError> {
        layout(self)
    }

    fn layout_text(&self) -> Result<String, DTensorError> {
        layout_text(self)
    }

    fn redistribute(self, target: &str) -> Result<Self, DTensorError> {
        let (_, mesh) = mesh_of(&self.device())?;
        let target = Layout::parse(target, &mesh, Some(&self.dims()))?;
        let tensor = on_mesh(self).map_err(|tensor| no_mesh(&tensor.device()))?;
        let moved = match &tensor.tensor {
            BackendTensor::Int(int) => {
                BackendTensor::Int(record::redistribute(int.clone(), &target))
            }
            other => other.clone(),
        };
        Ok(tensor.with(moved).into_tensor())
    }
}

fn layout<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> Result<Layout, DTensorError> {
    let tensor = on_mesh(tensor.clone()).map_err(|tensor| no_mesh(&tensor.device()))?;
    Ok(match &tensor.tensor {
        BackendTensor::Float(tensor)
        | BackendTensor::Int(tensor)
        | BackendTensor::Bool(tensor)
        | BackendTensor::Quantized(tensor) => record::layout_of(tensor)?,
        BackendTensor::Autodiff(tensor) => record::layout_of(tensor.primitive())?,
    })
}

fn layout_text<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> Result<String, DTensorError> {
    let (_, mesh) = mesh_of(&tensor.device())?;
    Ok(layout(tensor)?.display(&mesh).to_string())
}

impl<const D: usize> LocalParts for Tensor<D> {
    fn to_local(&self, rank: Rank) -> Result<TensorData, DTensorError> {
        let (_, mesh) = mesh_of(&self.device())?;
        if rank.0 as usize >= mesh.num_ranks() {
            return Err(DTensorError::NoSuchRank {
                rank: rank.0,
                mesh: mesh.to_string(),
                last: mesh.num_ranks() - 1,
            });
        }
        let tensor = self.clone().inner();
        let tensor = on_mesh(tensor).map_err(|tensor| no_mesh(&tensor.device()))?;
        let taken = taken(tensor.tensor);
        let layout = taken.place()?.layout;
        let block = taken.part(rank, &layout)()?;
        let shape = layout.local_shape(&mesh, rank);
        let bytes = Bytes::from_bytes_vec(block.as_slice().to_vec());
        Ok(TensorData::from_bytes(bytes, shape, self.dtype()))
    }

    fn from_local(
        parts: Vec<TensorData>,
        shape: &[usize],
        layout: &str,
        device: &Device,
    ) -> Result<Self, DTensorError> {
        let (on, mesh) = mesh_of(device)?;
        let layout = Layout::parse(layout, &mesh, Some(shape))?;
        let here = record::local_ranks(&on);
        if parts.len() != here.len() {
            return Err(DTensorError::NumParts {
                mesh: mesh.to_string(),
                ranks: here.len(),
                found: parts.len(),
            });
        }
        for (rank, part) in here.zip(&parts) {
            let expected = layout.local_shape(&mesh, Rank(rank));
            if part.shape().as_slice() != expected.as_slice() {
                return Err(DTensorError::LocalShape {
                    rank,
                    expected,
                    found: part.shape().to_vec(),
                    layout: layout.display(&mesh).to_string(),
                });
            }
        }
        let dtype = device.settings().float_dtype.into();
        let parts: Vec<TensorData> = parts
            .into_iter()
            .map(|part| part.convert_dtype(dtype))
            .collect();
        let tensor = from_parts(
            TensorParts {
                placement: Placement {
                    layout: Arc::new(layout),
                    stage: None,
                    role: Role::Unknown,
                },
                dtype: of_burn(dtype),
                part_of: (0..parts.len()).map(Some).collect(),
                parts,
            },
            &on,
        )?;
        let tensor = from_mesh::<D, Float>(BackendTensor::Float(tensor), PLAIN);
        Ok(on_device(tensor, device))
    }
}
