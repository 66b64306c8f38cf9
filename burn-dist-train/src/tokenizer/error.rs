//! Why a tokenizer cannot be used.

use std::path::PathBuf;

use thiserror::Error;

use super::declared::{ENDS, TOKENIZER_CONFIG};
use crate::chat::ChatError;
use crate::files::{JsonError, shown};

/// A tokenizer that cannot be made, read or used.
#[derive(Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file cannot be read or understood.
    #[error("cannot read the tokenizer {}: {}", path.display(), shown(reason))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file beside it cannot be read.
    #[error(transparent)]
    Beside(#[from] JsonError),
    /// It has more tokens than the model has rows for.
    #[error(
        "{} has {vocab} tokens, and the model's embedding has {rows} rows: they do not belong together",
        path.display()
    )]
    Rows {
        /// The file.
        path: PathBuf,
        /// How many tokens it has.
        vocab: usize,
        /// How many rows there are.
        rows: usize,
    },
    /// Answers end with a token that the model has no row for.
    #[error(
        "answers of the model in {} end with id {id}, and its embedding has {rows} rows: correct eos_token_id",
        dir.display()
    )]
    EndRow {
        /// The folder.
        dir: PathBuf,
        /// The id.
        id: u32,
        /// How many rows there are.
        rows: usize,
    },
    /// It has no text form.
    #[error("cannot write the tokenizer: {0}")]
    Write(String),
    /// Training on the texts failed.
    #[error("cannot train a tokenizer: {0}")]
    Train(String),
    /// Text or ids that the tokenizer cannot take.
    #[error("the tokenizer failed: {}", shown(.0))]
    Use(String),
    /// Nothing tells how to speak with the model.
    #[error(
        "how to chat with this model is not known: it has no chat template, and its answers end neither with \
         <|eot_id|>, as those of Llama 3's dialogues, nor with the mark of models made here; use --template, or neither \
         to have it go on with a text"
    )]
    NoChat,
    /// A conversation has no text.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Nothing tells where an answer ends.
    #[error(
        "no file says which token ends an answer: write eos_token_id into {}, or eos_token into {TOKENIZER_CONFIG}",
        ENDS.join(" or ")
    )]
    NoEnd,
    /// A token that texts end or begin with is none.
    #[error(
        "{TOKENIZER_CONFIG} says that {field} is {:?}, and tokenizer.json has no such token",
        shown(token)
    )]
    NoToken {
        /// The field of the tokenizer that names it.
        field: &'static str,
        /// The token.
        token: String,
    },
    /// Texts begin with a token that is not named.
    #[error(
        "{TOKENIZER_CONFIG} says that texts begin with bos_token (add_bos_token), and names none"
    )]
    NoBegin,
}

burn_dist_mesh::debug_by_message!(TokenizerError);
