//! The command line.

use anyhow::ensure;
use burn_dist::mesh::MeshShape;
use burn_dist::train::config::{Key, Section};
use burn_dist::trainer::args::{EvaluateArgs, ExplainArgs, SimulateArgs, StepArgs, TrainArgs};
use burn_dist::trainer::batch::Numbered;
use burn_dist::trainer::command_line::CommandLine;
use burn_dist::trainer::job::{Job, StepRows};
use burn_dist::trainer::sections;
use clap::{Args, Parser, Subcommand};

use crate::data::{Batch, Ciphers};
use crate::model::{Capacity, Config, Decoder};

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
    Train {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// How to train, and what to keep.
        #[command(flatten)]
        args: Box<TrainArgs>,
    },
    /// Ask for the loss of a checkpoint on rows that training never sees.
    Evaluate {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// The checkpoint, and what is shown.
        #[command(flatten)]
        args: EvaluateArgs,
    },
    /// Show what a training step does on the mesh, without running it: which tokens cross, and how many bytes.
    Explain {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// Options of what is shown.
        #[command(flatten)]
        args: ExplainArgs,
    },
    /// Show how long a training step takes on modelled hardware, without running it.
    Simulate {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// The hardware.
        #[command(flatten)]
        args: SimulateArgs,
    },
}

/// A model on a mesh.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// The devices, and the rows of a step.
    #[command(flatten)]
    pub step: StepArgs,
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
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 32)]
    pub seq: usize,
}

/// Rows of a step without `--batch`.
const BATCH: usize = 16;

impl ModelArgs {
    /// Returns the model with `batch` rows of a step.
    ///
    /// # Errors
    /// If its sizes do not fit each other or the rows.
    pub fn job(&self, batch: Option<usize>) -> anyhow::Result<Job<Decoder>> {
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
            experts_over: self.experts_over.clone(),
            ..Config::default()
        };
        config.validate(self.seq)?;
        let batch = batch.unwrap_or(BATCH);
        ensure!(batch <= 1 << 20, "a batch of {batch} sequences: use less");
        let (ciphers, seq) = (Ciphers::new(self.step.seed), self.seq);
        Ok(Job {
            name: format!("{} experts", config.experts),
            config,
            weights: None,
            rows: StepRows::new(batch, self.step.accumulate, (seq, "tokens"))?,
            peak: 5e-3,
            sample: Box::new(move |rows| Ok(ciphers.rows(0..rows, seq))),
        })
    }

    /// The rows to train on.
    pub fn rows(
        &self,
        batch: usize,
    ) -> Numbered<impl FnMut(std::ops::Range<usize>) -> Batch + use<>> {
        let (seed, seq) = (self.step.seed, self.seq);
        let ciphers = Ciphers::new(seed);
        let name = format!("ciphers of seed {seed}, rows of {seq}");
        Numbered::new(&name, batch, move |numbers| ciphers.rows(numbers, seq))
    }

    /// The devices and the rows of a step, and the mesh: `ep=2` by default.
    ///
    /// # Errors
    /// None, of a mesh that was read.
    pub fn step(&self) -> anyhow::Result<(StepArgs, MeshShape)> {
        let mut step = self.step.clone();
        let mesh = match step.devices.forward.axes.mesh.take() {
            Some(mesh) => mesh,
            None => MeshShape::parse("ep=2")?,
        };
        step.devices.forward.axes.mesh = Some(mesh.clone());
        Ok((step, mesh))
    }
}

impl CommandLine for Cli {
    const SECTIONS: &'static [Section] = &sections::with(Section::new(
        "model",
        "The model",
        &[
            Key::of("experts-over"),
            Key::of("experts"),
            Key::of("top-k"),
            Key::of("capacity-factor"),
            Key::of("dropless"),
            Key::of("groups"),
            Key::of("no-shared"),
            Key::of("width"),
            Key::of("hidden"),
            Key::of("layers"),
            Key::of("heads"),
        ],
    ));
    const HELP: &'static [(&'static str, &'static str)] = &[(
        "mesh",
        "Axes of the mesh, such as ep=4 or fsdp=2,ep=2; experts are split over ep: ep=2 by default",
    )];

    fn trains(&mut self) -> Option<&mut TrainArgs> {
        match &mut self.command {
            Command::Train { args, .. } => Some(args),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_dist::trainer::program::Program;

    #[test]
    fn every_option_stands_in_a_section() {
        let config = Cli::config(Program::default());
        assert_eq!(config.faults(), Vec::<String>::new());
    }
}
