//! The nodes, devices and options of a mesh.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn_backend::backend::{DeviceId, DeviceOps};
use burn_dist_door::{Engine, Mesh, MeshDevice};

use super::missing::{FindMissing, Missing};
use crate::comm::{CommError, FlightOptions, World};
use crate::flight::default_folder;
use crate::mesh::{MeshError, MeshShape, Rank, Topology};
use crate::options::MeshOptions;
use crate::plan::Regions;

/// Ranks that one process runs: each is a thread with a pool of its own.
const RANKS_MAX: usize = 1024;

/// The nodes, devices and options of a mesh: all of it but its axes.
pub(crate) struct Details {
    pub(crate) topology: Topology,
    pub(crate) devices: Vec<DeviceId>,
    pub(crate) options: Arc<MeshOptions>,
    /// The backend of the ranks, for programs whose tensors name none; `None` of the default mesh.
    pub(super) ranks: Option<Engine>,
}

impl Details {
    pub(super) fn new(
        shape: &MeshShape,
        devices: Vec<DeviceId>,
        mut options: MeshOptions,
        ranks: Option<Engine>,
        missing: FindMissing,
    ) -> Result<Self, MeshError> {
        shape.check_one_pipeline()?;
        if !devices.is_empty() && devices.len() != shape.num_ranks() {
            return Err(MeshError::DeviceCount {
                mesh: shape.to_string(),
                ranks: shape.num_ranks(),
                devices: devices.len(),
            });
        }
        if options.regions.is_none() {
            options.regions = regions_of_environment()?;
        }
        if options.world.is_none() && !options.alone && !options.dry_run {
            options.world = crate::launch::world().map_err(|error| unshared(shape, &error))?;
        }
        let here = match options.world.as_ref().filter(|_| !options.dry_run) {
            None => 0..shape.num_ranks() as u32,
            Some(world) => {
                let ranks = world.ranks(shape.num_ranks());
                ranks.map_err(|error| unshared(shape, &error))?
            }
        };
        if here.len() > RANKS_MAX && !options.dry_run {
            return Err(MeshError::TooManyThreads {
                mesh: shape.to_string(),
                ranks: shape.num_ranks(),
                ranks_max: RANKS_MAX,
            });
        }
        let named = devices.get(here.start as usize..here.end as usize);
        let absent = (!options.dry_run).then(|| missing(named.unwrap_or_default()));
        if let Some(Missing { device, reason }) = absent.flatten() {
            return Err(MeshError::NoDevice {
                mesh: shape.to_string(),
                device,
                reason,
            });
        }
        let peers = options.world.as_ref().filter(|_| !options.dry_run);
        let hosts = peers.into_iter().flat_map(World::peers);
        let hosts: Vec<&str> = hosts.map(|peer| peer.host.as_str()).collect();
        let topology = options.nodes.topology(shape.num_ranks(), &hosts)?;
        if let Some(advice) = topology.advice(shape) {
            tracing::warn!("{advice}");
        }
        Ok(Self {
            topology,
            devices,
            options: Arc::new(options),
            ranks,
        })
    }

    /// Returns the details of the default mesh, which the environment names.
    fn of_default(shape: &MeshShape) -> Result<Self, MeshError> {
        let mut options = MeshOptions {
            alone: shape.num_ranks() == 1,
            ..MeshOptions::default()
        };
        if let Ok(text) = std::env::var("BURN_DIST_FUZZ_LAYOUTS") {
            let seed = text.trim().parse();
            options.fuzz_layouts = Some(seed.map_err(|_| MeshError::FuzzSeed { text })?);
        }
        Self::new(shape, Vec::new(), options, None, |_| None)
    }

    /// Returns where flight records of `mesh` go, if they are written.
    pub(crate) fn flight(&self, mesh: &Mesh) -> Option<FlightOptions> {
        let options = &self.options;
        let is_launched = || {
            options
                .world
                .as_ref()
                .is_some_and(|world| !world.is_simulated())
        };
        let folder = options.flight_records.clone();
        let folder = folder.or_else(|| default_folder(is_launched()))?;
        Some(FlightOptions {
            folder,
            mesh: mesh.shape().to_string(),
            mesh_number: mesh.id().into(),
        })
    }

    /// Returns the note that a fault has stopped `mesh` for good. Of several processes, each would have to make another
    /// default mesh.
    pub(crate) fn over(&self, mesh: &Mesh) -> Arc<AtomicBool> {
        match self.options.world {
            None => mesh.over().clone(),
            Some(_) => Arc::default(),
        }
    }

    /// Returns the ranks of `mesh` that this process runs.
    fn local_ranks(&self, mesh: &MeshShape) -> Range<u32> {
        let all = mesh.num_ranks();
        let shared = self.options.world.as_ref();
        let shared = shared.filter(|_| !self.options.dry_run);
        let ranks = shared.and_then(|world| world.ranks(all).ok());
        ranks.unwrap_or(0..all as u32)
    }
}

/// Returns how elementwise work is to run by the environment, if that says so.
fn regions_of_environment() -> Result<Option<Regions>, MeshError> {
    let Ok(text) = std::env::var("BURN_DIST_REGIONS") else {
        return Ok(None);
    };
    let regions = text.trim().parse();
    regions.map(Some).map_err(|_| MeshError::Regions { text })
}

/// Returns the nodes, devices and options of a mesh.
///
/// # Panics
/// If it is the default one and cannot be made: a default is used where no error can be returned.
pub(crate) fn details(mesh: &Mesh) -> &Details {
    mesh.details(|| {
        let details = Details::of_default(mesh.shape());
        details.unwrap_or_else(|error| panic!("the default mesh cannot be made: {error}"))
    })
}

/// Returns the ranks of a device's mesh that this process runs.
pub fn local_ranks(device: &MeshDevice) -> Range<u32> {
    match device.mesh() {
        Some(mesh) => details(mesh).local_ranks(mesh.shape()),
        None => 0..0,
    }
}

/// Returns the device of the inner backend on which a rank of a device's mesh runs.
pub(crate) fn device_of<D: DeviceOps>(device: &MeshDevice, rank: Rank) -> D {
    let named = device.mesh().map_or(&[][..], |mesh| &details(mesh).devices);
    match named.get(rank.0 as usize) {
        Some(&id) => D::from_id(id),
        None => D::default(),
    }
}

fn unshared(shape: &MeshShape, error: &CommError) -> MeshError {
    MeshError::Processes {
        mesh: shape.to_string(),
        reason: error.to_string(),
        exit_code: error.exit_code(),
    }
}
