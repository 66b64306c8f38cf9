//! Layouts of tensors, for people: asking, moving, and the parts of single ranks.

use std::convert::identity;
use std::ops::Range;

use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, TensorData, TensorMetadata, get_device_settings};
use burn_core::tensor::{Bool, Float, Int, Tensor, TensorPrimitive};
use burn_dist_door::DataParts;
use burn_ir::{BackendIr, TensorHandle};

use crate::layout::{Layout, LayoutError, Rows};
use crate::mesh::{MeshShape, Rank};
use crate::plan::clock::{ClockError, Hardware, Simulation};
use crate::plan::explain::{Ask, Explanation};
use crate::plan::{PASSES, PlanError, pass_index};
use crate::record::{Dist, Hold, MeshDevice, MeshReport, Parts, Ranks};
use crate::run::{Fault, Trace};

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

/// A backend whose float and int tensors have layouts: [`Dist<B>`] and `Autodiff` over it.
pub trait MeshBackend: Backend + Parts {
    /// The backend that a rank's part lives on.
    type Local: Backend;

    /// Returns what a mesh did since it was made.
    ///
    /// # Communication
    /// Closes the window and waits for the local ranks.
    fn report(device: &Self::Device) -> MeshReport;
    /// Returns what the ranks did when, so far; `None` unless the mesh was built with
    /// [`DeviceMeshBuilder::trace`](crate::DeviceMeshBuilder::trace), or if it has ended.
    ///
    /// # Communication
    /// Closes the window and waits for the local ranks.
    fn trace(device: &Self::Device) -> Option<Trace>;
    /// Returns the fault that has stopped the mesh, if one has: the error of failed reads, as data. A program that ends
    /// with it returns its [`exit_code`](Fault::exit_code) to the scheduler.
    ///
    /// ```
    /// use burn_dist::{DeviceMesh, Dist, MeshBackend};
    /// use burn_flex::Flex;
    ///
    /// let mesh = DeviceMesh::parse("fsdp=2")?;
    /// assert!(Dist::<Flex>::fault(&mesh.device()).is_none());
    /// # Ok::<(), burn_dist::mesh::MeshError>(())
    /// ```
    fn fault(device: &Self::Device) -> Option<Fault>;
    /// Starts collecting what the plans of the following windows do, and what is asked beside that.
    fn start_explaining(device: &Self::Device, ask: Ask);
    /// Returns what was collected since [`Self::start_explaining`], closing the window.
    fn explained(device: &Self::Device) -> Explanation;
    /// Keeps the window of the mesh open until the result is dropped, so that what is recorded meanwhile is planned
    /// together: the forward and backward passes of all microbatches of a step, which a pipeline overlaps.
    ///
    /// [`pipeline::forward_backward`](super::pipeline::forward_backward) does it for a step; a loop of one's own takes
    /// a hold around its microbatches:
    ///
    /// ```
    /// use burn::backend::{Autodiff, Flex};
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::{GradientsAccumulator, GradientsParams, Optimizer, SgdConfig};
    /// use burn::tensor::Tensor;
    /// use burn_dist::{DeviceMesh, Dist, MeshBackend};
    ///
    /// type B = Autodiff<Dist<Flex>>;
    ///
    /// let mesh = DeviceMesh::parse("dp=2")?;
    /// let device = mesh.device();
    /// let mut model: Linear<B> = LinearConfig::new(2, 1).init(&device);
    /// let mut optimizer = SgdConfig::new().init();
    /// let microbatches = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]];
    ///
    /// let hold = B::hold(&device);
    /// let mut accumulator = GradientsAccumulator::new();
    /// for rows in microbatches {
    ///     let loss = model.forward(Tensor::<B, 2>::from_data(rows, &device)).mean() / 2.0;
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
    fn hold(device: &Self::Device) -> Hold;
    /// Returns the mesh of a device.
    fn mesh_of(device: &Self::Device) -> Option<MeshShape>;
    /// Returns the ranks that this process runs.
    fn local_ranks(device: &Self::Device) -> Range<u32>;
    /// Returns the layout of a float tensor on the ranks.
    fn float_layout(tensor: &FloatTensor<Self>) -> Result<Layout, Fault>;
    /// Returns the layout of an int tensor on the ranks.
    fn int_layout(tensor: &IntTensor<Self>) -> Result<Layout, Fault>;
    /// Records a move of a float tensor to `target`.
    fn float_redistribute(tensor: FloatTensor<Self>, target: &Layout) -> FloatTensor<Self>;
    /// Records a move of an int tensor to `target`.
    fn int_redistribute(tensor: IntTensor<Self>, target: &Layout) -> IntTensor<Self>;
    /// Returns a rank's part of a float tensor.
    fn float_local(
        tensor: &FloatTensor<Self>,
        rank: Rank,
    ) -> Result<FloatTensor<Self::Local>, Fault>;
    /// Makes a float tensor of the parts of all ranks.
    fn float_from_local(
        parts: Vec<FloatTensor<Self::Local>>,
        layout: &Layout,
        device: &Self::Device,
    ) -> Result<FloatTensor<Self>, Fault>;
    /// Makes a float tensor with `rows` rows of those that the ranks here hold, or says which those are.
    fn float_from_process_local(
        data: TensorData,
        rows: usize,
        device: &Self::Device,
    ) -> Result<FloatTensor<Self>, Rows>;
    /// Makes an int tensor with `rows` rows of those that the ranks here hold, or says which those are.
    fn int_from_process_local(
        data: TensorData,
        rows: usize,
        device: &Self::Device,
    ) -> Result<IntTensor<Self>, Rows>;
    /// Makes a bool tensor with `rows` rows of those that the ranks here hold, or says which those are.
    fn bool_from_process_local(
        data: TensorData,
        rows: usize,
        device: &Self::Device,
    ) -> Result<BoolTensor<Self>, Rows>;
}

