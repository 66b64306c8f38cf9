//! Which part of a text are the answers.

use std::ops::Range;

use super::conversation::Conversation;
use super::error::ChatError;
use super::template::Template;

/// What stands before and after an answer while it is looked for. Neither is a character of any text.
pub(super) const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];

/// Without marks, the texts of the first messages are so many times that of all, at most; and so many bytes.
const TIMES_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;

/// The text of a conversation, and its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The bytes of the answers, in their order.
    pub answers: Vec<Range<usize>>,
    /// True if the template says where answers end, and not only where the next message begins.
    pub is_marked: bool,
}

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

/// Takes the marks out of a text.
pub(super) fn unmarked(marked: &str) -> Rendered {
    let mut text = String::with_capacity(marked.len());
    let mut answers: Vec<Range<usize>> = Vec::new();
    // An answer in another one is part of it.
    let mut open = 0_usize;
    let mut rest = marked;
    while let Some(at) = rest.find(MARKS) {
        let mark = rest[at..].chars().next().unwrap_or_default();
        text += &rest[..at];
        rest = &rest[at + mark.len_utf8()..];
        if mark == MARKS[0] {
            if open == 0 {
                answers.push(text.len()..text.len());
            }
            open += 1;
        } else {
            open = open.saturating_sub(1);
            if let Some(last) = answers.last_mut().filter(|_| open == 0) {
                last.end = text.len();
            }
        }
    }
    text += rest;
    answers.retain(|answer| !answer.is_empty());
    Rendered {
        text,
        answers,
        is_marked: true,
    }
}
