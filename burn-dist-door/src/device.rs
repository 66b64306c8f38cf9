//! A device mesh as a Burn device.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use burn_backend::backend::DeviceId;
use burn_dist_mesh::{MeshError, MeshShape};
use burn_std::device::Device;

/// Burn's type id of mesh devices.
const MESH_TYPE_ID: u16 = 0xD157;

type Closer = Box<dyn Fn() + Send + Sync>;

/// A mesh that a program has made. It ends when it is dropped.
pub struct Mesh {
    id: u16,
    shape: MeshShape,
    /// Set if it was made for [`MeshDevice::default`].
    is_default: bool,
    over: Arc<AtomicBool>,
    /// Everything that only the engine knows of it.
    details: OnceLock<Box<dyn Any + Send + Sync>>,
    closers: Mutex<Vec<Closer>>,
    /// The client of its recorder, once that is known.
    client: OnceLock<&'static (dyn Any + Send + Sync)>,
}

/// Every mesh of the process that is still alive, by id: Burn makes devices from ids ([`Device::from_id`]).
static MESHES: Mutex<Option<HashMap<u16, Weak<Mesh>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mesh {
    /// Makes a mesh. `details` is what the engine knows of it.
    ///
    /// # Errors
    /// [`MeshError::TooManyMeshes`].
    pub fn new(shape: MeshShape, details: impl Any + Send + Sync) -> Result<Arc<Self>, MeshError> {
        let details: Box<dyn Any + Send + Sync> = Box::new(details);
        Self::register(shape, false, details.into())
    }

    fn register(
        shape: MeshShape,
        is_default: bool,
        details: OnceLock<Box<dyn Any + Send + Sync>>,
    ) -> Result<Arc<Self>, MeshError> {
        // Ids are never used twice: burn-router keeps one client per id for the life of the process.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let mut meshes = lock(&MESHES);
        let meshes = meshes.get_or_insert_default();
        let id = NEXT
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1))
            .map_err(|_| MeshError::TooManyMeshes)?;
        let mesh = Arc::new(Self {
            id,
            shape,
            is_default,
            over: Arc::default(),
            details,
            closers: Mutex::default(),
            client: OnceLock::new(),
        });
        meshes.retain(|_, mesh| mesh.strong_count() > 0);
        meshes.insert(id, Arc::downgrade(&mesh));
        Ok(mesh)
    }

    /// Returns its number in this process.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Returns the axes.
    pub fn shape(&self) -> &MeshShape {
        &self.shape
    }

    /// Returns whether it was made for [`MeshDevice::default`].
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Returns a note that the engine makes when a fault has stopped the mesh, and another one may be the default from
    /// then on.
    pub fn over(&self) -> &Arc<AtomicBool> {
        &self.over
    }

    /// Returns what the engine knows of the mesh; of the default one, it is asked for that at its first use.
    ///
    /// # Panics
    /// If it is of another type: one program has one engine.
    pub fn details<T: Any + Send + Sync>(&self, of_default: impl FnOnce() -> T) -> &T {
        let details = self.details.get_or_init(|| Box::new(of_default()));
        let details = (**details).downcast_ref();
        details.expect("a program has one engine, and all meshes are its")
    }

    /// Returns the client of its recorder, which `find` finds at the first call.
    pub(crate) fn client<T: Any + Send + Sync>(
        &self,
        find: impl FnOnce() -> &'static T,
    ) -> &'static (dyn Any + Send + Sync) {
        *self.client.get_or_init(|| find())
    }

    /// Registers what ends with the mesh.
    pub fn on_close(&self, closer: impl Fn() + Send + Sync + 'static) {
        lock(&self.closers).push(Box::new(closer));
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let closers = std::mem::take(&mut *lock(&self.closers));
        for closer in closers {
            closer();
        }
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mesh {} ({})", self.id, self.shape)
    }
}

/// The Burn device of [`Dist`](crate::Dist): a whole mesh.
///
/// The default device is a mesh of one rank, or what the environment variable `BURN_DIST_MESH` (`fsdp=2,tp=2`) says;
/// `BURN_DIST_FUZZ_LAYOUTS=SEED` turns fuzz layouts on for it. Once a fault has stopped it, the default device is a new
/// mesh; tensors of the old one keep answering with the fault. In a program of several processes it stays stopped.
///
/// It keeps its mesh going, so it is cloned, not copied as the devices of other backends are.
#[derive(Clone)]
pub struct MeshDevice {
    id: u16,
    /// `None` once the mesh has ended.
    mesh: Option<Arc<Mesh>>,
}

impl MeshDevice {
    /// The device of no mesh: nothing runs on it.
    pub const NO_MESH: Self = Self {
        id: u16::MAX,
        mesh: None,
    };

    /// Returns the device of the mesh with that number, whether it has ended or not.
    pub fn find(id: u16) -> Self {
        let meshes = lock(&MESHES);
        let mesh = meshes.as_ref().and_then(|meshes| meshes.get(&id));
        Self::new(id, mesh.and_then(Weak::upgrade))
    }

    /// Returns the device of the mesh with that number; `None` if it has ended.
    pub(crate) fn new(id: u16, mesh: Option<Arc<Mesh>>) -> Self {
        Self { id, mesh }
    }

    /// Returns the mesh, or `None` if it has ended.
    pub fn mesh(&self) -> Option<&Arc<Mesh>> {
        self.mesh.as_ref()
    }

    /// Returns the axes of the mesh, or `None` if it has ended.
    pub fn shape(&self) -> Option<&MeshShape> {
        self.mesh.as_deref().map(Mesh::shape)
    }

    /// Returns whether it is the default device, or was until a fault stopped it. Makes no default device.
    pub(crate) fn is_default(&self) -> bool {
        self.mesh.as_deref().is_some_and(Mesh::is_default)
    }
}

impl From<Arc<Mesh>> for MeshDevice {
    fn from(mesh: Arc<Mesh>) -> Self {
        Self {
            id: mesh.id,
            mesh: Some(mesh),
        }
    }
}

impl std::fmt::Debug for MeshDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.mesh {
            // Burn names the devices of tensors that do not go together, and nothing else.
            Some(mesh) if mesh.is_default => write!(f, "{mesh:?}, the default device"),
            Some(mesh) => mesh.fmt(f),
            None if *self == Self::NO_MESH => f.write_str("no mesh"),
            None => write!(f, "mesh {} (ended)", self.id),
        }
    }
}

impl PartialEq for MeshDevice {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for MeshDevice {}

impl Default for MeshDevice {
    fn default() -> Self {
        static DEFAULT: Mutex<Option<Arc<Mesh>>> = Mutex::new(None);
        let mut current = lock(&DEFAULT);
        let over = current.take_if(|mesh| mesh.over.load(Ordering::Relaxed));
        let mesh = current
            .get_or_insert_with(|| match default_mesh() {
                Ok(mesh) => mesh,
                Err(error) => panic!("the default mesh cannot be made: {error}"),
            })
            .clone();
        drop(current);
        // Its workers end, which other threads need not wait for.
        drop(over);
        mesh.into()
    }
}

/// Makes the mesh that the environment names.
fn default_mesh() -> Result<Arc<Mesh>, MeshError> {
    let text = std::env::var("BURN_DIST_MESH").unwrap_or_default();
    Mesh::register(MeshShape::parse(&text)?, true, OnceLock::new())
}

impl Device for MeshDevice {
    fn from_id(id: DeviceId) -> Self {
        Self::find(id.index_id)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(MESH_TYPE_ID, self.id)
    }
}
