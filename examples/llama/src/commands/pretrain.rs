use anyhow::bail;

use super::End;
use super::session::Session;
use crate::cli::TrainArgs;
use crate::data::batch::{BatchSource, Packed, RandomTokens};
use crate::data::rng::Rng;
use crate::data::tokenizer::Text;
use crate::data::{Example, jsonl};
use crate::progress::Progress;
use crate::report::count_text;
use crate::say;
use crate::train::{self, Schedule, Trace};

/// Steps without `--steps`: enough for a steady speed.
const STEPS: usize = 20;

pub(super) fn run(args: &TrainArgs) -> anyhow::Result<End> {
    let session = Session::start(args, None)?;
    session.introduce();
    let plan = session.predict(false)?;
    let shape = &session.shape;
    let rng = Rng::new(args.model.seed, 2);

    let (mut source, text): (Box<dyn BatchSource>, Option<Text>) = match &args.data {
        Some(path) => {
            let texts: Vec<String> = jsonl::read(path)?.iter().map(whole).collect();
            let text = session.text(texts.iter().map(String::as_str))?;
            let documents = texts
                .iter()
                .map(|line| text.encode_text(line))
                .collect::<Result<_, _>>()?;
            let (source, left_out) =
                Packed::new(documents, (shape.batch, shape.seq), text.end(), rng)?;
            let source = source.only(session.rows());
            say!(
                "{} texts from {}, {left_out} longer than --seq left out",
                texts.len(),
                path.display()
            );
            (Box::new(source), Some(text))
        }
        None => {
            let (batch, seq) = (shape.batch, shape.seq);
            let text = if args.model.model.is_some() {
                Some(session.text(std::iter::empty())?)
            } else {
                None
            };
            say!(
                "random tokens from seed {}: a measurement, there is nothing to learn",
                args.model.seed
            );
            (
                Box::new(RandomTokens {
                    batch,
                    seq,
                    vocab: shape.config.vocab,
                    rng,
                    held: session.rows(),
                }),
                text,
            )
        }
    };
    if args.save.is_some() && text.is_none() {
        bail!("--save needs a tokenizer to save with the model: give --data or --model");
    }

    let steps = args.steps.unwrap_or(STEPS);
    let (model, trace) = train::run(
        session.model()?,
        source.as_mut(),
        (Schedule::new(session.rate(), steps), session.recipe()),
        session.mesh.device(),
        &session.mesh,
        &Progress::new("pretrain", steps),
        &session.stop,
    )?;
    let report = session.report("pretrain", &Trace::default(), &trace)?;
    if let (Some(first), Some(last)) = (trace.losses.first(), trace.losses.last()) {
        let speed = count_text(report.tokens_per_second.unwrap_or(0.0) as u64);
        let median = report.step_ms_median.unwrap_or(0.0);
        say!("loss {first:.4} to {last:.4}, {speed} tokens/s (median step {median:.1} ms)");
    }
    let drawn = session.draw_memory(plan.as_ref());
    let end = session.finish(&report, &model, text.as_ref())?;
    drawn.map(|()| end)
}

/// A question and its answer as one text.
fn whole(example: &Example) -> String {
    format!("{} {}", example.prompt, example.response)
        .trim()
        .to_string()
}
