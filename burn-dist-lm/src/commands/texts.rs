//! Texts as the command line names them: their files, the rows made of them, what is held out, and the tokenizer; and
//! the folders that models come from and are saved to.

use std::path::Path;

use anyhow::bail;
use burn_dist::layout::Rows;
use burn_dist::train::corpus::{Fields, Source};
use burn_dist::trainer::job::Job;
use burn_dist::trainer::processes::Processes;
use burn_dist::trainer::session::Session;
use burn_dist::trainer::tokens::{Batch, HeldOut, Reader};
use burn_dist::trainer::validation::Validation;
use burn_dist::trainer::voice::{note, say};

use super::job::random;
use crate::cli::DataArgs;
use crate::data::file::DataFile;
use crate::data::tokenizer::Text;
use crate::hf::{self, Origin};
use crate::model::Llama;

/// Batches of random tokens that are held out, where there is no data.
pub(super) const RANDOM_BATCHES: usize = 4;

/// These files and those of folders and patterns, of which `usual` fields are read where the command line names none.
/// Says what is there and not read.
///
/// # Errors
/// If there are none, one cannot be unpacked, or the format of one is not known.
pub(super) fn sources(files: &[DataFile], usual: &Fields) -> anyhow::Result<Vec<Source>> {
    let mut all = Vec::with_capacity(files.len());
    for file in files {
        let (sources, left_out) = file.sources()?;
        if !left_out.is_empty() {
            say!(
                "of {}, what is not in the format is left out: {}",
                file.path.display(),
                left_out.join(", ")
            );
        }
        all.extend(sources.into_iter().map(|source| match file.fields {
            Fields::Usual => source.fields(usual.clone()),
            _ => source,
        }));
    }
    Ok(all)
}

/// Returns what makes rows of documents, of which this process holds `rows`.
pub(super) fn reader<'s>(
    (job, seed): (&Job<Llama>, u64),
    data: &'s DataArgs,
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

/// Returns the held-out texts for validation, if the command line asks for it; random tokens, where there are no texts.
///
/// # Errors
/// If there is nothing to hold out.
pub(super) fn validation<'h>(
    session: &Session<'_, Llama>,
    data: &DataArgs,
    held_out: Option<HeldOut<'h>>,
) -> anyhow::Result<Option<Validation<'h, Batch>>> {
    if let Some(held_out) = held_out {
        held_out.tell();
        let batches = held_out.num_batches();
        return session.validation(Box::new(held_out), batches).map(Some);
    }
    if session.args.run.validate_every.is_none() {
        return Ok(None);
    }
    if !data.data.is_empty() {
        bail!("--validate-every needs rows that are held out: give --validate");
    }
    // Training draws from another stream.
    let source = random(session.job, (session.step.seed, 5), session.rows());
    session
        .validation(Box::new(source), RANDOM_BATCHES)
        .map(Some)
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
            let text = read_text(&folder.path, rows)?;
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

/// Reads a model folder's tokenizer and compares it with the `rows` of the model's embedding.
pub(super) fn read_text(dir: &Path, rows: usize) -> anyhow::Result<Text> {
    let path = dir.join("tokenizer.json");
    let text = Text::read(&path, &hf::read_tokens(dir)?)?;
    if text.vocab() > rows {
        bail!(
            "{} has {} tokens, and the model's embedding has {rows} rows: they do not belong together",
            path.display(),
            text.vocab(),
        );
    }
    if let Some(id) = text.ends().iter().find(|id| **id as usize >= rows) {
        bail!(
            "answers of the model in {} end with id {id}, and its embedding has {rows} rows: correct eos_token_id",
            dir.display(),
        );
    }
    Ok(text)
}

/// Writes the model to the folder of `--save`, if there is one.
///
/// # Communication
/// All processes read all parameters, and learn how it ended.
/// # Errors
/// If a parameter cannot be read, or a file not be written.
pub(super) fn save(
    session: &Session<'_, Llama>,
    dir: Option<&Path>,
    model: &Llama,
    text: Option<&Text>,
    origin: Option<&Origin>,
) -> anyhow::Result<()> {
    let (Some(dir), Some(text)) = (dir, text) else {
        return Ok(());
    };
    let device = session.mesh.device();
    if let Some(found) = hf::save(model, &session.job.config, text, origin, dir, device)? {
        note!("warning: the model in {} has {found}", dir.display());
    }
    say!("model: {}", dir.display());
    Ok(())
}
