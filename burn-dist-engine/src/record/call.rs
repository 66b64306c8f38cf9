//! One call of a backend function: which mesh its tensors are on, and the lock under which it is recorded.
//!
//! burn-router decides whether a use of a tensor is its last one by a reference count that it reads *before* it
//! registers the operation. Between the two, another thread must not register a use of the same tensor. So a call holds
//! the lock of its mesh's recorder from before its first tensor is consumed until its operation is recorded. Nothing
//! waits for a rank under the lock.

use std::cell::RefCell;

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions,
    InterpolateOptions,
};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{DType, Distribution, FloatDType, IntDType, Scalar, Shape, TensorData};
use burn_ir::BackendIr;
use burn_router::{RouterTensor, RunnerClient};
use burn_std::BoolDType;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::{MeshClient, Recorder};

/// A recorder behind the lock of its mesh. The thread that holds the lock may take it again: a call holds it around the
/// recording of its operation, and of what is dropped on the way.
pub(super) type Locked<B> = ReentrantMutex<RefCell<Recorder<B>>>;

/// Holds the lock of a mesh while a call is recorded. Its end is where a program waits that records faster than the
/// ranks run.
pub(super) struct Recording<B: BackendIr> {
    guard: Option<ReentrantMutexGuard<'static, RefCell<Recorder<B>>>>,
    client: MeshClient<B>,
}

impl<B: BackendIr> Recording<B> {
    #[inline]
    pub(super) fn new(client: MeshClient<B>, recorder: &'static Locked<B>) -> Self {
        let guard = Some(recorder.lock());
        Self { guard, client }
    }
}

impl<B: BackendIr> Drop for Recording<B> {
    #[inline]
    fn drop(&mut self) {
        drop(self.guard.take());
        self.client.wait_for_room();
    }
}

/// A call of a backend function, as far as it is known: its name, and the mesh of its tensors so far.
pub(super) struct Call<'a, B: BackendIr> {
    name: &'static str,
    client: Option<&'a MeshClient<B>>,
}

impl<'a, B: BackendIr> Call<'a, B> {
    #[inline]
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, client: None }
    }

    /// Adds an argument.
    ///
    /// # Panics
    /// If its tensors are on another mesh than those before: Burn's functions return tensors, so an error has no other
    /// way out.
    #[inline]
    pub(super) fn with(mut self, argument: &'a impl Argument<B>) -> Self {
        argument.clients(|client| match self.client {
            None => self.client = Some(client),
            Some(first) if first.is_same(client) => {}
            Some(first) => mixed(self.name, first, client),
        });
        self
    }

    /// Starts recording, if the call has tensors.
    #[inline]
    pub(super) fn begin(self) -> Option<Recording<B>> {
        self.client.map(MeshClient::recording)
    }
}

#[cold]
#[inline(never)]
fn mixed<B: BackendIr>(function: &str, first: &MeshClient<B>, other: &MeshClient<B>) -> ! {
    let kinds = ["float_", "int_", "bool_", "q_"];
    let name = kinds.iter().find_map(|kind| function.strip_prefix(kind));
    let ended: String = [first, other]
        .iter()
        .filter_map(|client| {
            let fault = client.with(|recorder| recorder.fault())?;
            Some(format!("; {:?} has stopped: {fault}", client.device()))
        })
        .collect();
    let (first, other) = (first.device(), other.device());
    let way_out = match first.is_default() || other.is_default() {
        true => {
            "Burn's data loaders make batches on the default device unless they are told another, \
             `DataLoaderBuilder::set_device(mesh.device())`. Make all tensors on one device"
        }
        false => "make all of them on one device (`mesh.device()`)",
    };
    panic!(
        "`{}` was given tensors of two meshes, {first:?} and {other:?}: {way_out}, or move one with \
         `to_device`{ended}",
        name.unwrap_or(function),
    );
}

/// An argument of a backend function: tensors on meshes, or neither.
pub(super) trait Argument<B: BackendIr> {
    /// Visits the mesh of each tensor that the function consumes.
    #[inline]
    fn clients<'a>(&'a self, _visit: impl FnMut(&'a MeshClient<B>)) {}
}

impl<B: BackendIr> Argument<B> for RouterTensor<MeshClient<B>> {
    #[inline]
    fn clients<'a>(&'a self, mut visit: impl FnMut(&'a MeshClient<B>)) {
        visit(&self.client);
    }
}

impl<B: BackendIr> Argument<B> for Option<RouterTensor<MeshClient<B>>> {
    #[inline]
    fn clients<'a>(&'a self, visit: impl FnMut(&'a MeshClient<B>)) {
        self.iter().map(|tensor| &tensor.client).for_each(visit);
    }
}

impl<B: BackendIr> Argument<B> for Vec<RouterTensor<MeshClient<B>>> {
    #[inline]
    fn clients<'a>(&'a self, visit: impl FnMut(&'a MeshClient<B>)) {
        self.iter().map(|tensor| &tensor.client).for_each(visit);
    }
}

/// Arguments without tensors. Their functions take no lock of their own: what they record uses nothing.
macro_rules! no_tensors {
    ($($type:ty),* $(,)?) => {$(
        impl<B: BackendIr> Argument<B> for $type {}
    )*};
}

no_tensors!(
    AttentionModuleOptions,
    BoolDType,
    DType,
    DeformConvOptions<2>,
    Distribution,
    FloatDType,
    IndexingUpdateOp,
    IntDType,
    InterpolateOptions,
    Scalar,
    Shape,
    TensorData,
    [usize; 2],
    bool,
    u16,
    u64,
    usize,
);

impl<B: BackendIr, const N: usize> Argument<B> for ConvOptions<N> {}
impl<B: BackendIr, const N: usize> Argument<B> for ConvTransposeOptions<N> {}

/// What a function only looks at is not consumed.
impl<B: BackendIr, T: ?Sized> Argument<B> for &T {}
