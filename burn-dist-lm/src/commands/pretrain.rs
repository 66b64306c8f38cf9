use anyhow::bail;
use burn_dist::train::corpus::{Fields, Longer};
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::checkpoints::Keeper;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::report::count_text;
use burn_dist::trainer::run::{self, Phase, Trace};
use burn_dist::trainer::voice::say;

use super::session::Session;
use super::texts;
use crate::cli::TrainArgs;
use crate::data;
use crate::data::batch::{Batch, RandomTokens};
use crate::data::rng::Rng;

/// Steps without `--steps`: enough for a steady speed.
const STEPS: usize = 20;

pub(super) fn run(args: &TrainArgs) -> anyhow::Result<End> {
    if args.save.is_some() && args.data.data.is_empty() && args.model.model.is_none() {
        bail!("--save needs a tokenizer to save with the model: give --data or --model");
    }
    let session = Session::start(args, None, !args.data.data.is_empty())?;
    session.introduce()?;
    texts::check(&session)?;
    let keeper = session.keeper()?;
    let metrics = session.metrics(&keeper)?;
    let end = pretrain(&session, keeper, &metrics);
    metrics.close(end)
}

fn pretrain(
    session: &Session<'_>,
    mut keeper: Keeper,
    metrics: &RunMetrics,
) -> anyhow::Result<End> {
    let args = session.args;
    let steps = args.schedule.steps.unwrap_or(STEPS);
    session.save_config(&mut keeper, metrics, &[("steps", steps)])?;
    let sources = texts::sources(&args.data.data, &Fields::Usual)?;
    let held_out = texts::sources(&args.data.validate, &Fields::Usual)?;
    let text = match !sources.is_empty() || args.model.model.is_some() {
        true => Some(session.text(|| Ok(data::sample(&sources)?))?),
        false => None,
    };
    let (mut documents, mut random) = (None, None);
    let mut validate = None;
    let source: &mut dyn BatchSource<Batch = Batch> = match &text {
        Some(text) if !sources.is_empty() => {
            let longer = Longer::Split;
            let encode = text.whole_encoder();
            let opened = texts::open(session, sources, text, longer, encode)?;
            validate = texts::held_out(session, held_out, text, longer, text.whole_encoder())?;
            documents.insert(opened)
        }
        _ => {
            say!(
                "random tokens from seed {}: a measurement, there is nothing to learn",
                args.model.seed
            );
            random.insert(RandomTokens {
                batch: session.shape.batch,
                seq: session.shape.seq,
                vocab: session.shape.config.vocab,
                rng: Rng::new(args.model.seed, 2),
                held: session.rows(),
            })
        }
    };
    let progress = Progress::new("pretrain", steps, session.mesh.world_size());
    let phase = Phase {
        schedule: session.schedule(steps),
        recipe: session.recipe(),
        progress: &progress,
        stop: &session.stop,
        before: &session.phase("pretrain"),
        validation: session.validation(validate)?,
        metrics,
    };
    let (device, mesh) = (session.mesh.device(), &session.mesh);
    let model = session.model(&mut keeper)?;
    let (model, trace) = run::run(model, source, phase, device, mesh, &mut keeper)?;
    // Whatever becomes of the report, the model is kept.
    let saved = session.save(&model, text.as_ref());
    let report = session.report("pretrain", &Trace::default(), &trace)?;
    if let (Some(first), Some(last)) = (trace.losses.first(), trace.losses.last()) {
        let speed = count_text(report.tokens_per_second.unwrap_or(0.0) as u64);
        let median = report.step_ms_median.unwrap_or(0.0);
        say!("loss {first:.4} to {last:.4}, {speed} tokens/s (median step {median:.1} ms)");
    }
    if let Some(documents) = &documents {
        texts::tell(documents, session.shape.seq);
    }
    let drawn = session.draw_memory();
    session.finish(&report, [saved, drawn], &mut keeper)
}
