//! Burn's own data parallelism over several devices, where a program turns it on.
//!
//! Every backend has it from Burn 0.22 on. In 0.21 it is a feature of burn-backend (`distributed`) that any crate of a
//! program may turn on, and with it `Autodiff<Dist<E>>` trains only if `Dist<E>` implements `DistributedBackend`. No
//! crate can ask which features of another are on; but a path in a block is looked up in what the block imports before
//! it is looked up around the block. So what is implemented below for 0.21 is Burn's trait where Burn has it, and the
//! stand-in elsewhere.
//!
//! Left out on purpose: reductions over several devices. A device of `Dist` is a mesh, and reduces gradients over its
//! own ranks.

use burn_backend::DeviceId;
#[cfg(not(burn_021))]
use burn_backend::distributed::{CollectiveTensor, DistributedOps, ReduceOperation};
use burn_backend::tensor::FloatTensor;

use super::Dist;
use crate::{Inner, MeshDevice};

/// The parts of `burn_backend::distributed` that the implementation names.
#[cfg(burn_021)]
#[allow(
    clippy::module_inception,
    reason = "it stands in for a module of that name"
)]
mod distributed {
    use burn_backend::tensor::FloatTensor;
    use burn_backend::{Backend, DeviceId};

    pub(super) trait DistributedBackend: Backend {
        #[allow(dead_code, reason = "called by Burn where its feature is on")]
        fn all_reduce(
            tensor: FloatTensor<Self>,
            op: ReduceOperation,
            device_ids: Vec<DeviceId>,
        ) -> CollectiveTensor<Self>;
        #[allow(dead_code, reason = "called by Burn where its feature is on")]
        fn sync_collective(device: &Self::Device);
    }

    #[allow(dead_code, reason = "made by Burn where its feature is on")]
    pub(super) struct ReduceOperation;

    pub(super) struct CollectiveTensor<B: Backend>(#[allow(dead_code)] FloatTensor<B>);

    impl<B: Backend> CollectiveTensor<B> {
        #[allow(dead_code, reason = "Burn's own is made where its feature is on")]
        pub(super) fn new(tensor: FloatTensor<B>) -> Self {
            Self(tensor)
        }
    }
}

/// A reduction over several meshes was asked for.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot reduce over {devices} devices of `Dist`: each is a mesh of its own, and reduces gradients over its own \
     ranks; train with \
     `ExecutionStrategy::single` on the device of one mesh that has all of them"
)]
struct SeveralMeshes {
    devices: usize,
}

burn_dist_mesh::debug_by_message!(SeveralMeshes);

/// Returns what the reduction of `tensor` over the meshes of `device_ids` is: itself, where there is one, because sum and
/// mean of one term are the term.
fn reduced<E: Inner>(
    tensor: FloatTensor<Dist<E>>,
    device_ids: &[DeviceId],
) -> Result<FloatTensor<Dist<E>>, SeveralMeshes> {
    match device_ids.len() {
        0 | 1 => Ok(tensor),
        devices => Err(SeveralMeshes { devices }),
    }
}

/// # Panics
/// If there are several: Burn's functions return tensors, so an error cannot be returned.
fn reduced_or_panic<E: Inner>(
    tensor: FloatTensor<Dist<E>>,
    device_ids: &[DeviceId],
) -> FloatTensor<Dist<E>> {
    reduced::<E>(tensor, device_ids).unwrap_or_else(|error| panic!("{error}"))
}

#[cfg(not(burn_021))]
impl<E: Inner> DistributedOps<Self> for Dist<E> {
    fn all_reduce(
        tensor: FloatTensor<Self>,
        _op: ReduceOperation,
        device_ids: Vec<DeviceId>,
    ) -> CollectiveTensor<Self> {
        CollectiveTensor::new(reduced_or_panic::<E>(tensor, &device_ids))
    }

    fn sync_collective(_device: &MeshDevice) {}
}

#[cfg(burn_021)]
const _: () = {
    #[allow(unused_imports, reason = "unused where Burn's feature is off")]
    use burn_backend::*;

    impl<E: Inner> distributed::DistributedBackend for Dist<E> {
        fn all_reduce(
            tensor: FloatTensor<Self>,
            _op: distributed::ReduceOperation,
            device_ids: Vec<DeviceId>,
        ) -> distributed::CollectiveTensor<Self> {
            distributed::CollectiveTensor::new(reduced_or_panic::<E>(tensor, &device_ids))
        }

        fn sync_collective(_device: &MeshDevice) {}
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registered;
    use crate::tests::mesh;
    use burn_backend::Backend;
    use burn_backend::ops::FloatTensorOps;

    type B = Dist<Registered>;

    #[test]
    fn one_mesh_is_its_own_sum_and_several_are_refused() {
        let device = MeshDevice::from(mesh());
        let tensor = B::float_ones([2].into(), &device, burn_backend::DType::F32.into());
        let id = burn_std::device::Device::to_id(&device);
        let one = reduced::<Registered>(tensor.clone(), &[id]).unwrap();
        assert_eq!(one.into_ir().id, tensor.clone().into_ir().id);
        let error = reduced::<Registered>(tensor, &[id, id]).unwrap_err();
        assert!(error.to_string().contains("over 2 devices"), "{error}");
        B::sync(&device).unwrap();
    }
}
