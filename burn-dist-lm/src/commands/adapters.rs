//! Adapters as the command line names them.

use std::path::Path;

use anyhow::{Context, bail};
use burn_dist::Float;
use burn_dist::checkpoint::hf::{ADAPTERS, Folder};
use burn_dist::trainer::convert::merge;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::folder::{InFolders, load_reported};
use burn_dist::trainer::job::{self, Job};

use crate::cli::{ConvertModelArgs, LoraArgs};
use crate::lora::{self, Layers, Targets};
use crate::model::{Adapters, Llama, LlamaConfig};

/// An alpha without `--lora-alpha`, in ranks.
const ALPHA_PER_RANK: f64 = 2.0;

/// Returns the adapters that the command line asks for, for a model of these sizes.
pub(super) fn asked(args: &LoraArgs, config: &LlamaConfig) -> anyhow::Result<Option<Adapters>> {
    let LoraArgs {
        lora_rank,
        lora_alpha,
        lora_dropout,
        lora_targets,
        base_dtype,
        adapters,
    } = args;
    let of_folder = adapters.as_deref().map(|dir| of_folder(dir, config));
    let adapters = match (lora_rank, of_folder) {
        (_, Some(of_folder)) => of_folder?,
        (Some(rank), None) => {
            let all = Targets::default();
            let targets = lora_targets.as_ref().unwrap_or(&all);
            let matrices = targets.matrices(&Layers::of(config));
            Adapters {
                rank: *rank,
                alpha: lora_alpha.unwrap_or(ALPHA_PER_RANK * *rank as f64),
                is_rank_stabilized: false,
                dropout: 0.0,
                base: Float::F32,
                matrices: matrices.context("--lora-targets")?,
            }
        }
        (None, None) => match (lora_dropout, base_dtype) {
            (None, None) => return Ok(None),
            (Some(_), _) => {
                bail!("--lora-dropout is for adapters: give --lora-rank, or --adapters")
            }
            (None, Some(_)) => bail!(
                "--base-dtype is for weights that are not trained, which adapters leave as they are: give --lora-rank, \
                 or --adapters"
            ),
        },
    };
    Ok(Some(Adapters {
        base: base_dtype.unwrap_or(adapters.base),
        dropout: lora_dropout.unwrap_or(adapters.dropout),
        ..adapters
    }))
}

/// Returns the adapters of a folder, for a model of these sizes.
pub(super) fn of_folder(dir: &Path, config: &LlamaConfig) -> anyhow::Result<Adapters> {
    let found = lora::read(dir, config);
    found.with_context(|| format!("cannot take the adapters of {}", dir.display()))
}

/// Returns what reads the weights of a folder into a model of these sizes, and the adapters of another one, if there is
/// one, over them.
pub(super) fn weights(
    dir: &Path,
    config: &LlamaConfig,
    adapters: Option<&Path>,
) -> job::Folder<Llama> {
    let config = config.clone();
    let adapters = adapters.map(Path::to_path_buf);
    job::Folder {
        path: dir.to_path_buf(),
        load: Box::new(move |model, path, device| {
            let (model, found) = load_reported(model, &config, path, device)?;
            let Some(adapters) = &adapters else {
                return Ok((model, found));
            };
            let (model, more) = lora::load(model, &config, adapters, device)?;
            Ok((model, found.or(more)))
        }),
    }
}

/// Refuses to train adapters of weights that nobody has.
pub(super) fn check_base(job: &Job<Llama>) -> anyhow::Result<()> {
    match job.config.adapters.is_some() && job.weights.is_none() {
        true => bail!(
            "adapters belong to the weights of a model, and these would be random: give the folder of a model (--model)"
        ),
        false => Ok(()),
    }
}

/// Writes a folder with adapters merged into it.
pub(super) fn merged(args: &ConvertModelArgs, dir: &Path) -> anyhow::Result<End> {
    let from = &args.convert.from;
    if !from.join("config.json").is_file() {
        bail!(
            "--merge takes the folder of a model as the base, and {} is none (without a config.json): convert the \
             checkpoint first, without --merge",
            from.display()
        );
    }
    let config = Llama::read_config(from)?;
    let adapters = of_folder(dir, &config)?;
    let file = Folder::open_file(dir, ADAPTERS)?;
    merge(&args.convert, &file, adapters.scale())
}
