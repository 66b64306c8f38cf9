//! Marks round answers in a text.

use std::ops::Range;

/// The marks before and after an answer while it is looked for. Neither is a character of any text.
pub(super) const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];

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

/// Puts marks round a part of the text.
pub(super) fn marked(part: &str) -> String {
    let [before, after] = MARKS;
    format!("{before}{part}{after}")
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
