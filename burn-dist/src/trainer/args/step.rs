//! The devices, and the rows of a step.

use clap::Args;

use super::MeshArgs;
use super::numbers::positive;

/// The devices, and the rows of a step: of every command about steps.
#[derive(Debug, Clone, Args)]
pub struct StepArgs {
    /// The devices.
    #[command(flatten)]
    pub devices: MeshArgs,
    /// Seed of parameters and data.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Rows of a training step over all ranks; the size's own by default.
    #[arg(long, value_parser = positive)]
    pub batch: Option<usize>,
    /// Microbatches that the rows of a step are cut into, one forward and backward pass each: less memory, the same
    /// gradients to rounding. Ranks along pp work on different ones at a time.
    #[arg(long, visible_alias = "microbatches", value_name = "N", default_value_t = 1, value_parser = positive)]
    pub accumulate: usize,
    /// Let every rank compute all rows where a microbatch has fewer than there are ranks along dp and fsdp.
    #[arg(long)]
    pub repeat_rows: bool,
}

impl StepArgs {
    /// A step on these devices, with all else as it is without options.
    pub fn on(devices: MeshArgs) -> Self {
        Self {
            devices,
            seed: 0,
            batch: None,
            accumulate: 1,
            repeat_rows: false,
        }
    }
}
