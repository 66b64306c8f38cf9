use std::{fmt, io};

use thiserror::Error;

/// Between a property and what it is of, in the names of an identity.
pub(super) const OF: &str = " of ";

/// Something that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The thing that is different.
    pub what: String,
    /// Its value in the position.
    pub expected: String,
    /// Its value now.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            expected,
            found,
        } = self;
        write!(f, "{what} was {expected}, and is {found}")
    }
}

/// Data of which no rows can be made. Lines and rows of a file are counted from 1.
#[derive(Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// There is nothing to read.
    #[error("a corpus of no sources has no rows: name a file")]
    NoSources,
    /// A weight is no share.
    #[error("{name} has weight {weight}: weights are finite and at least 0")]
    Weight {
        /// The source.
        name: String,
        /// Its weight.
        weight: f64,
    },
    /// No source has a share.
    #[error("the weights of {names} sum to 0: give one of them a weight above 0")]
    ZeroWeights {
        /// The sources.
        names: String,
    },
    /// Rows without positions.
    #[error("rows of {seq} positions hold nothing to predict: at least 1 is needed")]
    Seq {
        /// Positions of a row.
        seq: usize,
    },
    /// The name of a file does not tell what is in it.
    #[error(
        "what {name} holds is not known: files end in .jsonl, .ndjson, .json, .parquet, .txt, .text or .md, and .gz or \
         .zst behind it if they are packed, or the format is given (jsonl, parquet or text)"
    )]
    Format {
        /// The file.
        name: String,
    },
    /// A source cannot be opened or read.
    #[error("cannot read {name}: {error}")]
    Io {
        /// The source.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// The system starts no thread to make batches.
    #[error(
        "cannot start a thread that makes batches: {reason} (how many a user may have, `ulimit -u` says)"
    )]
    Thread {
        /// Why not.
        reason: String,
    },
    /// A document cannot be understood.
    #[error("{place}: {reason}")]
    Malformed {
        /// The source, and the line or row.
        place: String,
        /// Why, and what was expected.
        reason: String,
    },
    /// There is no document in a source.
    #[error("{name}: no documents: it holds nothing but white space")]
    Empty {
        /// The source.
        name: String,
    },
    /// A text that is not in UTF-8, as the mark before it says.
    #[error("{name} is in {encoding}, and texts are read in UTF-8: write it anew in that")]
    Encoding {
        /// The source.
        name: String,
        /// The encoding that the mark is of.
        encoding: &'static str,
    },
    /// A document takes more memory than allowed.
    #[error(
        "{name}: the document at byte {at} is longer than {limit} bytes: is each line a document? Otherwise allow \
         more bytes"
    )]
    TooLarge {
        /// The source.
        name: String,
        /// Where it begins.
        at: u64,
        /// The most that is allowed.
        limit: usize,
    },
    /// The tokenizer failed.
    #[error("{place}: cannot be tokenised: {reason}")]
    Encode {
        /// The source, and the line or row.
        place: String,
        /// Why.
        reason: String,
    },
    /// A document does not fit into a row, which is refused.
    #[error(
        "{place}: {tokens} tokens do not fit into {seq} positions: raise the sequence length, or have longer \
         documents split or dropped"
    )]
    Longer {
        /// The source, and the line or row.
        place: String,
        /// Tokens of the document.
        tokens: usize,
        /// Positions of a row.
        seq: usize,
    },
    /// All documents are left out.
    #[error(
        "{name}: none of {count} documents fits into {seq} positions (the shortest has {shortest} tokens): raise \
         the sequence length, or have longer documents split"
    )]
    NoneFits {
        /// The source.
        name: String,
        /// How many documents there are.
        count: u64,
        /// Positions of a row.
        seq: usize,
        /// Tokens of the shortest.
        shortest: usize,
    },
    /// The position is one in other rows.
    #[error(
        "the position was saved in rows of other data: {}; resume with what it was, or start anew",
        differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ")
    )]
    OtherRows {
        /// All that differs, at least one thing.
        differences: Vec<Difference>,
    },
    /// A position that no corpus has saved.
    #[error("the position does not fit itself: {reason}; it was changed")]
    Position {
        /// The fault in words.
        reason: String,
    },
    /// A held-out set is smaller than a batch.
    #[error(
        "{names} make {rows} rows of {seq} positions, fewer than the {batch} of a batch: use a smaller batch, shorter \
         rows, or more held-out data"
    )]
    FewerThanBatch {
        /// The sources.
        names: String,
        /// Rows that they make.
        rows: u64,
        /// Positions of a row.
        seq: usize,
        /// Rows of a batch.
        batch: usize,
    },
    /// There are no more rows: an error came before, or all were handed out.
    #[error(
        "there are no more rows: an error has been returned, or the documents were gone through"
    )]
    Ended,
    /// A column is missing.
    #[error(
        "{name} has no column `{column}`; its columns are {columns}: name those that are meant, {naming}"
    )]
    NoColumn {
        /// The file.
        name: String,
        /// The column that was asked for.
        column: String,
        /// The columns that there are.
        columns: String,
        /// How another is named.
        naming: &'static str,
    },
    /// A column holds no texts.
    #[error("column `{column}` of {name} holds {holds}, and documents are texts")]
    NoTexts {
        /// The file.
        name: String,
        /// The column.
        column: String,
        /// The type of its values.
        holds: String,
    },
    /// A column is compressed by what cannot be read.
    #[error(
        "column `{column}` of {name} is compressed by {codec}, and this program reads snappy, gzip, lz4 and \
         uncompressed columns: write the file anew with one of these"
    )]
    Codec {
        /// The file.
        name: String,
        /// The column.
        column: String,
        /// How it is compressed.
        codec: String,
    },
    /// A Parquet file is damaged.
    #[error("cannot read {place}: {reason}")]
    Parquet {
        /// The file, and the row.
        place: String,
        /// Why.
        reason: String,
    },
    /// This build reads no Parquet.
    #[error("{name} is a Parquet file, and this program was built without the feature `parquet`")]
    NoParquet {
        /// The file.
        name: String,
    },
}

burn_dist_mesh::debug_by_message!(CorpusError);