impl<B: BackendIr> MeshBackend for Dist<B> {
    type Local = B;

    fn report(device: &MeshDevice) -> MeshReport {
        crate::record::report::<Ranks<B>>(device)
    }

    fn trace(device: &MeshDevice) -> Option<Trace> {
        crate::record::trace::<Ranks<B>>(device)
    }

    fn fault(device: &MeshDevice) -> Option<Fault> {
        crate::record::fault::<Ranks<B>>(device)
    }

    fn start_explaining(device: &MeshDevice, ask: Ask) {
        crate::record::start_explaining::<Ranks<B>>(device, ask);
    }

    fn explained(device: &MeshDevice) -> Explanation {
        crate::record::explained::<Ranks<B>>(device)
    }

    #[track_caller]
    fn hold(device: &MeshDevice) -> Hold {
        crate::record::hold::<Ranks<B>>(device)
    }

    fn mesh_of(device: &MeshDevice) -> Option<MeshShape> {
        device.shape().cloned()
    }

    fn local_ranks(device: &MeshDevice) -> Range<u32> {
        crate::record::local_ranks(device)
    }

    fn float_layout(tensor: &FloatTensor<Self>) -> Result<Layout, Fault> {
        crate::record::layout_of(tensor)
    }

    fn int_layout(tensor: &IntTensor<Self>) -> Result<Layout, Fault> {
        crate::record::layout_of(tensor)
    }

    fn float_redistribute(tensor: FloatTensor<Self>, target: &Layout) -> FloatTensor<Self> {
        crate::record::redistribute(tensor, target)
    }

    fn int_redistribute(tensor: IntTensor<Self>, target: &Layout) -> IntTensor<Self> {
        crate::record::redistribute(tensor, target)
    }

    fn float_local(tensor: &FloatTensor<Self>, rank: Rank) -> Result<FloatTensor<B>, Fault> {
        let (handle, shape) = crate::record::local_of::<_, B>(tensor, rank)?;
        Ok(B::float_tensor(TensorHandle {
            handle,
            shape: shape.into(),
        }))
    }

    fn float_from_local(
        parts: Vec<FloatTensor<B>>,
        layout: &Layout,
        device: &MeshDevice,
    ) -> Result<FloatTensor<Self>, Fault> {
        let dtype = parts[0].dtype();
        let handles = parts.into_iter().map(B::float_tensor_handle).collect();
        crate::record::from_local::<_, B>(handles, layout, dtype, device)
    }

