//! Texts as rows of tokens: read where they are, mixed, shuffled in a bounded buffer, packed, and resumed anywhere.
//!
//! A [`Corpus`] is [`Source`]s, a [`Policy`] and a tokenizer ([`Encode`]). It says what every row of a run is:
//!
//! > Row `i` is a function of the sources, their weights, the policy and the tokenizer. It depends neither on
//! > batches, nor on processes, nor on a mesh.
//!
//! So a run that is resumed in another number of processes, with another batch size, sees the rows that would have
//! followed: none is lost, none is repeated.
//!
//! **Lanes.** Row `i` is of lane `i mod lanes`. Each lane has its own share of each source (a range of its bytes, or of
//! its rows) and goes through it on its own. A process opens the lanes of the rows that it holds, and reads nothing
//! else: the part of the data that it reads is small where there are many more lanes than it has rows of a step, and
//! lanes and rows of a step are powers of two. Small data has one lane, which every process reads.
//!
//! **Blocks.** A lane reads a block of documents, tokenises them, shuffles them, packs them into rows, and hands these
//! out in a random order; then comes the next block. Orders are drawn from the seed and the number of the block. A
//! lane's position is where its block begins, and how many rows it has handed out since: to go on, one block is read
//! again.
//!
//! **Mixture.** Weights are shares of rows, and so of positions. They are exact to within one row at the end of each
//! round of lanes.
//!
//! ```
//! use std::sync::Arc;
//! use burn_dist_train::corpus::{Batches, Corpus, Document, EncodeError, Encoded, Part, Policy, Position, Source};
//!
//! // A tokenizer of bytes.
//! let encode = |document: &Document| -> Result<Encoded, EncodeError> {
//!     let (prompt, text) = match document {
//!         Document::Text(text) => ("", text),
//!         Document::Pair { prompt, response } => (prompt.as_str(), response),
//!         Document::Chat(messages) => ("", messages),
//!     };
//!     let ids = prompt.bytes().chain(text.bytes()).map(u32::from).chain([0]);
//!     Ok(Encoded::new(ids.collect(), prompt.len()))
//! };
//! let texts = |from: usize| -> Vec<Document> {
//!     (from..from + 100).map(|n| Document::Text(format!("text number {n}"))).collect()
//! };
//! let open = || {
//!     // Or `Source::file(path, Format::of(path)?)`.
//!     let sources = vec![
//!         Source::memory("some", texts(0)).weight(3.0),
//!         Source::memory("others", texts(1000)).weight(1.0),
//!     ];
//!     Corpus::open(sources, Policy::new(32), encode).map(Arc::new)
//! };
//!
//! // Three batches of four rows. The position is saved with the checkpoint.
//! let mut batches = Batches::new(open()?, Part::all(4), 2);
//! let rows: Vec<_> = (0..3).map(|_| batches.next_batch()).collect::<Result<_, _>>()?;
//! assert_eq!(rows.concat().iter().filter(|row| row.source == 0).count(), 9);
//! let saved = serde_json::to_string(&batches.position())?;
//! let next = batches.next_batch()?;
//!
//! // The second of two processes goes on, with two rows each.
//! let position: Position = serde_json::from_str(&saved)?;
//! let second = Part { batch: 4, held: vec![2..4] };
//! let mut batches = Batches::new(open()?, second, 2);
//! batches.resume(&position)?;
//! assert_eq!(batches.next_batch()?, next[2..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Held-out documents are gone through in order, each once: [`Once`].
//!
//! Not here: tokenizers, tensors, and what a process's rows are; the mesh says that.

mod archive;
mod batches;
mod choice;
mod counts;
mod data_file;
mod document;
mod documents;
mod error;
mod format;
mod generated;
mod lane;
mod mixture;
mod once;
mod pack;
mod packing;
mod policy;
mod position;
mod read;
mod row;
mod source;
mod stream;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;

use error::OF;

pub use batches::{Batches, Part};
pub use choice::UnknownChoice;
pub use counts::Counts;
pub use data_file::{DataFile, DataFileError, DataFilesError, Several};
pub use document::{Document, Encode, EncodeError, Encoded};
pub use documents::{Documents, sample};
pub use error::{CorpusError, Difference};
pub use format::{Bytes, Fields, Format, Split};
pub use generated::{Example, Generated, KINDS, TooFewQuestions, generate};
pub use once::{Once, Pass};
pub use policy::{DOCUMENT_BYTES_MAX, Longer, Packing, Policy, SHUFFLE_BYTES};
pub use position::Position;
pub use row::Row;
pub use source::{DocumentPlace, Source};
pub use stream::Stream;

