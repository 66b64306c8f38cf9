//! The command `convert`: weights from a checkpoint into a folder as Hugging Face lays it out, and back, tensor by
//! tensor, a part of one in memory at a time, on no mesh.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use burn_dist_checkpoint::convert::{Conversion, Converted, Kind, Merge};
use burn_dist_checkpoint::{Checkpoint, Checkpoints};

use super::args::{ConvertArgs, MeshArgs};
use super::checkpoints::{Described, SoFar};
use super::exit::End;
use super::folder::{InFolders, Origin, SHARD_BYTES};
use super::mesh::Mesh;
use super::report::count_text;
use super::voice::say;
use crate::checkpoint::Checkpointer;
use crate::checkpoint::hf::Folder;
use crate::mesh::DType;

/// The name that a run has for its model, beside the optimizer.
const MODEL: &str = "model";

/// Converts weights of a model, and prints what was written.
///
/// # Errors
/// What cannot be converted, for people.
pub fn convert<M: InFolders>(args: &ConvertArgs) -> anyhow::Result<End> {
    let is_folder = args.from.join("config.json").is_file();
    let converted = match is_folder {
        true => to_checkpoint::<M>(args)?,
        false => to_folder::<M>(args)?,
    };
    tell(&converted);
    Ok(End::Done)
}

/// Writes the folder of a model with adapters merged into it, which are known to be of this model, and prints what was
/// written: see [`Merge`].
///
/// # Errors
/// What cannot be merged, for people.
pub fn merge(args: &ConvertArgs, adapters: &Folder, scale: f64) -> anyhow::Result<End> {
    check_folder(args)?;
    let (base, origin) = (Folder::open(&args.from)?, Origin::read(&args.from)?);
    let merge = Merge {
        base: &base,
        adapters,
        scale: scale as f32,
        to: &args.to,
        dtype: args.dtype,
        shard_bytes: Some(SHARD_BYTES),
    };
    write_beside(&args.to, origin.beside(args.dtype))?;
    tell(&merge.run()?);
    Ok(End::Done)
}

fn tell(converted: &Converted) {
    say!(
        "{} tensors, {} bytes: {} is {}",
        converted.parameters,
        count_text(converted.bytes),
        converted.path.display(),
        converted.to
    );
}

/// Refuses options that are for checkpoints, of a folder.
fn check_folder(args: &ConvertArgs) -> anyhow::Result<()> {
    for (option, is_given) in [
        ("--like", args.like.is_some()),
        ("--step", args.step.is_some()),
    ] {
        if is_given {
            bail!(
                "{option} is for checkpoints, and {} is a folder of a model (it has a config.json): leave it out",
                args.from.display()
            );
        }
    }
    Ok(())
}

/// Writes the weights of a folder as a checkpoint.
fn to_checkpoint<M: InFolders>(args: &ConvertArgs) -> anyhow::Result<Converted> {
    let (from, to) = (&args.from, &args.to);
    check_folder(args)?;
    let config = M::read_config(from)?;
    let names = M::names(&config);
    let conversion = Conversion {
        kind: Some(Kind::Checkpoint),
        names: Some(&names),
        dtype: args.dtype,
        ..Conversion::new(from, to)
    };
    let converted = conversion.run()?;
    Ok(converted)
}

