//! One call of a backend function: which mesh its tensors are on, and the lock under which it is recorded.
//!
//! burn-router decides whether a use of a tensor is its last one by a reference count that it reads *before* it
//! registers the operation. Between the two, another thread must not register a use of the same tensor. So a call holds
//! the lock of its mesh's recorder from before its first tensor is consumed until its operation is recorded. Nothing
//! waits for a rank under the lock.

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions,
    InterpolateOptions, UnfoldOptions,
};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{DType, Distribution, FloatDType, IntDType, Scalar, Shape, TensorData};
use burn_router::RouterTensor;
use burn_std::BoolDType;

use crate::{Inner, MeshClient, Recorder, Recording};

/// A call of a backend function, as far as it is known: its name, and the mesh of its tensors so far.
pub struct Call<'a, E: Inner> {
    name: &'static str,
    client: Option<&'a MeshClient<E>>,
}

impl<'a, E: Inner> Call<'a, E> {
    /// Starts with a name and no tensors.
    #[inline]
    pub fn new(name: &'static str) -> Self {
        Self { name, client: None }
    }

    /// Adds an argument.
    ///
    /// # Panics
    /// If its tensors are on another mesh than those before: Burn's functions return tensors, so an error cannot be
    /// returned.
    #[inline]
    pub fn with(mut self, argument: &'a impl Argument<E>) -> Self {
        argument.clients(|client| match self.client {
            None => self.client = Some(client),
            Some(first) if first.is_same(client) => {}
            Some(first) => mixed(self.name, first, client),
        });
        self
    }

    /// Starts recording, if the call has tensors.
    #[inline]
    pub fn begin(self) -> Option<Recording<E>> {
        self.client.map(MeshClient::recording)
    }
}

#[cold]
#[inline(never)]
fn mixed<E: Inner>(function: &str, first: &MeshClient<E>, other: &MeshClient<E>) -> ! {
    let kinds = ["float_", "int_", "bool_", "q_"];
    let name = kinds.iter().find_map(|kind| function.strip_prefix(kind));
    let ended: String = [first, other]
        .iter()
        .filter_map(|client| {
            let reason = client.with(|recorder| recorder.stopped())?;
            Some(format!(
                "; {:?} has stopped: {reason}",
                client.mesh_device()
            ))
        })
        .collect();
    let (first, other) = (first.mesh_device(), other.mesh_device());
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
pub trait Argument<E: Inner> {
    /// Visits the mesh of each tensor that the function consumes.
    #[inline]
    fn clients<'a>(&'a self, _visit: impl FnMut(&'a MeshClient<E>)) {}
}

impl<E: Inner> Argument<E> for RouterTensor<MeshClient<E>> {
    #[inline]
    fn clients<'a>(&'a self, mut visit: impl FnMut(&'a MeshClient<E>)) {
        visit(&self.client);
    }
}

impl<E: Inner> Argument<E> for Option<RouterTensor<MeshClient<E>>> {
    #[inline]
    fn clients<'a>(&'a self, visit: impl FnMut(&'a MeshClient<E>)) {
        self.iter().map(|tensor| &tensor.client).for_each(visit);
    }
}

impl<E: Inner> Argument<E> for Vec<RouterTensor<MeshClient<E>>> {
    #[inline]
    fn clients<'a>(&'a self, visit: impl FnMut(&'a MeshClient<E>)) {
        self.iter().map(|tensor| &tensor.client).for_each(visit);
    }
}

/// Arguments without tensors. Their functions take no lock of their own: what they record uses nothing.
macro_rules! no_tensors {
    ($($type:ty),* $(,)?) => {$(
        impl<E: Inner> Argument<E> for $type {}
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
    UnfoldOptions,
    [usize; 2],
    [usize; 3],
    bool,
    f64,
    u16,
    u64,
    usize,
);

impl<E: Inner, const N: usize> Argument<E> for ConvOptions<N> {}
impl<E: Inner, const N: usize> Argument<E> for ConvTransposeOptions<N> {}

/// A reference is not consumed.
impl<E: Inner, T: ?Sized> Argument<E> for &T {}