    fn float_from_process_local(
        data: TensorData,
        rows: usize,
        device: &MeshDevice,
    ) -> Result<FloatTensor<Self>, Rows> {
        crate::record::from_process_local(data, rows, device)
    }

    fn int_from_process_local(
        data: TensorData,
        rows: usize,
        device: &MeshDevice,
    ) -> Result<IntTensor<Self>, Rows> {
        crate::record::from_process_local(data, rows, device)
    }

    fn bool_from_process_local(
        data: TensorData,
        rows: usize,
        device: &MeshDevice,
    ) -> Result<BoolTensor<Self>, Rows> {
        crate::record::from_process_local(data, rows, device)
    }
}

impl<B: MeshBackend, C: CheckpointStrategy> MeshBackend for Autodiff<B, C> {
    type Local = B::Local;

    fn report(device: &Self::Device) -> MeshReport {
        B::report(device)
    }

    fn trace(device: &Self::Device) -> Option<Trace> {
        B::trace(device)
    }

    fn fault(device: &Self::Device) -> Option<Fault> {
        B::fault(device)
    }

    fn start_explaining(device: &Self::Device, ask: Ask) {
        B::start_explaining(device, ask);
    }

    fn explained(device: &Self::Device) -> Explanation {
        B::explained(device)
    }

    #[track_caller]
    fn hold(device: &Self::Device) -> Hold {
        B::hold(device)
    }

    fn mesh_of(device: &Self::Device) -> Option<MeshShape> {
        B::mesh_of(device)
    }

    fn local_ranks(device: &Self::Device) -> Range<u32> {
        B::local_ranks(device)
    }

    fn float_layout(tensor: &FloatTensor<Self>) -> Result<Layout, Fault> {
        B::float_layout(&tensor.primitive)
    }

    fn int_layout(tensor: &IntTensor<Self>) -> Result<Layout, Fault> {
        B::int_layout(tensor)
    }

    fn float_redistribute(tensor: FloatTensor<Self>, target: &Layout) -> FloatTensor<Self> {
        /// The gradient of a move has the same global value; where it lies is the planner's business.
        #[derive(Debug)]
        struct Redistribute;

        impl<B: Backend> Backward<B, 1> for Redistribute {
            type State = ();

            fn backward(
                self,
                ops: Ops<(), 1>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                unary::<B, _>(ops.parents, ops.node, grads, |grad| grad);
            }
        }

        match Redistribute
            .prepare::<C>([tensor.node.clone()])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => {
                prep.finish((), B::float_redistribute(tensor.primitive, target))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::float_redistribute(tensor.primitive, target))
            }
        }
    }

    fn int_redistribute(tensor: IntTensor<Self>, target: &Layout) -> IntTensor<Self> {
        B::int_redistribute(tensor, target)
    }

    fn float_local(tensor: &FloatTensor<Self>, rank: Rank) -> Result<FloatTensor<B::Local>, Fault> {
        B::float_local(&tensor.primitive, rank)
    }

    fn float_from_local(
        parts: Vec<FloatTensor<B::Local>>,
        layout: &Layout,
        device: &Self::Device,
    ) -> Result<FloatTensor<Self>, Fault> {
        let inner = B::float_from_local(parts, layout, device)?;
        Ok(<FloatTensor<Self>>::new(inner))
    }

    fn float_from_process_local(
        data: TensorData,
        rows: usize,
        device: &Self::Device,
    ) -> Result<FloatTensor<Self>, Rows> {
        let inner = B::float_from_process_local(data, rows, device)?;
        Ok(<FloatTensor<Self>>::new(inner))
    }

    fn int_from_process_local(
        data: TensorData,
        rows: usize,
        device: &Self::Device,
    ) -> Result<IntTensor<Self>, Rows> {
        B::int_from_process_local(data, rows, device)
    }

    fn bool_from_process_local(
        data: TensorData,
        rows: usize,
        device: &Self::Device,
    ) -> Result<BoolTensor<Self>, Rows> {
        B::bool_from_process_local(data, rows, device)
    }
}

