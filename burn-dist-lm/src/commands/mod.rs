//! The commands.

mod convert;
mod explain;
mod finetune;
mod generate;
mod predict;
mod pretrain;
mod session;
mod shape;
mod simulate;
mod texts;

use std::process::ExitCode;

use burn_dist::clock::Hardware;
use burn_dist::launch;
use burn_dist::trainer::args::MeshArgs;
use burn_dist::trainer::exit::{End, exit};
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::voice::say;

use crate::Program;
use crate::cli::{Cli, Command, TrainArgs};
use crate::model::Llama;
use shape::Shape;

impl Program {
    /// Does what the command line asks for; returns the code that the program exits with. A command line that cannot be
    /// read ends the program.
    pub fn main(self) -> ExitCode {
        exit(run(&Cli::read(self)))
    }
}

/// Runs what the command line asks for.
///
/// # Errors
/// Why it could not be done, for people.
pub fn run(cli: &Cli) -> anyhow::Result<End> {
    match &cli.command {
        Command::Pretrain(args) => pretrain::run(args),
        Command::Finetune(args) => finetune::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Config(args) => {
            let TrainArgs {
                resolved, program, ..
            } = &args.train;
            say!("{}", resolved.to_toml(&program.versioned())?.trim_end());
            Ok(End::Done)
        }
        Command::Mesh(args) => {
            let devices = MeshArgs {
                pipeline: args.pipeline.clone(),
                ..args.axes.clone().into()
            };
            let shape = Shape::of_size(args.size);
            let devices = predict::costed(&devices, &shape, 0, &Hardware::preset("h100")?)?;
            // Alone, nothing has to run: the mesh may be larger than this machine.
            let mesh = match launch::world()? {
                Some(_) => Mesh::open::<Llama>(&devices)?,
                None => Mesh::dry::<Llama>(&devices)?,
            };
            say!("{}", mesh.table().trim_end());
            let model = args.size.config().init(mesh.device());
            if let Some(stages) = mesh.stages(&model)? {
                say!("\n{}", stages.trim_end());
            }
            Ok(End::Done)
        }
    }
}
