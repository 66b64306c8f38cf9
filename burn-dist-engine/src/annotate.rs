//! The seam to the backend: pinning a tensor's layout.

use burn_backend::Backend;
use burn_backend::tensor::FloatTensor;
use burn_dist_plan::ParamSpec;

use crate::mesh::MeshShape;

/// A backend that can pin the layout of a tensor.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not run on a device mesh",
    label = "`parallelize` needs `Dist<B>` or `Autodiff<Dist<B>>`",
    note = "wrap the backend: `type B = Autodiff<Dist<Flex>>;`"
)]
pub trait Annotate: Backend {
    /// Returns a tensor of the same global value whose layout is the one `spec` says.
    ///
    /// Law: reading the result gives what reading `tensor` gives. `tensor` is never tracked by autodiff here; its
    /// caller restores that.
    fn annotate(tensor: FloatTensor<Self>, spec: &ParamSpec) -> FloatTensor<Self>;

    /// Returns the shape of the mesh a device stands for, or `None` if this backend's devices do not know.
    ///
    /// With `None`, the mesh passed to `parallelize` is believed.
    fn mesh_shape(device: &Self::Device) -> Option<MeshShape>;
}
