//! The commands.

mod explain;
mod finetune;
mod generate;
mod predict;
mod pretrain;
mod session;
mod simulate;
mod texts;

use burn_dist::clock::Hardware;
use burn_dist::launch;

use crate::cli::{Cli, Command, MeshArgs, TrainArgs};
use crate::mesh::Mesh;
use crate::say;
use session::Shape;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It did all of its work.
    Done,
    /// Ctrl-C or SIGTERM ended it early; what it had is written. With the exit code of the signal.
    Interrupted(u8),
    /// It has shown a step that its devices cannot run.
    Unfit,
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
                Some(_) => Mesh::open(&devices)?,
                None => Mesh::dry(&devices)?,
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
