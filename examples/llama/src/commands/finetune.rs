use std::borrow::Cow;

use anyhow::bail;
use burn::module::AutodiffModule;

use super::End;
use super::session::Session;
use crate::checkpoints::{self, Keeper};
use crate::cli::FinetuneArgs;
use crate::data::batch::Packed;
use crate::data::documents::Documents;
use crate::data::generate::{self as generated, KINDS};
use crate::data::jsonl::Lines;
use crate::data::rng::Rng;
use crate::data::tokenizer::{Encoded, Text};
use crate::data::{Example, Examples};
use crate::generate::{Answered, ask, exact_match};
use crate::mesh::TrainBackend;
use crate::metrics::RunMetrics;
use crate::model::Llama;
use crate::processes::Processes;
use crate::progress::Progress;
use crate::report::count_text;
use crate::say;
use crate::train::{self, Phase, Trace};
use crate::validation::Validation;

/// Generated questions, of which a run of the default length uses each once or twice.
const GENERATED: usize = 60_000;
/// Fine-tuning steps without `--steps`.
const STEPS: usize = 2000;
/// Steps of a generated base model without `--base-steps`.
const BASE_STEPS: usize = 200;
/// The name of the second phase.
const FINETUNE: &str = "finetune";
/// Devices without `--mesh`.
const MESH: &str = "fsdp=2,tp=2";
/// Questions of each kind shown at the end.
const SHOWN_PER_KIND: usize = 2;

/// What there is to learn and to ask.
struct Lessons {
    /// Sentences for the base model, one for each example; none of a file.
    statements: Vec<String>,
    examples: Examples,
    /// The examples to learn from, in the order from which they are packed.
    train: Vec<usize>,
    held_out: Vec<Example>,
}

impl Lessons {
    /// A question and its answer as plain text.
    fn dialogue(&self, index: usize) -> anyhow::Result<String> {
        let example = self.examples.get(index)?;
        Ok(format!("{} {}", example.prompt, example.response))
    }

    /// What the base model learns: a file's own questions and answers serve as well as statements.
    fn statement(&self, index: usize) -> anyhow::Result<Cow<'_, str>> {
        match self.statements.get(index) {
            Some(statement) => Ok(statement.into()),
            None => Ok(self.dialogue(index)?.into()),
        }
    }

    /// The questions to ask: those that with their answers are no longer than what is trained on.
    fn questions(&self, text: &Text, seq: usize) -> anyhow::Result<Vec<Example>> {
        let mut asked = Vec::with_capacity(self.held_out.len());
        for example in &self.held_out {
            if text.encode_example(example)?.ids.len() <= seq + 1 {
                asked.push(example.clone());
            }
        }
        let left_out = self.held_out.len() - asked.len();
        if left_out > 0 {
            say!(
                "{left_out} questions are longer than {} tokens and not asked",
                seq + 1
            );
        }
        Ok(asked)
    }

    /// Everything that is said in training.
    fn texts(&self) -> anyhow::Result<Vec<String>> {
        let statements = self.statements.iter().cloned().map(Ok);
        let dialogue = self.train.iter().map(|index| self.dialogue(*index));
        statements.chain(dialogue).collect()
    }
}

pub(super) fn run(args: &FinetuneArgs) -> anyhow::Result<End> {
    let session = Session::start(&args.train, Some(MESH), true)?;
    session.introduce()?;
    let keeper = session.keeper()?;
    let metrics = session.metrics(&keeper)?;
    let end = finetune(args, &session, keeper, &metrics);
    metrics.close(end)
}

fn finetune(
    args: &FinetuneArgs,
    session: &Session<'_>,
    mut keeper: Keeper<TrainBackend>,
    metrics: &RunMetrics,
) -> anyhow::Result<End> {
    // A run that was left in its second phase has its first behind it.
    let left = keeper
        .resumed()
        .filter(|left| left.phase == FINETUNE)
        .cloned();
    let lessons = lessons(args, session.mesh.processes())?;
    let text = session.text(|| lessons.texts())?;
    let device = session.mesh.device();
    let base_steps = match args.base_steps {
        Some(steps) => steps,
        None if lessons.statements.is_empty() || args.train.model.model.is_some() => 0,
        None => BASE_STEPS,
    };
    let steps = args.train.schedule.steps.unwrap_or(STEPS);
    session.save_config(&keeper, &[("steps", steps), ("base-steps", base_steps)])?;
    // All data is looked at before anything is computed with it: whether it fits is known at once.
    let held_out = lessons.questions(&text, session.shape.seq)?;
    let base_source = match base_steps {
        0 => None,
        _ if left.is_some() => None,
        _ => Some(source(session, &lessons, text.end(), |index| {
            Ok(text.encode_text(&lessons.statement(index)?)?)
        })?),
    };
    let source = source(session, &lessons, text.end(), |index| {
        Ok(text.encode_example(&*lessons.examples.get(index)?)?)
    })?;

    let mut model = session.model(&keeper)?;
    let mut base = Trace::default();
    if let Some(source) = base_source {
        let before = checkpoints::SoFar::of("pretrain");
        let files = (&mut keeper, metrics);
        (model, base) = train(session, model, (before, base_steps), source, None, files)?;
    }

    let before = match &left {
        Some(left) => {
            base.losses.clone_from(&left.before);
            left.exact_match
        }
        None if base.interrupted => None,
        None => exact_match(&ask(&model.valid(), &text, &held_out, device)?),
    };
    let num_questions = held_out.len();
    if let Some(before) = before {
        say!(
            "before fine-tuning: {:.0} % of {num_questions} unseen questions right",
            before * 100.0
        );
    }
    let mut trace = Trace::default();
    if !base.interrupted {
        let before = checkpoints::SoFar {
            before: base.losses.clone(),
            exact_match: before,
            ..checkpoints::SoFar::of(FINETUNE)
        };
        let (held_out, files) = (session.held_out()?, (&mut keeper, metrics));
        (model, trace) = train(session, model, (before, steps), source, held_out, files)?;
    }

    // Whatever becomes of the report, the model is kept.
    let saved = session.save(&model, Some(&text));
    let mut report = session.report("finetune", &base, &trace)?;
    report.exact_match_before = before;
    if !report.interrupted {
        let answers = ask(&model.valid(), &text, &held_out, device)?;
        report.exact_match = exact_match(&answers);
        show(&answers);
        if let Some(after) = report.exact_match {
            say!(
                "after fine-tuning: {:.0} % of {num_questions} unseen questions right",
                after * 100.0
            );
        }
    }
    let drawn = session.draw_memory();
    session.finish(&report, [saved, drawn], &mut keeper)
}

