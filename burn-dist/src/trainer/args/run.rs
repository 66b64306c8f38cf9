//! The files that a run writes into its folder while it lasts.

use std::path::PathBuf;

use clap::Args;

use super::numbers::{above_0, positive};
use crate::clock::Hardware;

/// The folder of a run, its figures, and validation.
#[derive(Debug, Clone, Default, Args)]
pub struct RunArgs {
    /// Keep everything of the run in this folder: checkpoints, figures while it runs (metrics.jsonl, and tensorboard/
    /// for TensorBoard), the report, the loss curve. One running program has it.
    #[arg(long, value_name = "DIR", group = "kept")]
    pub run: Option<PathBuf>,
    /// Steps from one row of figures to the next, 1 by default; the last step has one too. Every tenth step has the
    /// norm of the gradients among them; with --clip, all have it.
    #[arg(long, value_name = "N", value_parser = positive, requires = "run")]
    pub metrics_every: Option<usize>,
    /// The most that a rank's device can do, in teraflops per second: then figures have the share of it that the
    /// model's flops are (MFU).
    #[arg(long, value_name = "TFLOPS", value_parser = above_0::<f64>, requires = "run")]
    pub peak_tflops: Option<f64>,
    /// The device of each rank, for its peak: a100, h100, h100-hbm2e-500w or h200.
    #[arg(long, value_name = "NAME", value_parser = Hardware::preset, requires = "run", conflicts_with = "peak_tflops")]
    pub hardware: Option<Hardware>,
    /// Steps from one validation to the next; there is one after the last step too.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub validate_every: Option<usize>,
    /// Batches of what is held out that validation takes, the first of them; all by default.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub validate_batches: Option<usize>,
    /// Write a line to standard error every N steps, for logs; without a terminal there is one for every step by
    /// default, and on a terminal a bar.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub log_every: Option<usize>,
}
