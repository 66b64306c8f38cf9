use anyhow::bail;
use burn::module::AutodiffModule;

use super::End;
use super::session::Session;
use crate::cli::FinetuneArgs;
use crate::data::batch::Packed;
use crate::data::generate::{self as generated, KINDS};
use crate::data::rng::Rng;
use crate::data::tokenizer::{Encoded, Text, TokenizerError};
use crate::data::{Example, jsonl};
use crate::generate::{Answered, ask, exact_match};
use crate::mesh::TrainBackend;
use crate::model::Llama;
use crate::progress::Progress;
use crate::report::count_text;
use crate::say;
use crate::train::{self, Schedule, Trace};

/// Generated questions, of which a run of the default length uses each once or twice.
const GENERATED: usize = 60_000;
/// Fine-tuning steps without `--steps`.
const STEPS: usize = 2000;
/// Steps of a generated base model without `--base-steps`.
const BASE_STEPS: usize = 200;
/// Devices without `--mesh`.
const MESH: &str = "fsdp=2,tp=2";
/// Questions of each kind shown at the end.
const SHOWN_PER_KIND: usize = 2;

/// What there is to learn and to ask.
struct Lessons {
    /// Sentences for the base model; none of a file.
    statements: Vec<String>,
    train: Vec<Example>,
    held_out: Vec<Example>,
}

pub(super) fn run(args: &FinetuneArgs) -> anyhow::Result<End> {
    let session = Session::start(&args.train, Some(MESH))?;
    session.introduce();
    let plan = session.predict(true)?;
    let lessons = lessons(args)?;
    let words = |example: &'_ Example| format!("{} {}", example.prompt, example.response);
    let dialogue: Vec<String> = lessons.train.iter().map(words).collect();
    let text = session.text(
        lessons
            .statements
            .iter()
            .chain(&dialogue)
            .map(String::as_str),
    )?;
    let device = session.mesh.device();

    let mut model = session.model()?;
    let mut base = Trace::default();
    let base_steps = match args.base_steps {
        Some(steps) => steps,
        None if lessons.statements.is_empty() || args.train.model.model.is_some() => 0,
        None => BASE_STEPS,
    };
    if base_steps > 0 {
        // A file's own questions and answers as plain text serve as well.
        let statements = if lessons.statements.is_empty() {
            &dialogue
        } else {
            &lessons.statements
        };
        let documents = statements
            .iter()
            .map(|line| text.encode_text(line))
            .collect();
        (model, base) = phase(&session, "pretrain", model, documents, &text, base_steps)?;
    }

    let before = if base.interrupted {
        None
    } else {
        exact_match(&ask(&model.valid(), &text, &lessons.held_out, device)?)
    };
    let num_questions = lessons.held_out.len();
    if let Some(before) = before {
        say!(
            "before fine-tuning: {:.0} % of {num_questions} unseen questions right",
            before * 100.0
        );
    }
    let mut trace = Trace::default();
    if !base.interrupted {
        let steps = args.train.steps.unwrap_or(STEPS);
        let documents = lessons
            .train
            .iter()
            .map(|example| text.encode_example(example))
            .collect();
        (model, trace) = phase(&session, "finetune", model, documents, &text, steps)?;
    }

    let mut report = session.report("finetune", &base, &trace)?;
    report.exact_match_before = before;
    if !report.interrupted {
        let answers = ask(&model.valid(), &text, &lessons.held_out, device)?;
        report.exact_match = exact_match(&answers);
        show(&answers);
        if let Some(after) = report.exact_match {
            say!(
                "after fine-tuning: {:.0} % of {num_questions} unseen questions right",
                after * 100.0
            );
        }
    }
    let drawn = session.draw_memory(plan.as_ref());
    let end = session.finish(&report, &model, Some(&text))?;
    drawn.map(|()| end)
}

fn lessons(args: &FinetuneArgs) -> anyhow::Result<Lessons> {
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
            train: data.train,
            held_out: data.held_out,
        });
    };
    let mut examples = jsonl::read(path)?;
    if examples.len() < 2 {
        bail!(
            "{} holds one example: one to learn from and one to ask are needed",
            path.display()
        );
    }
    Rng::new(seed, 4).shuffle(&mut examples);
    // At most a tenth is kept for the questions.
    let num_held_out = args.questions.min((examples.len() / 10).max(1));
    let train = examples.split_off(num_held_out);
    say!(
        "read {} examples from {}, {num_held_out} kept for the questions",
        train.len() + num_held_out,
        path.display()
    );
    Ok(Lessons {
        statements: Vec::new(),
        train,
        held_out: examples,
    })
}

/// Trains on documents for a number of steps.
fn phase(
    session: &Session<'_>,
    name: &'static str,
    model: Llama<TrainBackend>,
    documents: Result<Vec<Encoded>, TokenizerError>,
    text: &Text,
    steps: usize,
) -> anyhow::Result<(Llama<TrainBackend>, Trace)> {
    let shape = &session.shape;
    let rng = Rng::new(session.args.model.seed, 2);
    let (source, left_out) = Packed::new(documents?, (shape.batch, shape.seq), text.end(), rng)?;
    let mut source = source.only(session.rows());
    if left_out > 0 {
        say!(
            "{left_out} examples are longer than {} tokens and left out: raise --seq to use them",
            shape.seq + 1
        );
    }
    train::run(
        model,
        &mut source,
        (Schedule::new(session.rate(), steps), session.recipe()),
        session.mesh.device(),
        &session.mesh,
        &Progress::new(name, steps),
        &session.stop,
    )
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