/// A tensor on a mesh: its layout, moves to other layouts, and the parts that ranks hold. Values never change by them.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::Tensor;
/// use burn_dist::mesh::Rank;
/// use burn_dist::{DTensor, DeviceMesh, Dist, LocalParts};
///
/// let mesh = DeviceMesh::builder().axis("tp", 2).build()?;
/// let x = Tensor::<Autodiff<Dist<Flex>>, 2>::ones([3, 4], &mesh.device());
/// let x = x.redistribute("[-, {tp}]")?;
/// assert_eq!(x.layout_text()?, "[-, {tp}]");
/// assert_eq!(x.to_local(Rank(1))?.dims(), [3, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait DTensor: Sized {
    /// Returns the layout of the tensor on the ranks.
    ///
    /// # Communication
    /// Closes the window; a partial value is resolved, since it outlives it.
    /// # Errors
    /// [`DTensorError::Fault`] if the mesh has stopped.
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

/// The parts of single ranks of a float tensor.
pub trait LocalParts: Sized {
    /// A rank's part.
    type Part;
    /// The mesh device.
    type Device;

    /// Returns a rank's part: a cheap view on the inner backend.
    ///
    /// # Errors
    /// [`DTensorError::NoSuchRank`], [`DTensorError::Fault`].
    fn to_local(&self, rank: Rank) -> Result<Self::Part, DTensorError>;

    /// Makes a tensor of `shape` from the parts of all ranks that this process runs, in rank order, laid out as
    /// `layout` (text form) says.
    ///
    /// # Errors
    /// [`DTensorError`] if there is not one part per rank here, or a part does not have the shape that the layout gives
    /// it.
    fn from_local(
        parts: Vec<Self::Part>,
        shape: &[usize],
        layout: &str,
        device: &Self::Device,
    ) -> Result<Self, DTensorError>;
}

/// A tensor of which every process gives its own rows: a batch that no process reads as a whole.
///
/// Rows are split over the data axes as those of a whole batch are ([`InputPolicy::Batch`](crate::InputPolicy)), so
/// results are bitwise the same.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Tensor, TensorData};
/// use burn_dist::launch::World;
/// use burn_dist::{DeviceMesh, Dist, ProcessLocal};
///
/// // Two processes, which are threads here; each has two of the four ranks.
/// std::thread::scope(|scope| {
///     for world in World::simulated(2) {
///         scope.spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///             let mesh = DeviceMesh::builder().axis("fsdp", 2).axis("tp", 2).world(world).build()?;
///             let rows = mesh.local_rows(6); // rows 0..3 in the first process, 3..6 in the second
///             let values: Vec<f32> = rows.iter().flat_map(|row| [row as f32, 1.0]).collect();
///             let mine = TensorData::new(values, [rows.len(), 2]);
///             let x = Tensor::<Dist<Flex>, 2>::from_process_local(mine, 6, &mesh.device())?;
///             assert_eq!(x.dims(), [6, 2]);
///             assert_eq!(x.sum().into_scalar(), 15.0 + 6.0);
///             Ok(())
///         });
///     }
/// });
/// ```
pub trait ProcessLocal: Sized {
    /// The mesh device.
    type Device;

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
        device: &Self::Device,
    ) -> Result<Self, DTensorError>;
}

/// Implements [`ProcessLocal`] for a kind of tensors: its element type on a device, what makes a primitive of rows, and
/// what wraps it.
macro_rules! process_local {
    ($($kind:ident, $dtype:ident, $make:ident, $wrap:path;)*) => {$(
        impl<B: MeshBackend, const D: usize> ProcessLocal for Tensor<B, D, $kind> {
            type Device = B::Device;

            fn from_process_local(
                data: TensorData,
                rows: usize,
                device: &B::Device,
            ) -> Result<Self, DTensorError> {
                let (num_dims, found) = (data.shape().len(), data.shape().first().copied());
                if num_dims != D {
                    return Err(DTensorError::NumDims {
                        found: num_dims,
                        expected: D,
                    });
                }
                let data = data.convert_dtype(get_device_settings::<B>(device).$dtype.into());
                let wrong = |rows: Rows| DTensorError::LocalRows {
                    found: found.unwrap_or(1),
                    expected: rows.len(),
                    rows,
                };
                let tensor = B::$make(data, rows, device).map_err(wrong)?;
                Ok(Tensor::from_primitive($wrap(tensor)))
            }
        }
    )*};
}

