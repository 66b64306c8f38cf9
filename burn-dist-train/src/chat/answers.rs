//! Which part of a text are the answers.

use super::conversation::Conversation;
use super::error::ChatError;
use super::marks::{Rendered, unmarked};
use super::template::Template;

/// Without marks, the texts of the first messages are so many times that of all, at most; and so many bytes.
const TIMES_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;

impl Template {
    /// Returns the text of a conversation with its answers: the parts in `{% generation %}`, in a template that has it.
    ///
    /// In another one, an answer is what its message adds to the text of those before it, with the beginning of an
    /// answer. Then the text of a conversation has to begin with that of its first messages.
    ///
    /// # Errors
    /// [`ChatError`].
    pub fn with_answers(&self, conversation: &Conversation) -> Result<Rendered, ChatError> {
        let answers = conversation.answers();
        if answers.is_empty() {
            return Err(ChatError::NoAnswer);
        }
        let num = conversation.messages.len();
        let whole = self.of_messages(conversation, num, false)?;
        if self.has_marks() {
            let rendered = unmarked(&whole);
            return match rendered.answers.is_empty() {
                true => Err(ChatError::NoAnswer),
                false => Ok(rendered),
            };
        }
        let mut spans = Vec::with_capacity(answers.len());
        let mut left = whole
            .len()
            .saturating_mul(TIMES_MAX)
            .saturating_add(BYTES_MAX);
        for message in &answers {
            let with = match message + 1 == num {
                true => whole.clone(),
                false => self.of_messages(conversation, message + 1, false)?,
            };
            let before = self.of_messages(conversation, *message, true)?;
            if !whole.starts_with(&with) || !with.starts_with(&before) {
                return Err(ChatError::Prefix {
                    message: message + 1,
                });
            }
            spans.push(before.len()..with.len());
            let made = before.len() + with.len();
            left = left.checked_sub(made).ok_or(ChatError::TooMany {
                answers: answers.len(),
            })?;
        }
        Ok(Rendered {
            text: whole,
            answers: spans,
            is_marked: false,
        })
    }
}
