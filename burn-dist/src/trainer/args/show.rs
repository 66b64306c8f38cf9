//! Commands that run no training step: they show one, or evaluate a model as it is.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgGroup, Args};

use super::numbers::positive;
use super::{AxesArgs, PipelineArgs};
use crate::clock::Hardware;
use crate::explanation::{AskedValue, PASSES};
use crate::train::files;

/// The devices that ranks stand for.
#[derive(Debug, Clone, Default, Args)]
pub struct HardwareArgs {
    /// The devices: a100, h100, h100-hbm2e-500w or h200, eight to a node; simulate takes h100 by default.
    #[arg(long, value_name = "NAME", value_parser = Hardware::preset)]
    pub hardware: Option<Hardware>,
    /// A file that describes other devices, in the form of docs/simulator.md.
    #[arg(long, value_name = "FILE.toml", conflicts_with = "hardware")]
    pub hardware_file: Option<PathBuf>,
}

/// No description of devices is longer.
const HARDWARE_BYTES_MAX: u64 = 512 << 10;

impl HardwareArgs {
    /// Returns the devices, if the command line names some.
    ///
    /// # Errors
    /// If the file cannot be read, or describes none.
    pub fn read(&self) -> anyhow::Result<Option<Hardware>> {
        let Some(path) = &self.hardware_file else {
            return Ok(self.hardware.clone());
        };
        let text = files::read_text(path, HARDWARE_BYTES_MAX);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let hardware = Hardware::from_toml(&text).with_context(|| path.display().to_string())?;
        Ok(Some(hardware))
    }
}

/// The options of `explain`, beside those of the model.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Devices whose memory the step has to fit into; any by default.
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Write the plan here.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
    /// Print what there is of a step after a pass of the planner: layers, precision, float8, propagate, checkpoint,
    /// redundancy, staging, schedule, hierarchy, async_tp, lower, offload or lifetimes.
    #[arg(long, value_name = "PASS", value_parser = pass)]
    pub after: Option<&'static str>,
    /// Print why the operation that makes a value is split as it is, and what other splits would cost: a value of a
    /// step as it is named with --after, as in %12 (float8) or s34 (propagate).
    #[arg(long, value_name = "VALUE")]
    pub why: Option<AskedValue>,
}

/// The options of `simulate`, beside those of the model.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Rows of a training step for each group of ranks that has its own rows: for each rank of dp x fsdp.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "batch")]
    pub batch_per_rank: Option<usize>,
    /// The devices; h100 by default.
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Run chains of operations between products as one kernel, as a compiler makes it; burn-dist runs them one by one.
    #[arg(long)]
    pub compile: bool,
    /// Plan at most so many microbatches of a step: one that does what the one before it does stands for the others. By
    /// default 5, or all where none stands for others.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub plan_microbatches: Option<usize>,
    /// On a mesh with stages, draw as SVG which microbatch each rank works on when.
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub chart: Option<PathBuf>,
    /// Print the figures as one line of JSON instead.
    #[arg(long)]
    pub json: bool,
}

/// The options of `plan`, beside those of the model.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("count").required(true))]
pub struct SearchArgs {
    /// Devices to find a mesh for.
    #[arg(long, value_name = "N", group = "count", value_parser = positive)]
    pub devices: Option<usize>,
    /// Nodes to find one for, each with as many devices as the hardware says.
    #[arg(long, value_name = "N", group = "count", value_parser = positive)]
    pub nodes: Option<usize>,
    /// Tokens of a training step over all ranks: whole rows of --seq.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "batch")]
    pub batch_tokens: Option<usize>,
    /// The devices; h100 by default.
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Run chains of operations between products as one kernel, as a compiler makes it; burn-dist runs them one by one.
    #[arg(long)]
    pub compile: bool,
    /// Plan and simulate at most so many whole, and more only as long as none fits.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = positive)]
    pub simulations: usize,
    /// Plan and simulate all meshes whole after the search, but what is slower by far, and say what the search has
    /// missed: takes long.
    #[arg(long)]
    pub exhaustive: bool,
    /// Show how long so many tokens take.
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// Write the options of the fastest as a configuration file.
    #[arg(long, value_name = "FILE.toml")]
    pub write: Option<PathBuf>,
}

/// The options of `evaluate`, beside those of the model and of its data.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("weights").multiple(true))]
pub struct EvaluateArgs {
    /// Evaluate a checkpoint of the run in this folder.
    #[arg(long, value_name = "DIR", group = "weights")]
    pub run: Option<PathBuf>,
    /// Evaluate a checkpoint in this folder.
    #[arg(long, value_name = "DIR", group = "weights")]
    pub checkpoint: Option<PathBuf>,
    /// The step of the checkpoint; the newest by default.
    #[arg(long, value_name = "STEP", requires = "weights")]
    pub step: Option<u64>,
    /// Batches that are evaluated, the first ones; all by default.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub validate_batches: Option<usize>,
    /// Run even if the plan says that more memory is needed than is left.
    #[arg(long)]
    pub force: bool,
    /// Print the figures as one line of JSON instead.
    #[arg(long)]
    pub json: bool,
}

/// The options of `mesh`, beside those of the model.
#[derive(Debug, Args)]
pub struct ShowMeshArgs {
    /// The axes.
    #[command(flatten)]
    pub axes: AxesArgs,
    /// How a pipeline is scheduled.
    #[command(flatten)]
    pub pipeline: PipelineArgs,
}

pub(super) fn svg(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|extension| extension == "svg") {
        true => Ok(path),
        false => Err("charts are drawn as .svg".to_string()),
    }
}

fn pass(text: &str) -> Result<&'static str, String> {
    let mut names = PASSES.iter().map(|(name, _)| *name);
    names.find(|name| *name == text).ok_or_else(|| {
        let names: Vec<String> = PASSES
            .iter()
            .map(|(name, what)| format!("  {name:<12} {what}"))
            .collect();
        format!(
            "there is no such pass; the passes are\n{}",
            names.join("\n")
        )
    })
}
