//! A module that says how it is split.

use super::{Annotate, ParallelError, ParallelizeWith, Plan};
use crate::mesh::MeshShape;
use burn_core::module::Module;
use burn_dist_front::parallel::Describe;

/// A module that says how it is split over a device mesh.
///
/// Derived, not written: see the derive of the same name.
pub trait Parallelize: Describe {
    /// Returns the plan the attributes describe; later entries override earlier ones, so it can be amended.
    fn plan(&self) -> Plan {
        Plan::described(self)
    }

    /// Places every float parameter as the attributes say, now and whenever it is loaded from a record.
    ///
    /// Lazy parameters stay lazy. A parameter no attribute names is whole over the tensor-parallel axes and rests over
    /// the FSDP axes.
    ///
    /// # Communication
    /// None by itself: layouts are recorded, and moves happen where values are used.
    /// # Errors
    /// Those of [`Plan::resolve`], and [`ParallelError::OtherMesh`] if the model lives on another mesh.
    fn parallelize<B: Annotate>(self, mesh: &impl AsRef<MeshShape>) -> Result<Self, ParallelError>
    where
        Self: Module<B>,
    {
        let plan = self.plan();
        self.parallelize_with(mesh, &plan)
    }
}

impl<T: Describe + ?Sized> Parallelize for T {}
