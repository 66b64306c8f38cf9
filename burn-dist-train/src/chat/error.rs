//! Why a conversation has no text.

use thiserror::Error;

use crate::files::shown;

/// A conversation or a template of which no text can be made.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// It is not a list of messages.
    #[error(
        "a conversation is a list of objects, each with a role and a content, and this is none: {}",
        shown(.0)
    )]
    Conversation(String),
    /// Nobody has answered.
    #[error("the conversation has no message of the assistant: there is no answer to learn")]
    NoAnswer,
    /// The template cannot be read, or it does not take the conversation.
    #[error("the chat template failed: {}", shown(.0))]
    Template(String),
    /// The template computes without end, or nearly so.
    #[error(
        "the chat template was stopped: it makes more of a conversation of {bytes} bytes than {fuel} steps or {} MiB",
        (fuel * 64) >> 20
    )]
    Endless {
        /// Bytes of the conversation.
        bytes: usize,
        /// The steps that it had.
        fuel: u64,
    },
    /// The text of a conversation does not begin with that of its first messages.
    #[error(
        "which part of the text is message {message}, an answer, cannot be told: the chat template has no \
         {{% generation %}}, and writes earlier messages otherwise once others follow"
    )]
    Prefix {
        /// The message, counted from 1.
        message: usize,
    },
    /// Too many answers to find each by itself.
    #[error(
        "the conversation has {answers} answers, too many to find in the text of a chat template without \
         {{% generation %}}: cut it"
    )]
    TooMany {
        /// How many there are.
        answers: usize,
    },
    /// It holds what stands for the ends of answers.
    #[error("the conversation holds U+{:04X}, which is no character", u32::from(*.0))]
    Mark(char),
}

burn_dist_mesh::debug_by_message!(ChatError);
