use anyhow::bail;
use burn_dist::train::corpus::{Fields, Longer};
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::checkpoints::Keeper;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::report::count_text;
use burn_dist::trainer::run::Trace;
use burn_dist::trainer::session::{Part, Session};
use burn_dist::trainer::tokens::{Batch, tell};
use burn_dist::trainer::voice::say;

use super::job::{Columns, job, random};
use super::texts::{self, reader};
use crate::cli::TrainingArgs;
use crate::data;
use crate::hf::Origin;
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
    mut keeper: Keeper,
    metrics: &RunMetrics,
) -> anyhow::Result<End> {
    let (job, seed) = (session.job, session.step.seed);
    let sources = texts::sources(&args.data.data, &Fields::Usual)?;
    let held_out = texts::sources(&args.data.validate, &Fields::Usual)?;
    let text = match !sources.is_empty() || job.weights.is_some() {
        true => Some(texts::text(job, true, || Ok(data::sample(&sources)?))?),
        false => None,
    };
    let (longer, processes) = (Longer::Split, session.mesh.processes());
    let reader = |text| reader((job, seed), &args.data, text, session.rows(), processes);
    let steps = session.steps(STEPS, || match &text {
        Some(text) if !sources.is_empty() => {
            let rows = reader(text)?.once(sources.clone(), longer, text.whole_encoder())?;
            Ok(Some(rows.num_rows()))
        }
        _ => Ok(None),
    })?;
    session.save_config(
        &mut keeper,
        metrics,
        &[("steps", steps), ("seq", job.rows.each)],
    )?;
    let (mut documents, mut tokens) = (None, None);
    let mut validate = None;
    let source: &mut dyn BatchSource<Batch = Batch> = match &text {
        Some(text) if !sources.is_empty() => {
            let reader = reader(text)?;
            let opened = reader.open(sources, longer, text.whole_encoder())?;
            validate = reader.held_out(held_out, longer, text.whole_encoder())?;
            documents.insert(opened)
        }
        _ => {
            say!("random tokens from seed {seed}: a measurement, there is nothing to learn");
            tokens.insert(random(job, (seed, 2), session.rows()))
        }
    };
    let part = Part {
        before: session.phase("pretrain"),
        steps,
        validation: texts::validation(session, &args.data, validate)?,
        progress: None,
    };
    let model = session.model(&mut keeper)?;
    let (model, trace) = session.train(model, part, source, &mut keeper, metrics)?;
    // Whatever becomes of the report, the model is kept.
    let saved = texts::save(session, args.save.as_deref(), &model, text.as_ref(), origin);
    let report = session.report("pretrain", &Trace::default(), &trace)?;
    if let (Some(first), Some(last)) = (trace.losses.first(), trace.losses.last()) {
        let speed = count_text(report.tokens_per_second.unwrap_or(0.0) as u64);
        let median = report.step_ms_median.unwrap_or(0.0);
        say!("loss {first:.4} to {last:.4}, {speed} tokens/s (median step {median:.1} ms)");
    }
    if let Some(documents) = &documents {
        tell(documents, job.rows.each);
    }
    let drawn = session.draw_memory();
    session.finish(&report, [saved, drawn], &mut keeper)
}
