//! Conversations as text, by the template of a model (feature `tokenizers`): rendered as Hugging Face's library renders
//! it, with the answers marked.
//!
//! A template is a program of Jinja, and comes from outside: what it may compute is bounded.
//!
//! Not here: token ids ([`Text`](crate::tokenizer::Text) makes them), tools, images.

mod answers;
mod conversation;
mod error;
mod functions;
mod marks;
mod python_json;
mod template;
#[cfg(test)]
mod tests;

pub use conversation::{ASSISTANT, Conversation, USER};
pub use error::ChatError;
pub use functions::Day;
pub use marks::Rendered;
pub use template::Template;