/// Writes the weights of a checkpoint as a folder, with the files of the model beside them.
fn to_folder<M: InFolders>(args: &ConvertArgs) -> anyhow::Result<Converted> {
    let root = root(&args.from);
    let checkpoints = Checkpoints::at(&root);
    let steps = checkpoints.steps()?;
    let step = match args.step {
        Some(step) if !steps.contains(&step) => bail!(
            "{} has no checkpoint of step {step}: it has those of {}",
            root.display(),
            listed(&steps)
        ),
        Some(step) => step,
        None => *steps.last().with_context(|| {
            format!(
                "{} is neither a folder of a model (without a config.json) nor has it checkpoints",
                args.from.display()
            )
        })?,
    };
    let checkpoint = checkpoints.open(step)?;
    let prefix = format!("{MODEL}.");
    let mut keys = checkpoint
        .manifest()
        .tensors
        .iter()
        .map(|tensor| &tensor.key);
    // What was converted is the model alone.
    let module = keys.any(|key| key.starts_with(&prefix)).then_some(MODEL);
    let so_far = match module {
        Some(_) => Some(so_far::<M>(&root, step)?),
        None => None,
    };
    let like = like(args, so_far.as_ref())?;
    let origin = Origin::read(&like)?;
    let config = M::read_config(&like)?;
    if let Some(described) = so_far.as_ref().and_then(|so_far| so_far.model.as_ref()) {
        same::<M>(described, &like, &config)?;
    }
    let names = M::names(&config);
    let from = checkpoint.path();
    let conversion = Conversion {
        kind: Some(Kind::Hf),
        names: Some(&names),
        module,
        dtype: args.dtype,
        shard_bytes: Some(SHARD_BYTES),
        ..Conversion::new(from, &args.to)
    };
    // The weights come last: a folder without them is no model.
    let beside = origin.beside(args.dtype.or_else(|| dtype_of(&checkpoint, module)));
    write_beside(&args.to, beside)?;
    Ok(conversion.run()?)
}

/// The folder of the checkpoints: of a run, those that it keeps; of one step, that which it is in.
fn root(from: &Path) -> PathBuf {
    let of_run = from.join("checkpoints");
    match of_run.is_dir() {
        true => of_run,
        false => from.to_path_buf(),
    }
}

fn listed(steps: &[u64]) -> String {
    match steps {
        [] => "none".to_string(),
        steps => steps
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Returns how far a run is, and with which model.
fn so_far<M: InFolders>(root: &Path, step: u64) -> anyhow::Result<SoFar> {
    // One rank, for what a checkpoint asks of a device: nothing is computed, and no model made.
    let mesh = Mesh::open::<M>(&MeshArgs::default())?;
    let saved = Checkpointer::at(root, mesh.device())?.open(step)?;
    Ok(saved.value("so far")?)
}

/// The folder whose settings and tokenizer the model has.
fn like(args: &ConvertArgs, so_far: Option<&SoFar>) -> anyhow::Result<PathBuf> {
    if let Some(like) = &args.like {
        return Ok(like.clone());
    }
    let name = so_far
        .and_then(|so_far| so_far.model.as_ref())
        .map(|model| &model.name);
    let begun = name.map(PathBuf::from);
    match begun.filter(|path| path.join("config.json").is_file()) {
        Some(path) => Ok(path),
        None => bail!(
            "which config.json and tokenizer.json belong to the weights of {} is not known{}: give a folder that has \
             them (--like DIR), such as one that --save has written",
            args.from.display(),
            name.map_or_else(String::new, |name| format!(
                " (the run was begun with {name})"
            ))
        ),
    }
}

/// Refuses a folder of another model than that of the run.
fn same<M: InFolders>(
    described: &Described,
    like: &Path,
    config: &M::Config,
) -> anyhow::Result<()> {
    let other = Described::new::<M>(&like.display().to_string(), config);
    described.check(&other, M::WORDS).with_context(|| {
        format!(
            "{} is no folder of this model: give one whose config.json is that of the weights (--like DIR)",
            like.display()
        )
    })
}

/// The type that all weights have; none if they have several.
fn dtype_of(checkpoint: &Checkpoint, module: Option<&str>) -> Option<DType> {
    let prefix = module.map_or_else(String::new, |module| format!("{module}."));
    let tensors = checkpoint.manifest().tensors.iter();
    let weights = tensors.filter(|tensor| tensor.key.starts_with(&prefix));
    let mut dtypes = weights.map(|tensor| tensor.dtype());
    let first = dtypes.next()??;
    dtypes.all(|dtype| dtype == Some(first)).then_some(first)
}

/// Writes files into a folder that nothing is in yet.
fn write_beside(to: &Path, files: Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make the folder {}", to.display()))?;
    let mut there = fs::read_dir(to).with_context(|| format!("cannot read {}", to.display()))?;
    if there.next().is_some() {
        bail!(
            "{} is there already, with files in it: nothing is written over them",
            to.display()
        );
    }
    for (name, bytes) in files {
        let path = to.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
