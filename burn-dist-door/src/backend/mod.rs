//! `Dist`: the backend that records.
//!
//! Nearly every operation is recorded as burn-router records it: the files here list those signatures once and forward
//! them to `BackendRouter<MeshChannel>`, whose tensors are ours. A method that burn-router leaves to its default
//! body is left to it here too, so that it becomes the same operations. What burn-router cannot record, or records as
//! something else than the inner backend computes, is written out:
//!
//! | file | written out | because in burn-router | of |
//! | --- | --- | --- | --- |
//! | `quantized` | everything | all of it panics | 0.21, 0.22 |
//! | `module` | `rfft`, `irfft` | panics | 0.21; from 0.22 on they are no functions of a backend |
//! | `module` | `ctc_loss` and its gradient | is hundreds of operations | 0.21, 0.22 |
//! | `activation_021` | what works element by element | is Burn's default composition, where the inner backend may differ (the gradient of `gelu`) | 0.21 |
//! | `float` | `is_nan`, `is_inf` | is a composition | 0.21, 0.22 |
//! | `float` | `grid_sample_2d`, `max_abs` | is a composition | 0.21 |
//! | `float`, `int`, `bool` | reshapes | take a size of 0 for that of the input | 0.21 |
//! | `float`, `int`, `bool` | reads | convert to the default type; and a thread may take a tensor in place of its data | 0.21; both |
//! | `int` | `arange` | is data of the host, as a batch is | 0.21, 0.22 |
//!
//! burn-router 0.22 leaves to the traits' bodies, and so does this: transposes, which are swaps of dims; powers by small
//! exponents; `mask_select` and `argwhere`, which read; the statistics of `batch_norm_train` and its gradient; `fold4d`;
//! gradients of transposed convolutions by their input, which are convolutions; arithmetic of quantized tensors.
//!
//! Left to compositions on purpose in 0.21: `softmax` and `layer_norm`, because their parts can be split along the dim
//! that the whole cannot. From 0.22 on burn-router records them as one, and an engine has a rule for that.

#[cfg_attr(burn_021, path = "activation_021.rs")]
mod activation;
mod bool;
mod distributed;
mod float;
mod int;
mod module;
mod quantized;

use std::marker::PhantomData;

use burn_backend::backend::ops::{TransactionOps, TransactionPrimitive, TransactionPrimitiveData};
use burn_backend::{
    Backend, BackendTypes, DType, DTypeUsageSet, ExecutionError, Shape, TensorData,
};
use burn_ir::{BaseOperationIr, OperationIr, OperationOutput, ShapeOpIr, TensorIr};
use burn_router::{BackendRouter, RouterTensor};

use crate::burn::{RouterChannel, client_of, refused};
#[cfg(not(burn_021))]
use crate::exchange::resident_tensor;
use crate::{Inner, MeshChannel, MeshClient, MeshDevice, RouterClient, exchange};

/// A backend whose tensors live on a device mesh: records the program, partitions it, and runs each rank's part on the backend
/// that `E` stands for.
///
/// Nests inside `Autodiff`: `Autodiff<Dist<Flex>>`. `Autodiff` records gradients as ordinary operations, which `Dist`
/// then partitions with the rest; the other order would differentiate each rank's part on its own. Fusion would go
/// inside, so that what a rank runs between two collectives is fused; but over burn-fusion 0.21 some programs on
/// several ranks give wrong values, and the backends that this crate's features name go without it.
///
/// Quantized tensors are whole on every rank; what is computed from them is split again.
pub struct Dist<E>(PhantomData<fn() -> E>);

/// The router, which records most operations.
type Router<E> = BackendRouter<MeshChannel<E>>;

/// The tensor of every kind.
pub type MeshTensor<E> = RouterTensor<MeshClient<E>>;

/// Starts recording a call with these arguments: until the result is dropped, no other thread records on the mesh.
macro_rules! recording {
    ($name:expr $(, $arg:ident)*) => {
        Call::<E>::new($name)$(.with(&$arg))*.begin()
    };
}
use recording;

/// Records functions of a backend as the function of that name of [`Router`] does.
macro_rules! delegate {
    ($( fn $name:ident ( $( $arg:ident : $type:ty ),* $(,)? ) -> $out:ty; )*) => {$(
        #[inline]
        fn $name($( $arg: $type ),*) -> $out {
            let _recording = recording!(stringify!($name) $(, $arg)*);
            Router::<E>::$name($( $arg ),*)
        }
    )*};
}
use delegate;

/// Records functions as [`delegate`] does, whose result is several tensors: the fields of a struct of Burn's, in the
/// order in which it is made of them.
macro_rules! delegate_parts {
    ($( fn $name:ident ( $( $arg:ident : $type:ty ),* $(,)? ) -> $out:ty { $( $field:ident ),* }; )*) => {$(
        fn $name($( $arg: $type ),*) -> $out {
            let _recording = recording!(stringify!($name) $(, $arg)*);
            let parts = Router::<E>::$name($( $arg ),*);
            <$out>::new($( parts.$field ),*)
        }
    )*};
}
use delegate_parts;