fn lessons(args: &FinetuneArgs, processes: &Processes) -> anyhow::Result<Lessons> {
    let seed = args.train.model.seed;
    let Some(path) = &args.train.data else {
        let data = generated::generate(seed, GENERATED, args.questions);
        say!(
            "made {} questions with answers, and {} about facts that training never sees",
            count_text(data.train.len() as u64),
            data.held_out.len()
        );
        return Ok(Lessons {
            statements: data.statements,
            train: (0..data.train.len()).collect(),
            examples: Examples::Made(data.train),
            held_out: data.held_out,
        });
    };
    let lines = Lines::open(path, processes)?;
    let mut order: Vec<usize> = (0..lines.num()).collect();
    if order.len() < 2 {
        bail!(
            "{} holds one example: one to learn from and one to ask are needed",
            path.display()
        );
    }
    Rng::new(seed, 4).shuffle(&mut order);
    // At most a tenth is kept for the questions.
    let num_held_out = args.questions.min((order.len() / 10).max(1));
    let train = order.split_off(num_held_out);
    say!(
        "read {} examples from {}, {num_held_out} kept for the questions",
        lines.num(),
        path.display()
    );
    let held_out = order.into_iter().map(|index| lines.get(index));
    Ok(Lessons {
        statements: Vec::new(),
        train,
        held_out: held_out.collect::<Result<_, _>>()?,
        examples: Examples::Read(lines),
    })
}

/// The rows that are made of the lessons, as `encode` makes documents of them; `end` is the id that ends one.
fn source<'a>(
    session: &Session<'_>,
    lessons: &Lessons,
    end: u32,
    encode: impl Fn(usize) -> anyhow::Result<Encoded> + 'a,
) -> anyhow::Result<Packed<'a>> {
    let (processes, shape) = (session.mesh.processes(), &session.shape);
    let mine = lessons.examples.mine(processes);
    let (source, left_out) = Packed::new(
        Documents::share(mine, processes, encode)?,
        lessons.train.iter().copied(),
        (shape.batch, shape.seq),
        end,
        Rng::new(session.args.model.seed, 2),
    )?;
    if left_out > 0 {
        say!(
            "{left_out} examples are longer than {} tokens and left out: raise --seq to use them",
            shape.seq + 1
        );
    }
    Ok(source.only(session.rows()))
}

/// Trains for so many steps of a phase, and writes checkpoints and figures.
fn train(
    session: &Session<'_>,
    model: Llama<TrainBackend>,
    (before, steps): (checkpoints::SoFar, usize),
    mut source: Packed<'_>,
    validation: Option<Validation<'_>>,
    (keeper, metrics): (&mut Keeper<TrainBackend>, &RunMetrics),
) -> anyhow::Result<(Llama<TrainBackend>, Trace)> {
    let mesh = &session.mesh;
    let phase = Phase {
        schedule: session.schedule(steps),
        recipe: session.recipe(),
        progress: &Progress::new(&before.phase, steps, mesh.world_size()),
        stop: &session.stop,
        before: &before,
        validation,
        metrics,
    };
    train::run(model, &mut source, phase, mesh.device(), mesh, keeper)
}

/// Prints how many questions of each kind were answered right, and some of them with what the model said.
fn show(answers: &[Answered<'_>]) {
    let kinds = KINDS.iter().map(|kind| Some(*kind)).chain([None]);
    for kind in kinds {
        let of_kind: Vec<&Answered<'_>> = answers
            .iter()
            .filter(|answer| answer.example.kind == kind)
            .collect();
        if of_kind.is_empty() {
            continue;
        }
        let right = of_kind.iter().filter(|answer| answer.right()).count();
        say!(
            "\n{} {right}/{}",
            kind.unwrap_or("questions"),
            of_kind.len()
        );
        let shown = if kind.is_some() {
            SHOWN_PER_KIND
        } else {
            SHOWN_PER_KIND * KINDS.len()
        };
        // One that went wrong is shown if there is one: a page of right answers would flatter.
        let wrong = of_kind.iter().filter(|answer| !answer.right()).take(1);
        for answer in of_kind
            .iter()
            .filter(|answer| answer.right())
            .take(shown)
            .chain(wrong)
        {
            let example = answer.example;
            say!("  {}", example.prompt);
            if answer.right() {
                say!("    \u{2713} {}", answer.said);
            } else {
                say!(
                    "    \u{2717} {}   (right: {})",
                    answer.said,
                    example.response
                );
            }
        }
    }
    say!("");
}
