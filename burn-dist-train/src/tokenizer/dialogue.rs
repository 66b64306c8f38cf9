//! The chat template of a tokenizer.

use super::declared::Tokens;
use crate::chat::{ChatError, Conversation, Day, Template, USER};

/// The dialogues of models made here, as a template.
const MARKS: &str = "\
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {{ '<|assistant|>' }}
    {%- generation -%}{{ ' ' + message.content + '<|end|>' }}{%- endgeneration -%}
  {%- else -%}
    {{ '<|user|> ' + message.content }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}";

/// Returns the chat template of a tokenizer, or why it cannot be used, and its source; none if there is none. That of
/// models made here if it is one of these (`is_own`).
pub(super) fn template(
    declared: &Tokens,
    is_own: bool,
) -> Option<(Result<Template, ChatError>, String)> {
    let own = is_own.then(|| MARKS.to_string());
    let source = declared.chat_template.clone().or(own)?;
    let template = Template::new(&source, declared.special.clone(), Day::default());
    Some((template, source))
}

/// Returns the conversation in which a user asks this.
pub(super) fn question(prompt: &str) -> Conversation {
    let mut conversation = Conversation::default();
    conversation.push(USER, prompt);
    conversation
}