process_local! {
    Float, float_dtype, float_from_process_local, TensorPrimitive::Float;
    Int, int_dtype, int_from_process_local, identity;
    Bool, bool_dtype, bool_from_process_local, identity;
}

/// Runs `program` and returns what its plans do: every collective with its reason, and the memory of each rank.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::Tensor;
/// use burn_dist::{DeviceMesh, Dist};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let device = mesh.device();
/// let batch = Tensor::<Dist<Flex>, 2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device);
/// let (sum, explanation) = burn_dist::explain::<Dist<Flex>, _>(&device, || batch.exp().sum().into_scalar());
/// assert!(sum > 80.0);
/// assert!(explanation.to_string().starts_with("mesh fsdp=2"));
/// # Ok::<(), burn_dist::mesh::MeshError>(())
/// ```
pub fn explain<B: MeshBackend, T>(
    device: &B::Device,
    program: impl FnOnce() -> T,
) -> (T, Explanation) {
    B::start_explaining(device, Ask::default());
    let result = program();
    (result, B::explained(device))
}

/// Explains as [`explain`] does, and shows in [`Explanation::after`] each window after one of the planner's
/// [passes](crate::explanation::PASSES): the window with what its values are, the program common to all ranks, or the tasks of
/// the first rank.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::Tensor;
/// use burn_dist::{DTensor, DeviceMesh, Dist};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let device = mesh.device();
/// let rows = Tensor::<Dist<Flex>, 2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device).redistribute("[{fsdp}, -]")?;
/// let (_, explanation) =
///     burn_dist::explain_after::<Dist<Flex>, _>(&device, "propagate", || rows.exp().sum().into_scalar())?;
/// assert!(explanation.after[0].contains("s1 = exp(s0)  f32 [{fsdp}, -]"), "{}", explanation.after[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PlanError::UnknownPass`] if there is no pass of that name; `program` is not run.
pub fn explain_after<B: MeshBackend, T>(
    device: &B::Device,
    pass: &str,
    program: impl FnOnce() -> T,
) -> Result<(T, Explanation), PlanError> {
    let (after, _) = PASSES[pass_index(pass)?];
    let ask = Ask {
        after: Some(after),
        ..Ask::default()
    };
    B::start_explaining(device, ask);
    let result = program();
    Ok((result, B::explained(device)))
}

/// Explains as [`explain`] does, and says in [`Explanation::why`] of each window that has a value why the operation that
/// makes it is split as it is: the splits that it was offered, with what each of them costs. A value is named as in what
/// [`explain_after`] returns: `%12` after the passes before `propagate`, `s34` after that.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::Tensor;
/// use burn_dist::{DTensor, DeviceMesh, Dist};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).build()?;
/// let device = mesh.device();
/// let rows = Tensor::<Dist<Flex>, 2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device).redistribute("[{fsdp}, -]")?;
/// let (_, explanation) = burn_dist::explain_why::<Dist<Flex>, _>(&device, "s1", || rows.exp().sum().into_scalar())?;
/// assert!(explanation.why[0].contains("* [{fsdp}, -] -> [{fsdp}, -]"), "{}", explanation.why[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PlanError::NoValue`] if the text names no value; `program` is not run.
pub fn explain_why<B: MeshBackend, T>(
    device: &B::Device,
    value: &str,
    program: impl FnOnce() -> T,
) -> Result<(T, Explanation), PlanError> {
    let ask = Ask {
        why: Some(value.parse()?),
        ..Ask::default()
    };
    B::start_explaining(device, ask);
    let result = program();
    Ok((result, B::explained(device)))
}