/// Forwards functions that record nothing, or wait, to the function of that name of [`Router`].
macro_rules! forward {
    ($( fn $name:ident ( $( $arg:ident : $type:ty ),* $(,)? ) -> $out:ty; )*) => {$(
        #[inline]
        fn $name($( $arg: $type ),*) -> $out {
            Router::<E>::$name($( $arg ),*)
        }
    )*};
}
use forward;

impl<E> Clone for Dist<E> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<E> Default for Dist<E> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E> std::fmt::Debug for Dist<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dist")
    }
}

impl<E: Inner> BackendTypes for Dist<E> {
    type Device = MeshDevice;
    type FloatTensorPrimitive = MeshTensor<E>;
    type IntTensorPrimitive = MeshTensor<E>;
    type BoolTensorPrimitive = MeshTensor<E>;
    type QuantizedTensorPrimitive = MeshTensor<E>;

    #[cfg(burn_021)]
    type FloatElem = E::FloatElem;
    #[cfg(burn_021)]
    type IntElem = E::IntElem;
    #[cfg(burn_021)]
    type BoolElem = E::BoolElem;

    /// Burn's recordings of a device's launches; those of a mesh are plans.
    #[cfg(not(burn_021))]
    type GraphPrimitive = burn_backend::GraphUnsupported;
}

impl<E: Inner> Backend for Dist<E> {
    fn name(device: &MeshDevice) -> String {
        MeshChannel::<E>::name(device)
    }

    forward! {
        fn seed(device: &MeshDevice, seed: u64) -> ();
        fn sync(device: &MeshDevice) -> Result<(), ExecutionError>;
        fn dtype_usage(device: &MeshDevice, dtype: DType) -> DTypeUsageSet;
        fn device_count(type_id: u16) -> usize;
    }

    /// Does nothing: a window is handed to the ranks when it is read, or as long as a step.
    #[cfg(not(burn_021))]
    fn flush(_: &MeshDevice) -> Result<(), ExecutionError> {
        Ok(())
    }
}

impl<E: Inner> TransactionOps<Self> for Dist<E> {
    /// Reads all tensors in one window.
    async fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> Result<TransactionPrimitiveData, ExecutionError> {
        let TransactionPrimitive {
            read_floats,
            read_qfloats,
            read_ints,
            read_bools,
            ..
        } = transaction;
        let kinds = [read_floats, read_qfloats, read_ints, read_bools];
        let counts = kinds.each_ref().map(Vec::len);
        let mut tickets = MeshClient::read_all(kinds.into_iter().flatten().collect()).into_iter();
        let mut next = |count| {
            let tickets = tickets.by_ref().take(count);
            let data = tickets.map(|ticket| ticket().map_err(refused));
            data.collect::<Result<Vec<_>, _>>()
        };
        Ok(TransactionPrimitiveData {
            read_floats: next(counts[0])?,
            read_qfloats: next(counts[1])?,
            read_ints: next(counts[2])?,
            read_bools: next(counts[3])?,
        })
    }
}

/// Records an operation with one result on the mesh of `tensor`; `describe` takes the tensor and makes the operation.
#[inline]
fn record_on<E: Inner>(
    tensor: MeshTensor<E>,
    describe: impl FnOnce(TensorIr, &MeshClient<E>) -> OperationIr,
) -> MeshTensor<E> {
    let client = tensor.client.clone();
    let _recording = client.recording();
    let op = describe(tensor.into_ir(), &client);
    client.register(op).output()
}

/// Records a reshape to exactly this shape: burn-ir 0.21 takes a size of 0 for that of the input.
fn reshape<E: Inner>(
    tensor: MeshTensor<E>,
    shape: Shape,
    family: impl FnOnce(BaseOperationIr) -> OperationIr,
) -> MeshTensor<E> {
    record_on(tensor, |input, client| {
        let out = TensorIr::uninit(client.create_empty_handle(), shape, input.dtype);
        family(BaseOperationIr::Reshape(ShapeOpIr { input, out }))
    })
}

/// Makes a tensor of data, or takes the one that the data stands for.
fn from_data<E: Inner>(data: TensorData, device: &MeshDevice) -> MeshTensor<E> {
    let there = exchange::replaced(&data).or_else(|| resident_tensor(&data, device));
    there.unwrap_or_else(|| client_of::<E>(device).register_tensor_data(data))
}

/// Returns nothing: Burn 0.21 makes what it loads on the mesh, and gives it no data of the host that is there already.
#[cfg(burn_021)]
fn resident_tensor<T>(_data: &TensorData, _device: &MeshDevice) -> Option<T> {
    None
}

/// Reads a tensor in the dtype in which the ranks hold it.
async fn read<E: Inner>(tensor: MeshTensor<E>) -> Result<TensorData, ExecutionError> {
    if let Some(token) = exchange::take(|| Box::new(tensor.clone())) {
        return Ok(token);
    }
    let ticket = MeshClient::read(tensor);
    ticket().map_err(refused)
}
