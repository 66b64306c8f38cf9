use anyhow::bail;
use burn::module::Module;
use burn_dist::train::corpus::{
    DOCUMENT_BYTES_MAX, Document, DocumentPlace, Fields, Longer, Source,
};
use burn_dist::trainer::checkpoints::{self, Keeper};
use burn_dist::trainer::exit::End;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::processes::Processes;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::report::count_text;
use burn_dist::trainer::run::{self, Phase, Trace};
use burn_dist::trainer::validation::Validation;
use burn_dist::trainer::voice::say;

use super::session::Session;
use super::texts;
use crate::cli::FinetuneArgs;
use crate::data::batch::Batch;
use crate::data::generate::{self as generated, KINDS};
use crate::data::rng::Rng;
use crate::data::texts::Texts;
use crate::data::tokenizer::Text;
use crate::data::{self, Example};
use crate::generate::{Answered, ask, exact_match};
use crate::model::Llama;

/// Generated questions, of which a run of the default length uses each once or twice.
const GENERATED: usize = 30_000;
/// Fine-tuning steps without `--steps`.
const STEPS: usize = 750;
/// Steps of a generated base model without `--base-steps`.
const BASE_STEPS: usize = 50;
/// The name of the second phase.
const FINETUNE: &str = "finetune";
/// Devices without `--mesh`.
const MESH: &str = "fsdp=2,tp=2";
/// Questions of each kind shown at the end.
const SHOWN_PER_KIND: usize = 2;

/// The lessons to learn, and the questions to ask.
struct Lessons {
    /// Sentences for the base model; none of files, whose questions and answers serve as well.
    statements: Option<Source>,
    /// The questions and answers to learn from.
    train: Vec<Source>,
    held_out: Vec<Example>,
}

