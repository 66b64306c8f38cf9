//! How to train, and what to keep.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::show::svg;
use super::{CheckpointArgs, OptimizerArgs, RunArgs, ScheduleArgs};
use crate::train::config::Resolved;
use crate::trainer::program::Program;

/// How to train, and what to keep: all options of a training command but those of the model, its rows and its data.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("kept").multiple(true))]
pub struct TrainArgs {
    /// How long, and at which rates.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// The optimizer.
    #[command(flatten)]
    pub optimizer: OptimizerArgs,
    /// Files besides.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Run even if the plan says that more memory is needed than is left.
    #[arg(long)]
    pub force: bool,
    /// The checkpoints.
    #[command(flatten)]
    pub checkpoints: CheckpointArgs,
    /// The folder of the run.
    #[command(flatten)]
    pub run: RunArgs,
    /// All options of the command, as a configuration file.
    #[arg(skip)]
    pub resolved: Resolved,
    /// The program that was started.
    #[arg(skip)]
    pub program: Program,
}

/// Files that a run leaves if they are asked for.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Write the run's figures here; by default, with --run, into its report.json.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
    /// Write what every rank did when here, for ui.perfetto.dev or chrome://tracing: as many of the first steps as
    /// 262,144 events a rank hold. Of several processes each writes its own ranks, process 1 to FILE-1.json, on its own
    /// machine, and counts time from when it made the mesh.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// On a mesh with stages, draw as SVG which microbatch each rank works on when: as the clock says for an H100, and
    /// as the last step did.
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub chart: Option<PathBuf>,
    /// Draw the loss curve here, as PNG or SVG by the file's name; loss.png by default, in the folder of --run if there
    /// is one.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Draw no loss curve.
    #[arg(long, conflicts_with = "plot")]
    pub no_plot: bool,
    /// Show what the plan predicts of each rank's memory before the run, and draw here what the fullest rank holds over
    /// a step, as PNG or SVG by the file's name. Of several processes the one that runs this rank draws it.
    #[arg(long, value_name = "FILE")]
    pub memory: Option<PathBuf>,
}
