use anyhow::bail;

use super::End;
use super::session::Session;
use crate::checkpoints::{self, Keeper};
use crate::cli::TrainArgs;
use crate::data::batch::{BatchSource, Packed, RandomTokens};
use crate::data::documents::Documents;
use crate::data::jsonl::Lines;
use crate::data::rng::Rng;
use crate::mesh::TrainBackend;
use crate::metrics::RunMetrics;
use crate::progress::Progress;
use crate::report::count_text;
use crate::say;
use crate::train::{self, Phase, Trace};

/// Steps without `--steps`: enough for a steady speed.
const STEPS: usize = 20;

pub(super) fn run(args: &TrainArgs) -> anyhow::Result<End> {
    if args.save.is_some() && args.data.is_none() && args.model.model.is_none() {
        bail!("--save needs a tokenizer to save with the model: give --data or --model");
    }
    let session = Session::start(args, None, false)?;
    session.introduce()?;
    let keeper = session.keeper()?;
    let metrics = session.metrics(&keeper)?;
    let end = pretrain(&session, keeper, &metrics);
    metrics.close(end)
}

fn pretrain(
    session: &Session<'_>,
    mut keeper: Keeper<TrainBackend>,
    metrics: &RunMetrics,
) -> anyhow::Result<End> {
    let args = session.args;
    let shape = &session.shape;
    let steps = args.schedule.steps.unwrap_or(STEPS);
    session.save_config(&keeper, &[("steps", steps)])?;
    let rng = Rng::new(args.model.seed, 2);

    let processes = session.mesh.processes();
    let lines = match &args.data {
        Some(path) => Some(Lines::open(path, processes)?),
        None => None,
    };
    let texts = || -> anyhow::Result<Vec<String>> {
        let lines = lines.iter();
        let all = lines.flat_map(|lines| (0..lines.num()).map(move |index| whole(lines, index)));
        all.collect()
    };
    let text = match lines.is_some() || args.model.model.is_some() {
        true => Some(session.text(texts)?),
        false => None,
    };
    let held_out = session.held_out()?;
    let mut source: Box<dyn BatchSource + '_> = match (&lines, &text) {
        (Some(lines), Some(text)) => {
            let documents = Documents::share(lines.mine(), processes, move |index| {
                Ok(text.encode_text(&whole(lines, index)?)?)
            })?;
            let shape = (shape.batch, shape.seq);
            let (source, left_out) =
                Packed::new(documents, 0..lines.num(), shape, text.end(), rng)?;
            say!(
                "{} texts from {}, {left_out} longer than --seq left out",
                lines.num(),
                lines.path().display()
            );
            Box::new(source.only(session.rows()))
        }
        _ => {
            say!(
                "random tokens from seed {}: a measurement, there is nothing to learn",
                args.model.seed
            );
            Box::new(RandomTokens {
                batch: shape.batch,
                seq: shape.seq,
                vocab: shape.config.vocab,
                rng,
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
        before: &checkpoints::SoFar::of("pretrain"),
        validation: held_out,
        metrics,
    };
    let (device, mesh) = (session.mesh.device(), &session.mesh);
    let model = session.model(&keeper)?;
    let (model, trace) = train::run(model, source.as_mut(), phase, device, mesh, &mut keeper)?;
    // Whatever becomes of the report, the model is kept.
    let saved = session.save(&model, text.as_ref());
    let report = session.report("pretrain", &Trace::default(), &trace)?;
    if let (Some(first), Some(last)) = (trace.losses.first(), trace.losses.last()) {
        let speed = count_text(report.tokens_per_second.unwrap_or(0.0) as u64);
        let median = report.step_ms_median.unwrap_or(0.0);
        say!("loss {first:.4} to {last:.4}, {speed} tokens/s (median step {median:.1} ms)");
    }
    let drawn = session.draw_memory();
    session.finish(&report, [saved, drawn], &mut keeper)
}

/// A question and its answer as one text.
fn whole(lines: &Lines, index: usize) -> anyhow::Result<String> {
    let example = lines.get(index)?;
    let text = format!("{} {}", example.prompt, example.response);
    Ok(text.trim().to_string())
}
