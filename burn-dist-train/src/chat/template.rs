//! A chat template, compiled.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value};

use super::conversation::Conversation;
use super::error::ChatError;
use super::functions::{self, Day};
use super::marks::unmarked;

/// The name of the template in messages.
const NAME: &str = "chat_template";
/// Steps that a template has, and more of them for each byte of the conversation. A step pays for 64 bytes, too.
const FUEL: u64 = 250_000;
const FUEL_PER_BYTE: u64 = 8;

/// A chat template, compiled.
#[derive(Clone, Debug)]
pub struct Template {
    environment: Arc<Environment<'static>>,
    /// Tokens by their names: `bos_token`, `eos_token`, ...
    tokens: BTreeMap<String, String>,
    has_marks: bool,
}

impl Template {
    /// Compiles a template, with the special tokens by the names that a tokenizer has for them; `day` is the
    /// time, when it asks for it.
    ///
    /// # Errors
    /// [`ChatError::Template`].
    pub fn new(
        source: &str,
        tokens: BTreeMap<String, String>,
        day: Day,
    ) -> Result<Self, ChatError> {
        let failed = |error: minijinja::Error| ChatError::Template(chain(&error));
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        functions::add(&mut environment, day);
        let (source, has_marks) = with_filters(source);
        environment
            .add_template_owned(NAME, source)
            .map_err(failed)?;
        Ok(Self {
            environment: Arc::new(environment),
            tokens,
            has_marks,
        })
    }

    /// Sets another day.
    pub fn set_day(&mut self, day: Day) {
        let mut environment = (*self.environment).clone();
        functions::set_day(&mut environment, day);
        self.environment = Arc::new(environment);
    }

    /// Returns whether it says which part of a text is an answer.
    pub(super) fn has_marks(&self) -> bool {
        self.has_marks
    }

    /// Returns the text of a conversation, up to where the model answers.
    ///
    /// # Errors
    /// [`ChatError::Template`], [`ChatError::Endless`].
    pub fn prompt(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let num = conversation.messages.len();
        let text = self.of_messages(conversation, num, true)?;
        Ok(unmarked(&text).text)
    }

    /// Returns the text of the first `num` messages, with marks round answers.
    pub(super) fn of_messages(
        &self,
        conversation: &Conversation,
        num: usize,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let bytes = conversation.bytes;
        let fuel = FUEL.saturating_add(FUEL_PER_BYTE.saturating_mul(bytes as u64));
        // A copy of the tables of names alone: functions and the template are shared.
        let mut environment = (*self.environment).clone();
        environment.set_fuel(Some(fuel));
        let failed = |error: minijinja::Error| match error.kind() {
            ErrorKind::OutOfFuel => ChatError::Endless { bytes, fuel },
            _ => ChatError::Template(chain(&error)),
        };
        let tokens = self.tokens.iter();
        let tokens = tokens.map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let own = [
            (
                "messages",
                Value::from(conversation.messages[..num].to_vec()),
            ),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        let context = Value::from_pairs(own.into_iter().chain(tokens));
        let template = environment.get_template(NAME).map_err(failed)?;
        template.render(context).map_err(failed)
    }
}

/// An error with all that it comes from, in one line.
fn chain(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which Jinja does not have, by a filter that puts marks round
/// what is between; returns whether there is one.
fn with_filters(source: &str) -> (String, bool) {
    let mut text = String::with_capacity(source.len());
    let (mut rest, mut has_marks) = (source, false);
    while let Some(at) = rest.find("{%") {
        let after = &rest[at + 2..];
        let inside = after.trim_start_matches(['-', '+']);
        let open = &after[..after.len() - inside.len()];
        let word = inside.trim_start();
        let end = word
            .find(|it: char| !it.is_ascii_alphabetic())
            .unwrap_or(word.len());
        let tail = word[end..].trim_start();
        let is_whole = tail.trim_start_matches(['-', '+']).starts_with("%}");
        let written = match &word[..end] {
            "generation" if is_whole => Some(format!("filter {}", functions::GENERATION)),
            "endgeneration" if is_whole => Some("endfilter".to_string()),
            _ => None,
        };
        text += &rest[..at];
        text += "{%";
        rest = after;
        if let Some(written) = written {
            text += &format!("{open} {written} ");
            rest = tail;
            has_marks = true;
        }
    }
    (text + rest, has_marks)
}
