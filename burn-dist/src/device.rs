//! A mesh as a device of Burn.

use std::any::Any;

use burn_core::tensor::Device;
use burn_dispatch::DispatchDevice;
#[allow(deprecated, reason = "without the patch it is that of burn-ndarray")]
use burn_dispatch::devices::NdArrayDevice;
use burn_dist_engine as engine;
use burn_dist_engine::MeshDevice;
use burn_dist_mesh::{MeshError, MeshShape, Topology};
use burn_dist_plan::layout::Rows;

/// Devices that Burn's dispatch knows under the name of burn-ndarray: the device of a mesh, where a program patches in
/// burn-dist's crate of that name.
#[diagnostic::on_unimplemented(
    message = "Burn does not know the devices of meshes yet: the patch of `burn-ndarray` is missing",
    label = "this needs the patch",
    note = "add these lines to the Cargo.toml of the workspace, with the path or the repository from which it has burn-dist:",
    note = "[patch.crates-io]",
    note = "burn-ndarray = {{ path = \"../burn-dist/carriers/burn-ndarray\" }}"
)]
pub trait BurnDevice: Clone {
    /// Makes it a device of tensors.
    fn into_device(self) -> Device;
}

#[allow(deprecated, reason = "without the patch it is that of burn-ndarray")]
impl BurnDevice for NdArrayDevice {
    fn into_device(self) -> Device {
        Device::new(self)
    }
}

/// A mesh of devices with named axes: what a program runs on.
///
/// The mesh ends when the last [`DeviceMesh`] and the last [`Device`] of it are dropped: its workers stop, and
/// tensors that were on it can no longer be read.
///
/// `D` is how Burn knows its device. Programs leave it away.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_dist::DeviceMesh;
///
/// let mesh = DeviceMesh::builder().axis("fsdp", 2).axis("tp", 2).build()?;
/// assert_eq!(mesh.shape().num_ranks(), 4);
/// assert_eq!(mesh.to_string(), "fsdp=2,tp=2");
/// let x = Tensor::<2>::ones([4, 3], &mesh.device());
/// assert_eq!(x.sum().into_scalar::<f32>(), 12.0);
/// # Ok::<(), burn_dist_mesh::MeshError>(())
/// ```
#[derive(Clone)]
pub struct DeviceMesh<D = MeshDevice> {
    mesh: engine::DeviceMesh,
    device: D,
}

/// Collects the axes and options of a [`DeviceMesh`].
pub type DeviceMeshBuilder = engine::DeviceMeshBuilder<DeviceMesh>;

impl DeviceMesh {
    /// Starts a mesh.
    pub fn builder() -> DeviceMeshBuilder {
        DeviceMeshBuilder::default()
    }

    /// Makes a mesh from its text form, such as `fsdp=2,tp=2`.
    ///
    /// # Errors
    /// [`MeshError`] if the text names an axis twice, one whose name says no role, a size of zero, or is not of that
    /// form.
    pub fn parse(text: &str) -> Result<Self, MeshError> {
        engine::DeviceMesh::parse(text).map(Self::from)
    }
}

impl DeviceMesh {
    /// Returns its device where Burn knows it, which is found out when the program runs: none without the patch of
    /// burn-ndarray. For what has to compile without the patch too.
    #[cfg(feature = "train")]
    pub(crate) fn known_device(&self) -> Option<Device> {
        #[allow(deprecated, reason = "without the patch it is that of burn-ndarray")]
        same::<MeshDevice, NdArrayDevice>(self.device.clone()).map(BurnDevice::into_device)
    }
}

impl<D> DeviceMesh<D> {
    /// Returns the Burn device that stands for the whole mesh.
    ///
    /// It does not compile in a program without the patch of burn-ndarray; the error says what to add.
    ///
    /// ```
    /// use burn_dist::DeviceMesh;
    /// let mesh = DeviceMesh::parse("dp=2")?;
    /// let device = mesh.device().autodiff().gradient_checkpointing();
    /// device.seed(7);
    /// device.sync().expect("nothing fails");
    /// assert_eq!(device, mesh.device());
    /// assert!(format!("{device:?}").contains("dp=2"));
    /// # Ok::<(), burn_dist_mesh::MeshError>(())
    /// ```
    pub fn device(&self) -> Device
    where
        D: BurnDevice,
    {
        self.device.clone().into_device()
    }

    /// Returns the axes.
    pub fn shape(&self) -> &MeshShape {
        self.mesh.shape()
    }

    /// Returns which ranks are on one node.
    pub fn topology(&self) -> &Topology {
        self.mesh.topology()
    }

    /// Returns a table of the ranks along each axis, and of the links that the axes use: inside a process, inside a
    /// node, or between nodes.
    ///
    /// ```
    /// use burn_dist::DeviceMesh;
    /// let mesh = DeviceMesh::builder().axis("fsdp", 4).ranks_per_node(2).dry_run().build()?;
    /// assert!(mesh.table().contains("2 nodes x 2  between nodes"));
    /// # Ok::<(), burn_dist_mesh::MeshError>(())
    /// ```
    pub fn table(&self) -> String {
        self.mesh.table()
    }

    /// Returns which rows of a batch of `rows` rows the ranks of this process hold. Without other processes, all of
    /// them.
    ///
    /// Rows are split over the data axes; a batch with fewer rows than the data axes have ranks is whole on every rank.
    /// A process may hold all rows where others do not: either all processes make a tensor from their rows, or none
    /// does.
    pub fn local_rows(&self, rows: usize) -> Rows {
        self.mesh.local_rows(rows)
    }
}

impl From<engine::DeviceMesh> for DeviceMesh {
    fn from(mesh: engine::DeviceMesh) -> Self {
        let device = mesh.device();
        Self { mesh, device }
    }
}

impl<D> AsRef<MeshShape> for DeviceMesh<D> {
    fn as_ref(&self) -> &MeshShape {
        self.shape()
    }
}

impl<D> std::fmt::Display for DeviceMesh<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.mesh.fmt(f)
    }
}

impl<D> std::fmt::Debug for DeviceMesh<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.mesh.fmt(f)
    }
}

/// Returns the mesh device that a device of Burn is, with or without gradients.
pub(crate) fn mesh_device(device: &Device) -> Option<&MeshDevice> {
    fn find(device: &DispatchDevice) -> Option<&MeshDevice> {
        match device {
            // Without the patch it is another crate's.
            DispatchDevice::NdArray(device) => (device as &dyn Any).downcast_ref(),
            DispatchDevice::Autodiff(device) => find(device),
            #[allow(unreachable_patterns, reason = "features of Burn add devices")]
            _ => None,
        }
    }
    find(device.as_dispatch())
}

/// Returns `value` as what it is, where only the patch makes both types one: a backend's tensor is asked of Burn under
/// the name of burn-ndarray, and is one of a mesh.
pub(crate) fn same<T: Any, U: Any>(value: T) -> Option<U> {
    let mut value = Some(value);
    (&mut value as &mut dyn Any)
        .downcast_mut::<Option<U>>()?
        .take()
}
