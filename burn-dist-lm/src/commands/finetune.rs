use std::collections::BTreeMap;

use burn::module::Module;
use burn_dist::train::corpus::{
    Document, Example, Fields, KINDS, Longer, Source, generate, sample,
};
use burn_dist::train::rng::Rng;
use burn_dist::train::tokenizer::Text;
use burn_dist::trainer::checkpoints::{Keeper, SoFar};
use burn_dist::trainer::exit::End;
use burn_dist::trainer::folder::Origin;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::processes::Processes;
use burn_dist::trainer::report::count_text;
use burn_dist::trainer::run::Trace;
use burn_dist::trainer::session::{Part, Session};
use burn_dist::trainer::tokens::{questions, sources};
use burn_dist::trainer::voice::say;

use super::job::{Columns, check_base, check_merged, job};
use super::texts::{self, reader};
use crate::cli::FinetuneArgs;
use crate::generate::{Answered, ask, exact_match};
use crate::model::Llama;

/// Generated questions, of which a run of the default length uses each once or twice.
const GENERATED: usize = 30_000;
/// Fine-tuning steps without `--steps`.
const STEPS: usize = 750;
/// Steps of a generated base model without `--base-steps`.
const BASE_STEPS: usize = 50;
/// The name of the second phase.
pub(super) const FINETUNE: &str = "finetune";
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
        Ok(sample(&all)?)
    }
}

pub(super) fn run(args: &FinetuneArgs) -> anyhow::Result<End> {
    let training = &args.training;
    let model = &training.model;
    let columns = Columns {
        weighted: true,
        packed: training.data.rows.document_mask,
    };
    let job = job(model, model.step.batch, columns)?;
    check_base(&job)?;
    check_merged(&job, training.save_merged)?;
    let origin = model.model.as_deref().map(Origin::read).transpose()?;
    let session = Session::start(&job, &model.step, &training.train, Some(MESH))?;
    session.run(
        || Ok(()),
        |keeper, metrics| finetune(args, &session, origin.as_ref(), keeper, metrics),
    )
}

fn finetune(
    args: &FinetuneArgs,
    session: &Session<'_, Llama>,
    origin: Option<&Origin>,
    mut keeper: Keeper,
    metrics: &RunMetrics,
) -> anyhow::Result<End> {
    // A run that was left in its second phase has its first behind it.
    let left = keeper
        .resumed()
        .filter(|left| left.phase == FINETUNE)
        .cloned();
    let (job, data) = (session.job, &args.training.data);
    let files = sources(&data.data, &Fields::Dialogue)?;
    let validate = sources(&data.validate, &Fields::Dialogue)?;
    let lessons = lessons(args, files, session.mesh.processes())?;
    let text = texts::text(job, true, || lessons.texts())?;
    let device = &session.mesh.inference_device();
    let base_steps = match args.base_steps {
        Some(steps) => steps,
        None if lessons.statements.is_none() || job.weights.is_some() => 0,
        None => BASE_STEPS,
    };
    let longer = Longer::Drop;
    let (seed, processes) = (session.step.seed, session.mesh.processes());
    let reader = reader((job, seed), data, &text, session.rows(), processes)?;
    let steps = session.steps(STEPS, || {
        let rows = reader.once(lessons.train.clone(), longer, text.encoder())?;
        Ok(Some(rows.num_rows()))
    })?;
    let chosen = [
        ("steps", steps),
        ("base-steps", base_steps),
        ("seq", job.rows.each),
    ];
    session.save_config(&mut keeper, metrics, &chosen)?;
    // All data is looked at before anything is computed with it: whether it fits is known at once.
    let held_out = lessons.questions(&text, job.rows.each)?;
    let base_source = match base_steps {
        0 => None,
        _ if left.is_some() => None,
        _ => {
            let encode = text.whole_encoder();
            let base = lessons.base();
            Some(reader.open(base, longer, encode)?)
        }
    };
    let (train_on, encode) = (lessons.train.clone(), text.encoder());
    let mut source = reader.open(train_on, longer, encode)?;
    let validate = reader.held_out(validate, longer, text.encoder())?;
    let validation = texts::held_out(session, data, validate)?;
    let validation = validation.map(|(source, batches)| session.validation(source, batches));

    let mut model = session.model(&mut keeper)?;
    let mut base = Trace::default();
    if let Some(mut source) = base_source {
        let part = Part {
            before: session.phase("pretrain"),
            steps: base_steps,
            validation: None,
            progress: None,
        };
        (model, base) = session.train(model, part, &mut source, &mut keeper, metrics)?;
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
        let before = SoFar {
            before: base.losses.clone(),
            meshes: base.meshes.clone(),
            exact_match: before,
            ..session.phase(FINETUNE)
        };
        let part = Part {
            before,
            steps,
            validation: validation.transpose()?,
            progress: None,
        };
        (model, trace) = session.train(model, part, &mut source, &mut keeper, metrics)?;
    }

    // Whatever becomes of the report, the model is kept.
    let saved = texts::save(session, &args.training, &model, Some(&text), origin);
    let mut report = session.report("finetune", &base, &trace)?;
    let mut answered = BTreeMap::from([("exact_match_before", before), ("exact_match", None)]);
    // Whatever becomes of the answers, there is a report.
    let asked = match report.interrupted {
        true => Ok(()),
        false => ask(&model.valid(), &text, &held_out, device).map(|answers| {
            let after = exact_match(&answers);
            answered.insert("exact_match", after);
            show(&answers);
            if let Some(after) = after {
                say!(
                    "after fine-tuning: {:.0} % of {num_questions} unseen questions right",
                    after * 100.0
                );
            }
        }),
    };
    let answered = answered.into_iter();
    report.more = answered.map(|(name, share)| (name, share.into())).collect();
    let drawn = session.draw_memory();
    session.finish(&report, [saved, asked, drawn], &mut keeper)
}

fn lessons(
    args: &FinetuneArgs,
    files: Vec<Source>,
    processes: &Processes,
) -> anyhow::Result<Lessons> {
    let seed = args.training.model.step.seed;
    if files.is_empty() {
        let data = generate(seed, GENERATED, args.questions)?;
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
    let mut rng = Rng::new(seed, 4);
    let (train, held_out) = questions(files, args.questions, &mut rng, processes)?;
    Ok(Lessons {
        statements: None,
        train,
        held_out,
    })
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
