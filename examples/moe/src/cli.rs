//! The command line.

use clap::{Args, Parser, Subcommand};

use burn_dist::clock::Hardware;
use burn_dist::explanation::PASSES;
use burn_dist::mesh::MeshShape;

use crate::model::{Capacity, Config};

/// Trains a mixture-of-experts decoder on a mesh of devices.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train on ciphers that the model has to learn by heart.
    Train(TrainArgs),
    /// Show what a training step does on the mesh, without running it: which tokens cross, and how many bytes.
    Explain(Box<ExplainArgs>),
}

/// A model on a mesh.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Axes of the mesh, such as ep=4 or fsdp=2,ep=2; experts are split over ep.
    #[arg(long, default_value = "ep=2")]
    pub mesh: MeshShape,
    /// Axes that experts are split over in the place of ep, the first major: fsdp, or fsdp,cp.
    #[arg(long, value_name = "AXES")]
    pub experts_over: Option<String>,
    /// Experts of each block.
    #[arg(long, default_value_t = Config::default().experts)]
    pub experts: usize,
    /// Experts that each token goes to.
    #[arg(long, default_value_t = Config::default().top_k)]
    pub top_k: usize,
    /// Slots of an expert, as a multiple of what it would take if all were chosen alike; what does not fit is dropped.
    #[arg(long, default_value_t = 1.25, allow_negative_numbers = true)]
    pub capacity_factor: f64,
    /// Give every expert a slot for every token: nothing is dropped, and most slots are empty.
    #[arg(long, conflicts_with = "capacity_factor")]
    pub dropless: bool,
    /// Groups that the tokens of a sequence are dealt to, in turn: they compete for slots with their group alone.
    #[arg(long, default_value_t = 1)]
    pub groups: usize,
    /// Leave out the feed-forward layer that works on every token beside the experts.
    #[arg(long)]
    pub no_shared: bool,
    /// Width of the residual.
    #[arg(long, default_value_t = Config::default().width)]
    pub width: usize,
    /// Width inside an expert.
    #[arg(long, default_value_t = Config::default().hidden)]
    pub hidden: usize,
    /// Number of blocks.
    #[arg(long, default_value_t = Config::default().layers)]
    pub layers: usize,
    /// Heads of attention.
    #[arg(long, default_value_t = Config::default().heads)]
    pub heads: usize,
    /// Sequences of a batch, of all ranks together.
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 32)]
    pub seq: usize,
    /// Seed of the parameters and the data.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl ModelArgs {
    /// Returns the shape of the model.
    ///
    /// # Errors
    /// If its sizes do not fit each other or the batch.
    pub fn config(&self) -> anyhow::Result<Config> {
        let config = Config {
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            hidden: self.hidden,
            experts: self.experts,
            top_k: self.top_k,
            capacity: match self.dropless {
                true => Capacity::Dropless,
                false => Capacity::Factor(self.capacity_factor),
            },
            groups: self.groups,
            shared: !self.no_shared,
            ..Config::default()
        };
        config.validate(self.seq)?;
        anyhow::ensure!(
            self.batch > 0,
            "a batch of 0 sequences: use --batch 1 or more"
        );
        Ok(config)
    }
}

/// A run.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Optimizer steps.
    #[arg(long, default_value_t = 200)]
    pub steps: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 5e-3)]
    pub lr: f64,
    /// Steps from one printed line to the next.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
}

/// A plan to show.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tell how long the step takes on this hardware, and on one rank of it.
    #[arg(long, value_name = "NAME", value_parser = Hardware::preset)]
    pub hardware: Option<Hardware>,
    /// Show what there is of the step after this pass too.
    #[arg(long, value_name = "PASS", value_parser = PASSES.map(|(name, _)| name))]
    pub after: Option<String>,
}