/// Runs `program` and returns how long the plan of each window takes on modelled hardware, and what ranks hold when.
///
/// On a mesh that is a [dry run](crate::DeviceMeshBuilder::dry_run) nothing is computed, so that the mesh may be of any
/// size; of more than 16 ranks, the first is simulated.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_dist::{DeviceMesh, Dist, clock::Hardware};
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 8).dry_run().build()?;
/// let device = mesh.device();
/// let (_, windows) = burn_dist::simulate::<Dist<Flex>, _>(&device, &Hardware::preset("h100")?, || {
///     let x = Tensor::<Dist<Flex>, 2>::ones([4096, 4096], &device);
///     x.clone().matmul(x).sum().into_scalar()
/// })?;
/// assert!(windows[0].step_s() > 2.0 * 4096f64.powi(3) / 8.0 / 66.9e12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ClockError`]; `program` has run.
pub fn simulate<B: MeshBackend, T>(
    device: &B::Device,
    hardware: &Hardware,
    program: impl FnOnce() -> T,
) -> Result<(T, Vec<Simulation>), ClockError> {
    let ask = Ask {
        hardware: Some(hardware.clone()),
        ..Ask::default()
    };
    B::start_explaining(device, ask);
    let result = program();
    let simulations = B::explained(device).simulations.into_iter();
    Ok((result, simulations.collect::<Result<_, _>>()?))
}

pub(crate) fn mesh_of<B: MeshBackend>(device: &B::Device) -> Result<MeshShape, Fault> {
    B::mesh_of(device).ok_or_else(|| Fault::Ended {
        mesh: format!("{device:?}"),
    })
}

/// Implements [`DTensor`] for a kind of tensors: two functions of the backend, and the conversions to and from the
/// primitive that they take.
macro_rules! dtensor {
    ($($kind:ident, $layout:ident, $redistribute:ident, $unwrap:path, $wrap:path;)*) => {$(
        impl<B: MeshBackend, const D: usize> DTensor for Tensor<B, D, $kind> {
            fn layout(&self) -> Result<Layout, DTensorError> {
                Ok(B::$layout(&$unwrap(self.clone().into_primitive()))?)
            }

            fn layout_text(&self) -> Result<String, DTensorError> {
                let mesh = mesh_of::<B>(&self.device())?;
                Ok(self.layout()?.display(&mesh).to_string())
            }

            fn redistribute(self, target: &str) -> Result<Self, DTensorError> {
                let mesh = mesh_of::<B>(&self.device())?;
                let target = Layout::parse(target, &mesh, Some(&self.dims()))?;
                let tensor = B::$redistribute($unwrap(self.into_primitive()), &target);
                Ok(Tensor::from_primitive($wrap(tensor)))
            }
        }
    )*};
}

dtensor! {
    Float, float_layout, float_redistribute, TensorPrimitive::tensor, TensorPrimitive::Float;
    Int, int_layout, int_redistribute, identity, identity;
}

impl<B: MeshBackend, const D: usize> LocalParts for Tensor<B, D> {
    type Part = Tensor<B::Local, D>;
    type Device = B::Device;

    fn to_local(&self, rank: Rank) -> Result<Self::Part, DTensorError> {
        let mesh = mesh_of::<B>(&self.device())?;
        if rank.0 as usize >= mesh.num_ranks() {
            return Err(DTensorError::NoSuchRank {
                rank: rank.0,
                mesh: mesh.to_string(),
                last: mesh.num_ranks() - 1,
            });
        }
        let local = B::float_local(&self.clone().into_primitive().tensor(), rank)?;
        Ok(Tensor::from_primitive(TensorPrimitive::Float(local)))
    }

    fn from_local(
        parts: Vec<Self::Part>,
        shape: &[usize],
        layout: &str,
        device: &Self::Device,
    ) -> Result<Self, DTensorError> {
        let mesh = mesh_of::<B>(device)?;
        let layout = Layout::parse(layout, &mesh, Some(shape))?;
        let here = B::local_ranks(device);
        if parts.len() != here.len() {
            return Err(DTensorError::NumParts {
                mesh: mesh.to_string(),
                ranks: here.len(),
                found: parts.len(),
            });
        }
        for (rank, part) in here.zip(&parts) {
            let expected = layout.local_shape(&mesh, Rank(rank));
            if part.dims().as_slice() != expected.as_slice() {
                return Err(DTensorError::LocalShape {
                    rank,
                    expected,
                    found: part.dims().to_vec(),
                    layout: layout.display(&mesh).to_string(),
                });
            }
        }
        let parts = parts
            .into_iter()
            .map(|part| part.into_primitive().tensor())
            .collect();
        let tensor = B::float_from_local(parts, &layout, device)?;
        Ok(Tensor::from_primitive(TensorPrimitive::Float(tensor)))
    }
}
