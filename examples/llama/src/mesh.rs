//! The only contact with the mesh: which backend trains, on which device, and what it reports.
//!
//! Everything else in this program is generic over Burn's `Backend` and would run on one device as it is.

use std::collections::BTreeMap;

use anyhow::Context;
use burn::backend::Autodiff;
use burn::backend::flex::Flex;
use burn_dist::mesh::MeshShape;
use burn_dist::{Checkpoint, DeviceMesh, Dist, MeshBackend, MeshDevice, Parallelize};

use crate::model::Llama;
use crate::report::{PlanStats, RankMemory, Traffic};

/// The backend everything runs on.
pub type TrainBackend = Autodiff<Dist<Flex>>;

/// What a training step would do on the mesh.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

/// The devices of this run.
#[derive(Debug)]
pub struct Mesh {
    mesh: DeviceMesh,
    device: MeshDevice,
}

impl Mesh {
    /// Opens the devices; without a shape, one.
    ///
    /// # Errors
    /// If this process can open no more meshes.
    pub fn open(shape: Option<&MeshShape>) -> anyhow::Result<Self> {
        Self::build(shape, Checkpoint::None, false)
    }

    /// Opens the devices, with what training makes again instead of keeping it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_train(
        shape: Option<&MeshShape>,
        checkpoint: Checkpoint,
    ) -> anyhow::Result<Self> {
        Self::build(shape, checkpoint, false)
    }

    /// Opens devices that plan and explain, but execute nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn dry(shape: Option<&MeshShape>, checkpoint: Checkpoint) -> anyhow::Result<Self> {
        Self::build(shape, checkpoint, true)
    }

    fn build(shape: Option<&MeshShape>, checkpoint: Checkpoint, dry: bool) -> anyhow::Result<Self> {
        let mut builder = DeviceMesh::builder().checkpoint(checkpoint);
        if let Some(shape) = shape {
            builder = builder.axes(shape);
        }
        if dry {
            builder = builder.dry_run();
        }
        let mesh = builder.build().context("cannot open the mesh")?;
        Ok(Self {
            device: mesh.device(),
            mesh,
        })
    }

    /// The device that tensors are made on.
    pub fn device(&self) -> &MeshDevice {
        &self.device
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.mesh.shape().num_ranks()
    }

    /// The mesh as text; "1" for one device.
    pub fn name(&self) -> String {
        match self.world_size() {
            1 => "1".to_string(),
            _ => self.mesh.to_string(),
        }
    }

    /// Lays the model's parameters out over the mesh.
    ///
    /// # Errors
    /// If the model cannot be laid out so.
    pub fn parallelize(&self, model: Llama<TrainBackend>) -> anyhow::Result<Llama<TrainBackend>> {
        model
            .parallelize(self.mesh.shape())
            .with_context(|| format!("the model does not fit the mesh {}", self.name()))
    }

    /// Bytes held by each rank.
    pub fn memory(&self) -> Vec<RankMemory> {
        TrainBackend::report(&self.device)
            .ranks
            .iter()
            .map(|rank| RankMemory {
                rank: rank.rank as usize,
                peak_bytes: rank.peak_bytes,
                at_rest_bytes: rank.at_rest_bytes,
            })
            .collect()
    }

    /// Collectives run so far, by kind: calls of one rank, bytes received by all.
    pub fn traffic(&self) -> BTreeMap<String, Traffic> {
        let mut traffic: BTreeMap<String, Traffic> = BTreeMap::new();
        for rank in TrainBackend::report(&self.device).ranks {
            for (kind, count, bytes) in rank.received {
                let total = traffic.entry(kind.to_string()).or_default();
                total.count = total.count.max(count);
                total.bytes += bytes;
            }
        }
        traffic
    }

    /// What the planner has done so far.
    pub fn plan(&self) -> PlanStats {
        let report = TrainBackend::report(&self.device);
        PlanStats {
            windows: report.cache.windows,
            hits: report.cache.hits,
            misses: report.cache.misses,
            plan_ms: report.plan_time.as_secs_f64() * 1e3,
        }
    }

    /// Runs `step` and returns what its plans do.
    pub fn explain<T>(&self, step: impl FnOnce() -> T) -> (T, Explanation) {
        let (result, explanation) = burn_dist::explain::<TrainBackend, T>(&self.device, step);
        let explanation = Explanation {
            text: explanation.to_string(),
            json: explanation.to_json(),
        };
        (result, explanation)
    }
}
