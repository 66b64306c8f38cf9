use anyhow::bail;
use burn_dist::train::corpus::{Fields, Longer, sample};
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::checkpoints::Keeper;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::folder::Origin;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::report::count_text;
use burn_dist::trainer::session::{OnePhase, Session};
use burn_dist::trainer::tokens::{Batch, sources};
use burn_dist::trainer::voice::say;

use super::job::{Columns, check_base, check_merged, job, random};
use super::texts::{self, reader};
use crate::cli::TrainingArgs;
use crate::model::Llama;

/// Steps without `--steps`: enough for a steady speed.
const STEPS: usize = 20;

pub(super) fn run(args: &TrainingArgs) -> anyhow::Result<End> {
    let has_data = !args.data.data.is_empty();
    if args.save.is_some() && !has_data && args.model.model.is_none() {
        bail!("--save needs a tokenizer to save with the model: give --data or --model");
    }
    let columns = Columns {
        weighted: has_data,
        packed: args.data.rows.document_mask,
    };
    let job = job(&args.model, args.model.step.batch, columns)?;
    check_base(&job)?;
    check_merged(&job, args.save_merged)?;
    let origin = args.model.model.as_deref();
    let origin = origin.map(Origin::read).transpose()?;
    let session = Session::start(&job, &args.model.step, &args.train, None)?;
    // Options about texts need texts.
    let check = || match !has_data && args.data.rows.document_mask {
        true => bail!(
            "--document-mask hides documents from each other, and random tokens have none: give --data"
        ),
        false => Ok(()),
    };
    session.run(check, |keeper, metrics| {
        pretrain(args, &session, origin.as_ref(), keeper, metrics)
    })
}

fn pretrain(
    args: &TrainingArgs,
    session: &Session<'_, Llama>,
    origin: Option<&Origin>,
    keeper: Keeper,
    metrics: &RunMetrics,
) -> anyhow::Result<End> {
    let (job, seed) = (session.job, session.step.seed);
    let files = sources(&args.data.data, &Fields::Usual)?;
    let held_out = sources(&args.data.validate, &Fields::Usual)?;
    let text = match !files.is_empty() || job.weights.is_some() {
        true => Some(texts::text(job, true, || Ok(sample(&files)?))?),
        false => None,
    };
    let (longer, processes) = (Longer::Split, session.mesh.processes());
    // What makes rows of the files, if there are some.
    let reader = match text.as_ref().filter(|_| !files.is_empty()) {
        Some(text) => {
            let of_text = reader((job, seed), &args.data, text, session.rows(), processes)?;
            Some((of_text, text))
        }
        None => None,
    };
    let steps = session.steps(STEPS, || match &reader {
        Some((reader, text)) => {
            let rows = reader.once(files.clone(), longer, text.whole_encoder())?;
            Ok(Some(rows.num_rows()))
        }
        None => Ok(None),
    })?;
    let (mut documents, mut tokens) = (None, None);
    let mut validate = None;
    let source: &mut dyn BatchSource<Batch = Batch> = match reader {
        Some((reader, text)) => {
            let opened = reader.open(files, longer, text.whole_encoder())?;
            validate = reader.held_out(held_out, longer, text.whole_encoder())?;
            documents.insert(opened)
        }
        None => {
            say!("random tokens from seed {seed}: a measurement, there is nothing to learn");
            tokens.insert(random(job, (seed, 2), session.rows()))
        }
    };
    let phase = OnePhase {
        name: "pretrain",
        steps,
        chosen: &[("seq", job.rows.each)],
        source,
        held_out: texts::held_out(session, &args.data, validate)?,
        progress: None,
    };
    session.one_phase(phase, keeper, metrics, |model, trace| {
        let saved = texts::save(session, args, model, text.as_ref(), origin);
        if let (Some(first), Some(last)) = (trace.losses.first(), trace.losses.last()) {
            let speed = count_text(trace.tokens_per_second().unwrap_or(0.0) as u64);
            let median = trace.step_ms_median().unwrap_or(0.0);
            say!("loss {first:.4} to {last:.4}, {speed} tokens/s (median step {median:.1} ms)");
        }
        saved
    })
}
