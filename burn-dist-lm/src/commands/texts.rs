//! Texts as the command line names them: the rows made of them, what is held out, and the tokenizer; and the folder
//! that a model is saved to.

use anyhow::bail;
use burn::module::Module;
use burn_dist::layout::Rows;
use burn_dist::train::tokenizer::Text;
use burn_dist::trainer::args::TextArgs;
use burn_dist::trainer::folder::Origin;
use burn_dist::trainer::job::Job;
use burn_dist::trainer::lora;
use burn_dist::trainer::processes::Processes;
use burn_dist::trainer::session::{HeldOutRows, Session};
use burn_dist::trainer::tokens::{Batch, HeldOut, Reader};
use burn_dist::trainer::voice::{note, say};

use super::job::random;
use crate::cli::TrainingArgs;
use crate::hf;
use crate::model::Llama;

/// Batches of random tokens that are held out, where there is no data.
pub(super) const RANDOM_BATCHES: usize = 4;

/// Returns what makes rows of documents, of which this process holds `rows`.
pub(super) fn reader<'s>(
    (job, seed): (&Job<Llama>, u64),
    data: &'s TextArgs,
    text: &Text,
    rows: Rows,
    processes: &'s Processes,
) -> anyhow::Result<Reader<'s>> {
    Ok(Reader {
        args: &data.rows,
        rows,
        seq: job.rows.each,
        seed,
        end: text.end(),
        tokenizer: text.fingerprint()?,
        processes,
    })
}

/// Returns the held-out rows for validation, if the command line asks for it; random tokens, where there are no texts.
///
/// # Errors
/// If there is nothing to hold out.
pub(super) fn held_out<'h>(
    session: &Session<'_, Llama>,
    data: &TextArgs,
    texts: Option<HeldOut<'h>>,
) -> anyhow::Result<Option<HeldOutRows<'h, Batch>>> {
    if let Some(texts) = texts {
        texts.tell();
        let batches = texts.num_batches();
        return Ok(Some((Box::new(texts), batches)));
    }
    if session.args.run.validate_every.is_none() {
        return Ok(None);
    }
    if !data.data.is_empty() {
        bail!("--validate-every needs rows that are held out: give --validate");
    }
    // Training draws from another stream.
    let source = random(session.job, (session.step.seed, 5), session.rows());
    Ok(Some((Box::new(source), RANDOM_BATCHES)))
}

/// A tokenizer trained at the start stays small: its training grows with the vocabulary.
const MAX_TRAINED_VOCAB: usize = 2048;

/// The tokenizer of the model's folder, whose description is printed if that is wanted; or one trained on `texts`: on
/// all of them, in every process.
pub(super) fn text(
    job: &Job<Llama>,
    is_described: bool,
    texts: impl FnOnce() -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<Text> {
    let rows = job.config.vocab;
    match &job.weights {
        Some(folder) => {
            let text = Text::of_model(&folder.path, rows)?;
            if is_described {
                say!("{}", text.description());
            }
            Ok(text)
        }
        None => Ok(Text::train(
            texts()?.iter().map(String::as_str),
            rows.min(MAX_TRAINED_VOCAB),
        )?),
    }
}

/// Writes the model to the folder of `--save`, if there is one: its adapters alone, if it has some and they are not to
/// be merged.
///
/// # Communication
/// All processes read all parameters, and learn how it ended.
/// # Errors
/// If a parameter cannot be read, or a file not be written.
pub(super) fn save(
    session: &Session<'_, Llama>,
    args: &TrainingArgs,
    model: &Llama,
    text: Option<&Text>,
    origin: Option<&Origin>,
) -> anyhow::Result<()> {
    let (Some(dir), Some(text)) = (args.save.as_deref(), text) else {
        return Ok(());
    };
    let (job, device) = (session.job, session.mesh.device());
    let (what, found) = match job.config.adapters.as_ref() {
        Some(adapters) if !args.save_merged => {
            let of = (adapters, job.name.as_str());
            ("adapters", lora::save(model, &job.config, of, dir, device)?)
        }
        Some(_) => {
            let merged = model.clone().materialize();
            (
                "model",
                hf::save(&merged, &job.config, text, origin, dir, device)?,
            )
        }
        None => (
            "model",
            hf::save(model, &job.config, text, origin, dir, device)?,
        ),
    };
    if let Some(found) = found {
        note!("warning: the {what} in {} has {found}", dir.display());
    }
    say!("{what}: {}", dir.display());
    Ok(())
}
