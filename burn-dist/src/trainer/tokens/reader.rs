//! Texts as batches, as the command line says.

use super::held_out::HeldOut;
use super::texts::{Shape, Texts};
use crate::layout::Rows;
use crate::train::corpus::{Corpus, DataFile, Encode, Fields, Longer, Once, Policy, Source};
use crate::trainer::args::RowsArgs;
use crate::trainer::processes::Processes;
use crate::trainer::voice::say;

/// Makes rows of documents.
#[derive(Debug)]
pub struct Reader<'s> {
    /// How they become rows.
    pub args: &'s RowsArgs,
    /// The rows of a batch that this process holds.
    pub rows: Rows,
    /// Positions of a row.
    pub seq: usize,
    /// Seed of their order.
    pub seed: u64,
    /// The id that ends a text, which fills positions without a document too.
    pub end: u32,
    /// The name of what makes tokens of texts: it tells it from others.
    pub tokenizer: String,
    /// The processes that share the rows.
    pub processes: &'s Processes,
}

impl<'s> Reader<'s> {
    /// Rows without end; `longer` is what becomes of long documents unless the command line says.
    ///
    /// # Communication
    /// Processes compare what they have.
    /// # Errors
    /// As [`Texts::open`].
    pub fn open(
        &self,
        sources: Vec<Source>,
        longer: Longer,
        encode: impl Encode + 'static,
    ) -> anyhow::Result<Texts<'s>> {
        let corpus = Corpus::open(sources, self.policy(longer), encode)?;
        let corpus = corpus.identify("tokenizer", &self.tokenizer);
        Texts::open(corpus, self.shape(), self.processes)
    }

    /// All rows, once: it reads all documents to count them.
    ///
    /// # Errors
    /// As [`Once::open`].
    pub fn once(
        &self,
        sources: Vec<Source>,
        longer: Longer,
        encode: impl Encode + 'static,
    ) -> anyhow::Result<Once> {
        Ok(Once::open(sources, self.policy(longer), encode)?)
    }

    /// The rows of held-out documents, if there are any.
    ///
    /// # Errors
    /// As [`Once::open`], and if there is not even a batch of them.
    pub fn held_out(
        &self,
        sources: Vec<Source>,
        longer: Longer,
        encode: impl Encode + 'static,
    ) -> anyhow::Result<Option<HeldOut<'s>>> {
        if sources.is_empty() {
            return Ok(None);
        }
        let once = self.once(sources, longer, encode)?;
        let held_out = HeldOut::new(once, self.end, self.shape(), self.processes)?;
        Ok(Some(held_out))
    }

    fn policy(&self, longer: Longer) -> Policy {
        let args = self.args;
        Policy {
            packing: args.packing,
            longer: args.longer.unwrap_or(longer),
            shuffle_bytes: args.shuffle_buffer.0,
            seed: self.seed,
            pad: self.end,
            ..Policy::new(self.seq)
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            held: self.rows.clone(),
            seq: self.seq,
            document_mask: self.args.document_mask,
        }
    }
}

/// Returns these files and those of folders and patterns, of which `usual` fields are read where the command line names
/// none. Says what is there and not read.
///
/// # Errors
/// If there are none, one cannot be unpacked, or the format of one is not known.
pub fn sources(files: &[DataFile], usual: &Fields) -> anyhow::Result<Vec<Source>> {
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