impl Lessons {
    /// Returns the texts that the base model learns.
    fn base(&self) -> Vec<Source> {
        let statements = self.statements.clone();
        statements.map_or_else(|| self.train.clone(), |source| vec![source])
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

    /// Returns the texts of all of the training, enough for a tokenizer.
    fn texts(&self) -> anyhow::Result<Vec<String>> {
        let all: Vec<Source> = self.statements.iter().chain(&self.train).cloned().collect();
        Ok(data::sample(&all)?)
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
    mut keeper: Keeper,
    metrics: &RunMetrics,
) -> anyhow::Result<End> {
    // A run that was left in its second phase has its first behind it.
    let left = keeper
        .resumed()
        .filter(|left| left.phase == FINETUNE)
        .cloned();
    let files = texts::sources(&args.train.data.data, &Fields::pair())?;
    let validate = texts::sources(&args.train.data.validate, &Fields::pair())?;
    let lessons = lessons(args, files, session.mesh.processes())?;
    let text = session.text(|| lessons.texts())?;
    let device = &session.mesh.inference_device();
    let base_steps = match args.base_steps {
        Some(steps) => steps,
        None if lessons.statements.is_none() || args.train.model.model.is_some() => 0,
        None => BASE_STEPS,
    };
    let steps = args.train.schedule.steps.unwrap_or(STEPS);
    session.save_config(
        &mut keeper,
        metrics,
        &[("steps", steps), ("base-steps", base_steps)],
    )?;
    // All data is looked at before anything is computed with it: whether it fits is known at once.
    let held_out = lessons.questions(&text, session.shape.seq)?;
    let base_source = match base_steps {
        0 => None,
        _ if left.is_some() => None,
        _ => {
            let encode = text.whole_encoder();
            let base = lessons.base();
            Some(texts::open(session, base, &text, Longer::Drop, encode)?)
        }
    };
    let (train_on, encode) = (lessons.train.clone(), text.encoder());
    let source = texts::open(session, train_on, &text, Longer::Drop, encode)?;
    let validate = texts::held_out(session, validate, &text, Longer::Drop, text.encoder())?;
    let validation = session.validation(validate)?;

    let mut model = session.model(&mut keeper)?;
    let mut base = Trace::default();
    if let Some(source) = base_source {
        let before = session.phase("pretrain");
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
            meshes: base.meshes.clone(),
            exact_match: before,
            ..session.phase(FINETUNE)
        };
        let files = (&mut keeper, metrics);
        (model, trace) = train(session, model, (before, steps), source, validation, files)?;
    }

    // Whatever becomes of the report, the model is kept.
    let saved = session.save(&model, Some(&text));
    let mut report = session.report("finetune", &base, &trace)?;
    report.exact_match_before = before;
    // Whatever becomes of the answers, there is a report.
    let asked = match report.interrupted {
        true => Ok(()),
        false => ask(&model.valid(), &text, &held_out, device).map(|answers| {
            report.exact_match = exact_match(&answers);
            show(&answers);
            if let Some(after) = report.exact_match {
                say!(
                    "after fine-tuning: {:.0} % of {num_questions} unseen questions right",
                    after * 100.0
                );
            }
        }),
    };
    let drawn = session.draw_memory();
    session.finish(&report, [saved, asked, drawn], &mut keeper)
}

fn lessons(
    args: &FinetuneArgs,
    files: Vec<Source>,
    processes: &Processes,
) -> anyhow::Result<Lessons> {
    let seed = args.train.model.seed;
    if files.is_empty() {
        let data = generated::generate(seed, GENERATED, args.questions)?;
        say!(
            "made {} questions with answers, and {} about facts that training never sees",
            count_text(data.train.len() as u64),
            data.held_out.len()
        );
        let statements: Vec<_> = data.statements.into_iter().map(Document::Text).collect();
        let train: Vec<_> = data.train.iter().map(Document::from).collect();
        return Ok(Lessons {
            statements: Some(Source::memory("statements", statements)),
            train: vec![Source::memory("questions", train)],
            held_out: data.held_out,
        });
    }
    // A pass over the files, to know how many examples there are: each process reads all of them.
    let mut examples: Vec<(usize, DocumentPlace)> = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let documents = file.documents(DOCUMENT_BYTES_MAX)?;
        let places = documents.map(|found| match found? {
            (place, Document::Pair { .. }) => Ok((number, place)),
            (_, Document::Text(_)) => bail!(
                "{} holds texts, and finetune learns from questions and answers: give it lines or rows with a prompt \
                 and a response",
                file.name()
            ),
        });
        examples.extend(processes.in_turns(places)??);
    }
    let num = examples.len();
    let names: Vec<&str> = files.iter().map(Source::name).collect();
    if num < 2 {
        bail!(
            "{} holds {num} examples: one to learn from and one to ask are needed",
            names.join(", ")
        );
    }
    Rng::new(seed, 4).shuffle(&mut examples);
    // At most a tenth is kept for the questions.
    examples.truncate(args.questions.min((num / 10).max(1)));
    say!(
        "read {num} examples from {}, {} kept for the questions",
        names.join(", "),
        examples.len()
    );
    let held_out = examples.iter().map(|(number, place)| {
        let document = files[*number].document(*place, DOCUMENT_BYTES_MAX)?;
        let Document::Pair { prompt, response } = document else {
            unreachable!("all documents were pairs");
        };
        anyhow::Ok(Example {
            kind: None,
            prompt,
            response,
        })
    });
    let held_out = held_out.collect::<Result<_, _>>()?;
    let rest = files.into_iter().enumerate().map(|(number, file)| {
        let asked = examples.iter().filter(|(of, _)| *of == number);
        file.except(asked.map(|(_, place)| *place))
    });
    Ok(Lessons {
        statements: None,
        train: rest.collect(),
        held_out,
    })
}

/// Trains for so many steps of a phase, and writes checkpoints and figures.
fn train(
    session: &Session<'_>,
    model: Llama,
    (before, steps): (checkpoints::SoFar, usize),
    mut source: Texts<'_>,
    validation: Option<Validation<'_, Batch>>,
    (keeper, metrics): (&mut Keeper, &RunMetrics),
) -> anyhow::Result<(Llama, Trace)> {
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
    let trained = run::run(model, &mut source, phase, mesh.device(), mesh, keeper)?;
    texts::tell(&source, session.shape.seq);
    Ok(trained)
}

/// Prints how many questions of each kind were answered right, and some of them with the model's answers.
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
