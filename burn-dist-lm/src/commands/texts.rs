//! Texts as the command line names them: their files, the rows made of them, and what is held out.

use anyhow::bail;
use burn_dist::train::corpus::{Corpus, Encode, Fields, Longer, Once, Policy, Source};
use burn_dist::trainer::report::count_text;
use burn_dist::trainer::voice::say;

use super::session::Session;
use crate::data::file::DataFile;
use crate::data::held_out::HeldOut;
use crate::data::texts::{Shape, Texts};
use crate::data::tokenizer::Text;

/// These files and those of folders and patterns, of which `usual` fields are read where the command line names none. Says
/// what is there and not read.
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

/// Rows of documents for this session; `longer` is what becomes of long ones unless the command line says.
pub(super) fn open<'s>(
    session: &'s Session<'_>,
    sources: Vec<Source>,
    text: &Text,
    longer: Longer,
    encode: impl Encode + 'static,
) -> anyhow::Result<Texts<'s>> {
    let corpus = Corpus::open(sources, policy(session, text, longer), encode)?;
    let corpus = corpus.identify("tokenizer", &text.fingerprint()?);
    Texts::open(corpus, shape(session), session.mesh.processes())
}

/// The rows of held-out documents, if there are any.
pub(super) fn held_out<'s>(
    session: &'s Session<'_>,
    sources: Vec<Source>,
    text: &Text,
    longer: Longer,
    encode: impl Encode + 'static,
) -> anyhow::Result<Option<HeldOut<'s>>> {
    if sources.is_empty() {
        return Ok(None);
    }
    let once = Once::open(sources, policy(session, text, longer), encode)?;
    let counts = once.counts();
    let held_out = HeldOut::new(once, text.end(), shape(session), session.mesh.processes())?;
    say!(
        "held out: {} documents in {} batches",
        count_text(counts.documents),
        held_out.num_batches()
    );
    Ok(Some(held_out))
}

fn policy(session: &Session<'_>, text: &Text, longer: Longer) -> Policy {
    let data = &session.args.data;
    Policy {
        packing: data.packing,
        longer: data.longer.unwrap_or(longer),
        shuffle_bytes: data.shuffle_buffer.0,
        seed: session.args.model.seed,
        pad: text.end(),
        ..Policy::new(session.shape.seq)
    }
}

fn shape(session: &Session<'_>) -> Shape {
    Shape {
        held: session.rows(),
        seq: session.shape.seq,
        document_mask: session.args.data.document_mask,
    }
}

/// Says what became of the documents that this process has read, and how long it has waited for their rows.
pub(super) fn tell(texts: &Texts<'_>, seq: usize) {
    let counts = texts.counts();
    let mut told = format!("{} documents read", count_text(counts.documents));
    for (count, what) in [(counts.split, "split"), (counts.dropped, "left out")] {
        if count > 0 {
            told += &format!(
                ", {} longer than {} tokens {what}",
                count_text(count),
                seq + 1
            );
        }
    }
    say!(
        "{told}; {:.1} % of positions are padding; {} ms of waiting for batches",
        counts.waste() * 100.0,
        texts.waited().as_millis()
    );
}

/// Options about texts need texts.
///
/// # Errors
/// If there is one without `--data`.
pub(super) fn check(session: &Session<'_>) -> anyhow::Result<()> {
    let data = &session.args.data;
    if data.data.is_empty() && data.document_mask {
        bail!(
            "--document-mask hides documents from each other, and random tokens have none: give --data"
        );
    }
    Ok(())
}