/// Sources, a policy and a tokenizer: all that rows are a function of.
pub struct Corpus {
    sources: Vec<Source>,
    /// The end of the places of each.
    ends: Vec<u64>,
    shares: Vec<u64>,
    lanes: usize,
    block_bytes: u64,
    policy: Policy,
    encode: Box<dyn Encode>,
    identity: Vec<(String, String)>,
    /// True if documents are gone through in order, each once.
    once: bool,
}

impl Corpus {
    /// Opens the sources, and reads the first document of each.
    ///
    /// # Errors
    /// [`CorpusError`] if weights are no shares, a source cannot be read, or holds no document.
    pub fn open(
        sources: Vec<Source>,
        policy: Policy,
        encode: impl Encode + 'static,
    ) -> Result<Self, CorpusError> {
        if policy.seq == 0 {
            return Err(CorpusError::Seq { seq: 0 });
        }
        let weights: Vec<(&str, f64)> = sources
            .iter()
            .map(|source| (source.name(), source.weight))
            .collect();
        let shares = mixture::shares(&weights)?;
        let (mut ends, mut bytes) = (Vec::new(), 0);
        let mut identity = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            let mut reader = read::open(source, policy.document_bytes_max)?;
            let Some((_, first)) = reader.next()? else {
                return Err(CorpusError::Empty {
                    name: source.name.clone(),
                });
            };
            let whole = format!("source {}", number + 1);
            let left_out = match source.except.len() {
                0 => "none".to_string(),
                num => format!("{num} ({:016x})", hash(&format!("{:?}", source.except))),
            };
            let properties = [
                ("places", reader.end().to_string()),
                (
                    "first document",
                    format!("{:016x}", hash(&format!("{first:?}"))),
                ),
                ("fields", source.fields.to_string()),
                ("split", source.split.to_string()),
                ("documents left out", left_out),
                ("share", format!("{} %", mixture::percent(shares[number]))),
            ];
            let file = Path::new(&source.name).file_name();
            let name = file.map_or(source.name.clone(), |name| name.display().to_string());
            identity.push((whole.clone(), name));
            let named = |(what, value)| (format!("{what}{OF}{whole}"), value);
            identity.extend(properties.map(named));
            ends.push(reader.end());
            bytes += reader.bytes();
        }
        let lanes = policy.num_lanes(bytes, sources.len());
        let Policy {
            seq,
            packing,
            longer,
            shuffle_bytes,
            seed,
            pad,
            ..
        } = &policy;
        let of_policy = [
            ("sequence length", seq.to_string()),
            ("packing", packing.to_string()),
            ("treatment of longer documents", longer.to_string()),
            ("shuffle buffer", format!("{shuffle_bytes} bytes")),
            ("seed", seed.to_string()),
            ("id of padding", pad.to_string()),
            ("number of lanes", lanes.to_string()),
        ];
        identity.extend(of_policy.map(|(what, value)| (what.to_string(), value)));
        Ok(Self {
            block_bytes: policy.block_bytes(lanes, sources.len()),
            sources,
            ends,
            shares,
            lanes,
            policy,
            encode: Box::new(encode),
            identity,
            once: false,
        })
    }

    /// Adds what else tells these rows from others, such as a hash of the tokenizer.
    pub fn identify(mut self, what: &str, value: &str) -> Self {
        self.identity.push((what.to_string(), value.to_string()));
        self
    }

    /// Returns all that the rows are a function of, as names and values: processes that share a run have to have the
    /// same.
    pub fn identity(&self) -> &[(String, String)] {
        &self.identity
    }

    /// How rows are made.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How many lanes there are.
    pub fn num_lanes(&self) -> usize {
        self.lanes
    }

    /// The places of a source that a lane reads: its part, or all of them.
    fn share(&self, lane: usize, source: usize, whole: bool) -> Range<u64> {
        let end = self.ends[source];
        let border = |lane: usize| (u128::from(end) * lane as u128 / self.lanes as u128) as u64;
        match whole {
            true => 0..end,
            false => border(lane)..border(lane + 1),
        }
    }
}

/// Hashes text, the same on every machine (FNV-1a).
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
