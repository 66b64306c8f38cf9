//! The model that the command line names, not yet built, and rows of tokens like those of its data.

use anyhow::bail;
use burn_dist::layout::Rows;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::folder::InFolders;
use burn_dist::trainer::job::{Job, Sample, StepRows};
use burn_dist::trainer::lora::{self, Base};
use burn_dist::trainer::tokens::{PackedIds, RandomTokens};

use crate::cli::ModelArgs;
use crate::model::{Llama, Size};

/// The columns of rows besides tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Columns {
    /// Positions count differently: prompts and padding do not.
    pub(super) weighted: bool,
    /// Documents do not see each other.
    pub(super) packed: bool,
}

/// The job of a size, with the size's own rows and tokens of a step.
pub(super) fn of_size(size: Size) -> anyhow::Result<Job<Llama>> {
    let (seq, batch) = size.default_seq_and_batch();
    Ok(Job {
        config: size.config(),
        name: size.name().to_string(),
        weights: None,
        rows: StepRows::new(batch, 1, (seq, "tokens"))?,
        peak: match size {
            Size::Tiny => 2e-3,
            _ => 3e-4,
        },
        sample: sample(size.config().vocab, seq, 0, Columns::default()),
    })
}

/// The job that the command line names, with `batch` rows of a step; `None` is the size's own number.
pub(super) fn job(
    args: &ModelArgs,
    batch: Option<usize>,
    columns: Columns,
) -> anyhow::Result<Job<Llama>> {
    let mut job = of_size(args.size)?;
    let (mut seq, mut rows) = (job.rows.each, job.rows.batch);
    if let Some(dir) = &args.model {
        job.config = Llama::read_config(dir)?;
        job.name = dir.display().to_string();
        job.weights = Some(lora::weights(
            dir,
            &job.config,
            args.lora.adapters.as_deref(),
        ));
        job.peak = 2e-5;
        (seq, rows) = (512, 8);
    }
    job.config.adapters = args.lora.asked::<Llama>(&job.config)?;
    if job.config.adapters.is_some() {
        job.peak = 2e-4;
    }
    let (batch, seq) = (batch.unwrap_or(rows), args.seq.unwrap_or(seq));
    let step = &args.step;
    job.rows = StepRows::new(batch, step.accumulate, (seq, "tokens"))?;
    if let Some(mesh) = &step.devices.forward.axes.mesh {
        let ranks = mesh.group_size(&mesh.context_axes());
        if seq < ranks {
            bail!(
                "the mesh {mesh} splits sequences over {ranks} ranks, and a sequence has {seq} tokens: give a --seq \
                 of at least {ranks}, or cp fewer ranks"
            );
        }
    }
    job.sample = sample(job.config.vocab, seq, step.seed, columns);
    Ok(job)
}

/// Refuses to merge adapters into weights that are rounded.
pub(super) fn check_merged(job: &Job<Llama>, save_merged: bool) -> anyhow::Result<()> {
    let base = job.config.adapters.as_ref().map(|adapters| adapters.base);
    match save_merged && base == Some(Base::Int8) {
        true => bail!(
            "--save-merged would merge into weights that are rounded to 8 bits (--base-dtype int8): save the adapters \
             alone, and merge them into the folder that the weights come from (convert BASE TO --merge ADAPTERS)"
        ),
        false => Ok(()),
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

fn sample(vocab: usize, seq: usize, seed: u64, columns: Columns) -> Sample<Llama> {
    Box::new(move |batch| {
        let mut source = RandomTokens {
            batch,
            seq,
            vocab,
            rng: Rng::new(seed, 2),
            held: Rows::all(batch),
        };
        let mut rows = source.next_batch()?;
        let num = rows.tokens.len();
        rows.weights = columns.weighted.then(|| vec![0.0; num]);
        rows.packed = columns.packed.then(|| PackedIds {
            documents: vec![0; num],
            positions: vec![0; num],
        });
        Ok(rows)
    })
}

/// Random tokens that a step of the job takes, of which this process holds `held`; `stream` keeps uses of a seed apart.
pub(super) fn random(job: &Job<Llama>, (seed, stream): (u64, u64), held: Rows) -> RandomTokens {
    RandomTokens {
        batch: job.rows.batch,
        seq: job.rows.each,
        vocab: job.config.vocab,
        rng: Rng::new(seed, stream),
        held,
    }
}

#[cfg(test)]
mod tests {
    use burn_dist::trainer::lora::Adapters;

    use super::*;

    #[test]
    fn rounded_weights_are_not_merged_into() {
        let job_over = |base| {
            let mut job = of_size(Size::Tiny).unwrap();
            job.config.adapters = Some(Adapters {
                rank: 2,
                alpha: 4.0,
                is_rank_stabilized: false,
                dropout: 0.0,
                base,
                matrices: Default::default(),
            });
            job
        };
        let error = check_merged(&job_over(Base::Int8), true).unwrap_err();
        let error = error.to_string();
        for part in [
            "--save-merged",
            "--base-dtype int8",
            "convert BASE TO --merge ADAPTERS",
        ] {
            assert!(error.contains(part), "{error}");
        }
        for (base, merged) in [(Base::Int8, false), (Base::BF16, true)] {
            assert!(check_merged(&job_over(base), merged).is_ok());
        }
    }
}
