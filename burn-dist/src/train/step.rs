//! The figures of a step on a mesh: what its ranks did between two reports, in all processes together.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::metrics::{Figures, name};
use crate::record::MeshReport;
use crate::run::RankTimes;

const TERA: f64 = 1e12;

/// Figures of a step on the ranks of a mesh: those of one process, or of all once they are [merged](Self::merged).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepFigures {
    /// The ranks.
    pub num_ranks: usize,
    /// In operations, all ranks together.
    pub computing: Duration,
    /// In which data of collectives moved, all ranks together.
    pub communicating: Duration,
    /// In which communication kept ranks from computing, all of them together.
    pub exposed: Duration,
    /// Flops of the model's products, each counted once, without what is made again for the backward: by checkpointing,
    /// or by attention of its scores.
    pub model_flops: f64,
    /// The share of the work that ranks along an axis did more than once, from 0 to 1, by axis.
    pub redundancy: BTreeMap<String, f64>,
    /// Memory of the rank that has held most, since the mesh was made.
    pub fullest: ClassPeaks,
    /// The most host memory that offloaded tensors of a rank took, since the mesh was made.
    pub host_peak_bytes: u64,
}

/// The most that a rank has held.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassPeaks {
    /// At once.
    pub peak_bytes: u64,
    /// The peak of each class, not all at the same time, if the mesh
    /// [accounts](crate::DeviceMeshBuilder::account_memory) for memory.
    pub by_class: BTreeMap<String, u64>,
}

impl StepFigures {
    /// Returns what the ranks of this process did between two reports of their mesh.
    pub fn between(before: &MeshReport, after: &MeshReport) -> Self {
        let none = RankTimes::default();
        let mut step = Self {
            num_ranks: after.ranks.len(),
            model_flops: after.redundancy.model_flops - before.redundancy.model_flops,
            redundancy: redundancy(before, after),
            ..Self::default()
        };
        for (index, rank) in after.ranks.iter().enumerate() {
            let then = before.ranks.get(index).map_or(&none, |rank| &rank.times);
            let times = rank.times.since(then);
            step.computing += times.compute;
            step.communicating += times.comm;
            step.exposed += times.exposed;
            step.host_peak_bytes = step.host_peak_bytes.max(rank.host_peak_bytes);
            if index == 0 || rank.peak_bytes > step.fullest.peak_bytes {
                step.fullest = ClassPeaks {
                    peak_bytes: rank.peak_bytes,
                    by_class: rank.most_by_class(),
                };
            }
        }
        step
    }

    /// Returns what the ranks of all processes did, of what those of each did. Plans are the same in all.
    pub fn merged(processes: impl IntoIterator<Item = Self>) -> Self {
        let add = |mut all: Self, one: Self| {
            all.num_ranks += one.num_ranks;
            all.computing += one.computing;
            all.communicating += one.communicating;
            all.exposed += one.exposed;
            all.host_peak_bytes = all.host_peak_bytes.max(one.host_peak_bytes);
            if one.fullest.peak_bytes > all.fullest.peak_bytes {
                all.fullest = one.fullest;
            }
            all
        };
        processes.into_iter().reduce(add).unwrap_or_default()
    }

    /// Returns which share the model's flops are of what all ranks do in `time` at a peak of so many teraflops per
    /// second each, from 0 to 1 (model flops utilization).
    ///
    /// # Source
    /// Chowdhery et al., "PaLM" (arXiv:2204.02311), appendix B. Differs: flops are those of the program that was
    /// recorded, so a causal mask halves attention's.
    pub fn mfu(&self, time: Duration, tflops_per_rank: f64) -> f64 {
        self.model_flops / (time.as_secs_f64() * tflops_per_rank * TERA * self.num_ranks as f64)
    }

    /// Adds the times (the mean over ranks), memory (of the fullest rank) and redundancy to the figures of the step.
    pub fn add_to(&self, figures: &mut Figures) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3 / self.num_ranks.max(1) as f64;
        figures.push(name::COMPUTING_MS, ms(self.computing));
        figures.push(name::COMMUNICATING_MS, ms(self.communicating));
        figures.push(name::EXPOSED_MS, ms(self.exposed));
        for (axis, share) in &self.redundancy {
            figures.push(name::redundancy_percent(axis), 100.0 * share);
        }
        figures.push(name::PEAK_BYTES, self.fullest.peak_bytes as f64);
        for (class, bytes) in &self.fullest.by_class {
            figures.push(name::memory_bytes(class), *bytes as f64);
        }
        figures.push(name::HOST_PEAK_BYTES, self.host_peak_bytes as f64);
    }

    /// Adds how fast the model's flops are done in a step of `time`; as a share of the peak of each rank, if that is
    /// known.
    pub fn add_speed_to(
        &self,
        figures: &mut Figures,
        time: Duration,
        tflops_per_rank: Option<f64>,
    ) {
        let tflops = self.model_flops / time.as_secs_f64() / TERA;
        figures.push(name::MODEL_TFLOPS, tflops);
        if let Some(peak) = tflops_per_rank {
            figures.push(name::MFU_PERCENT, 100.0 * self.mfu(time, peak));
        }
    }
}

/// Shares of the work between two reports.
fn redundancy(before: &MeshReport, after: &MeshReport) -> BTreeMap<String, f64> {
    let (before, after) = (&before.redundancy, &after.redundancy);
    let flops = after.flops - before.flops;
    let share = |axis: &crate::plan::AxisRedundancy| {
        let then = before.axes.iter().find(|then| then.axis == axis.axis);
        let repeated = axis.flops - then.map_or(0.0, |then| then.flops);
        let share = if flops > 0.0 { repeated / flops } else { 0.0 };
        (axis.axis.clone(), share)
    };
    after.axes.iter().map(share).collect()
}
