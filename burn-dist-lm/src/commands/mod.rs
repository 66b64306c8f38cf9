//! The commands.

mod chat;
mod evaluate;
mod finetune;
mod generate;
mod job;
mod plan;
mod pretrain;
mod texts;

use std::process::ExitCode;

use burn_dist::trainer::command_line::{CommandLine, show_config};
use burn_dist::trainer::convert::convert;
use burn_dist::trainer::exit::{End, exit};
use burn_dist::trainer::explain::{explain, show_mesh};
use burn_dist::trainer::lora::merge;
use burn_dist::trainer::program::Program;
use burn_dist::trainer::simulate::{self, simulate};

use crate::cli::{Cli, Command};
use crate::model::Llama;
use job::{Columns, job};

/// Does what the command line asks of a program of this name; returns the code that it exits with. A command line that
/// cannot be read ends the program.
pub fn main(program: Program) -> ExitCode {
    exit(run(&Cli::read(program)))
}

/// Runs what the command line asks for.
///
/// # Errors
/// Why it could not be done, for people.
pub fn run(cli: &Cli) -> anyhow::Result<End> {
    let any = Columns::default();
    match &cli.command {
        Command::Pretrain(args) => pretrain::run(args),
        Command::Finetune(args) => finetune::run(args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Convert(args) => match &args.merge {
            Some(dir) => merge::<Llama>(&args.convert, dir),
            None => convert::<Llama>(&args.convert),
        },
        Command::Explain { model, args } => {
            let job = job(model, model.step.batch, any)?;
            explain(&job, &model.step, args, &job.config.table(&job.name))
        }
        Command::Simulate { model, args } => {
            let job = job(model, simulate::batch(args, &model.step), any)?;
            simulate(&job, &model.step, args)
        }
        Command::Plan { model, args } => plan::run(model, args),
        Command::Config(args) => show_config(&args.training.train),
        Command::Mesh { size, args } => show_mesh(&job::of_size(*size)?, args),
    }
}
