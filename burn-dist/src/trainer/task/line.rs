//! The command line of a program.

use clap::{Args, Command as ClapCommand, Parser, Subcommand};

use super::definition::Task;
use crate::train::config::{Key, Section};
use crate::trainer::args::{
    EvaluateArgs, ExplainArgs, ShowMeshArgs, SimulateArgs, StepArgs, TrainArgs,
};
use crate::trainer::command_line::CommandLine;
use crate::trainer::sections;

/// The command line of a program with options `T` about its model.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Line<T: Args> {
    #[command(subcommand)]
    pub(super) command: Command<T>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(super) enum Command<T: Args> {
    /// Train.
    Train {
        /// The model.
        #[command(flatten)]
        task: T,
        /// The devices, and the rows of a step.
        #[command(flatten)]
        step: Box<StepArgs>,
        /// How to train, and what to keep.
        #[command(flatten)]
        args: Box<TrainArgs>,
    },
    /// Ask for the loss of a checkpoint on rows that training never sees.
    Evaluate {
        /// The model.
        #[command(flatten)]
        task: T,
        /// The devices, and the rows of a step.
        #[command(flatten)]
        step: Box<StepArgs>,
        /// The checkpoint, and what is shown.
        #[command(flatten)]
        args: EvaluateArgs,
    },
    /// Show what a training step does on the mesh, without running it.
    Explain {
        /// The model.
        #[command(flatten)]
        task: T,
        /// The devices, and the rows of a step.
        #[command(flatten)]
        step: Box<StepArgs>,
        /// Options of what is shown.
        #[command(flatten)]
        args: ExplainArgs,
    },
    /// Show how long a training step takes on modelled hardware, without running it.
    Simulate {
        /// The model.
        #[command(flatten)]
        task: T,
        /// The devices, and the rows of a step.
        #[command(flatten)]
        step: Box<StepArgs>,
        /// The modelled hardware, and what is shown.
        #[command(flatten)]
        args: SimulateArgs,
    },
    /// Show the configuration file that options of a run make: with --config, a file with the command line's over it.
    Config {
        /// The model.
        #[command(flatten)]
        task: T,
        /// The devices, and the rows of a step.
        #[command(flatten)]
        step: Box<StepArgs>,
        /// How to train, and what to keep.
        #[command(flatten)]
        args: Box<TrainArgs>,
    },
    /// Show the ranks along each axis of a mesh, and the links that the axes use; of a pipeline, which part of the
    /// model is on which ranks.
    Mesh {
        /// The model.
        #[command(flatten)]
        task: T,
        /// The axes, and how a pipeline is scheduled.
        #[command(flatten)]
        args: ShowMeshArgs,
    },
}

impl<T: Task> CommandLine for Line<T> {
    /// Options about the model stand in a section of their own, but for those that the trainer has a place for.
    fn sections() -> &'static [Section] {
        let options = T::augment_args(ClapCommand::new("model"));
        let options = options.get_arguments().filter_map(|arg| arg.get_long());
        let is_placed = |option: &&str| {
            let mut placed = sections::ROWS.keys.iter().map(|key| key.option);
            placed.any(|placed| placed == *option)
        };
        // Sections last as long as the program, which has one command line.
        let key = |option: &str| Key::of(String::leak(option.to_string()));
        let keys: Vec<Key> = options
            .filter(|option| !is_placed(option))
            .map(key)
            .collect();
        let model = Section::new("model", "The model", Vec::leak(keys));
        Vec::leak(sections::with(model).to_vec())
    }

    const HELP: &'static [(&'static str, &'static str)] = T::HELP;

    fn trains(&mut self) -> Option<&mut TrainArgs> {
        match &mut self.command {
            Command::Train { args, .. } | Command::Config { args, .. } => Some(args),
            _ => None,
        }
    }
}
