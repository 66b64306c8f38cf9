//! The parts of the report that a run leaves behind, as JSON, and numbers for people.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::report::RankTimes;
use crate::train::files::write_whole;

/// Memory of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// The rank.
    pub rank: usize,
    /// The most it would hold at once, as the plans predicted.
    pub predicted_peak_bytes: u64,
    /// The most it held at once: buffers, each counted once.
    pub peak_bytes: u64,
    /// The use of these, by class.
    pub peak_bytes_by_class: BTreeMap<String, u64>,
    /// The most that it held of each class, not all at once.
    pub most_bytes_by_class: BTreeMap<String, u64>,
    /// The most host memory that offloaded tensors took.
    pub host_peak_bytes: u64,
    /// Bytes of parameters and optimizer state that it holds between steps.
    pub at_rest_bytes: u64,
}

/// How time was spent, step by step, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// In operations.
    pub compute_ms: Vec<f64>,
    /// In which data moved between ranks: modelled, with `--link`.
    pub comm_ms: Vec<f64>,
    /// In which communication kept a rank from computing.
    pub exposed_comm_ms: Vec<f64>,
}

impl StepTimes {
    /// Adds a step.
    pub fn push(&mut self, step: &RankTimes) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        self.compute_ms.push(ms(step.compute));
        self.comm_ms.push(ms(step.comm));
        self.exposed_comm_ms.push(ms(step.exposed));
    }

    /// The mean over ranks of each step.
    pub fn mean(ranks: &[Self]) -> Self {
        let of = |times: fn(&Self) -> &Vec<f64>| {
            let num_steps = ranks.iter().map(|rank| times(rank).len()).min();
            (0..num_steps.unwrap_or(0))
                .map(|step| {
                    let sum: f64 = ranks.iter().map(|rank| times(rank)[step]).sum();
                    sum / ranks.len() as f64
                })
                .collect()
        };
        Self {
            compute_ms: of(|times| &times.compute_ms),
            comm_ms: of(|times| &times.comm_ms),
            exposed_comm_ms: of(|times| &times.exposed_comm_ms),
        }
    }
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// The memory that it held.
    #[serde(flatten)]
    pub memory: RankMemory,
    /// How it spent the steps.
    #[serde(flatten)]
    pub times: StepTimes,
}

/// Collectives of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// How many.
    pub count: u64,
    /// Bytes that all ranks received.
    pub bytes: u64,
}

impl Traffic {
    /// Adds what the ranks of another process did: collectives that both took part in, and bytes of their own.
    pub fn add(&mut self, other: &Self) {
        self.count = self.count.max(other.count);
        self.bytes += other.bytes;
    }
}

/// The planner's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PlanStats {
    /// Windows of ops that were run.
    pub windows: u64,
    /// Windows whose plan was known.
    pub hits: u64,
    /// Windows that had to be planned.
    pub misses: u64,
    /// Time spent planning.
    pub plan_ms: f64,
}

/// A loss on what is held out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ValidationLoss {
    /// Steps done before it.
    pub step: usize,
    /// The mean over all positions that are learnt.
    pub loss: f32,
}

/// A mesh on which a run did steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeshSince {
    /// The first of them, of all phases and counted from 1.
    pub first_step: usize,
    /// The mesh as text.
    pub mesh: String,
}

/// Where the weights of a run came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Weights {
    /// The folder.
    pub from: String,
    /// True if they were compared with checksums: never, since folders as Hugging Face lays them out have none.
    pub verified: bool,
}

/// The record of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// `pretrain`, `finetune`.
    pub command: &'static str,
    /// Number of ranks.
    pub world_size: usize,
    /// The mesh as text.
    pub mesh: String,
    /// All meshes of a run that went on, in order.
    pub meshes: Vec<MeshSince>,
    /// The size's name, or the model's folder.
    pub size: String,
    /// The seed.
    pub seed: u64,
    /// Where the first weights came from, if they were not made here.
    pub weights: Option<Weights>,
    /// Number of parameters.
    pub num_params: usize,
    /// Positions of all rows of a step, padding included.
    pub tokens_per_step: usize,
    /// Flops of a step, of all ranks: of the model's products, each once; if a step was planned before the run.
    pub step_flops: Option<f64>,
    /// True if Ctrl-C or SIGTERM ended the run early.
    pub interrupted: bool,
    /// Losses of the base model's steps, where `finetune` trained one.
    pub pretrain_losses: Vec<f32>,
    /// Loss of each step.
    pub losses: Vec<f32>,
    /// Losses on what is held out, each after so many steps.
    pub validation_losses: Vec<ValidationLoss>,
    /// Tokens of a step over the median step time after warm-up.
    pub tokens_per_second: Option<f64>,
    /// Median step time after warm-up.
    pub step_ms_median: Option<f64>,
    /// How the steps were spent, the mean over ranks.
    #[serde(flatten)]
    pub times: StepTimes,
    /// Memory and times per rank; empty where the backend does not count.
    pub ranks: Vec<RankReport>,
    /// Collectives of the last step, by kind.
    pub collectives: BTreeMap<String, Traffic>,
    /// The planner's work over the whole run.
    pub plan: PlanStats,
    /// Share of the work of the whole run that ranks along an axis do more than once, from 0 to 1, by axis.
    pub redundancy: BTreeMap<String, f64>,
    /// Figures that a command knows besides, by name.
    #[serde(flatten)]
    pub more: BTreeMap<&'static str, serde_json::Value>,
}

/// Writes JSON, indented, with a line end.
///
/// # Errors
/// If the file cannot be written; the message names it.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("the report has no JSON form")?;
    write_whole(path, |to| writeln!(to, "{text}"))
        .with_context(|| format!("cannot write the report {}", path.display()))
}

/// The median; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// A byte count for people: `34.1 MiB`.
pub fn bytes_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{bytes} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// A count for people: `128,256`.
pub fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn times_are_per_step_and_their_mean_is_over_ranks() {
        let rank = |ms: u64| {
            let mut times = StepTimes::default();
            for step in 1..=2 {
                times.push(&RankTimes {
                    compute: Duration::from_millis(ms * step),
                    comm: Duration::from_micros(ms),
                    ..RankTimes::default()
                });
            }
            times
        };
        let mean = StepTimes::mean(&[rank(10), rank(20)]);
        assert_eq!(mean.compute_ms, [15.0, 30.0]);
        assert_eq!(mean.comm_ms, [0.015, 0.015]);
        assert_eq!(mean.exposed_comm_ms, [0.0, 0.0]);
        assert_eq!(StepTimes::mean(&[]), StepTimes::default());
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(bytes_text(512), "512 B");
        assert_eq!(bytes_text(35_756_442), "34.1 MiB");
        assert_eq!(bytes_text(16 << 40), "16.0 TiB");
        assert_eq!(count_text(128_256), "128,256");
        assert_eq!(count_text(12), "12");
        assert_eq!(count_text(1_234_567), "1,234,567");
    }

    #[test]
    fn a_report_that_cannot_be_written_names_its_file() {
        let error = write_json(Path::new("/nonexistent/report.json"), &1).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/report.json"));
    }
}
