//! The report that a run leaves behind, as JSON.

use std::collections::BTreeMap;

use burn_dist::trainer::report::{
    MeshSince, PlanStats, RankReport, StepTimes, Traffic, ValidationLoss,
};
use serde::Serialize;

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
    /// Share of the unseen questions answered right before fine-tuning.
    pub exact_match_before: Option<f64>,
    /// Share of the unseen questions answered right.
    pub exact_match: Option<f64>,
}
