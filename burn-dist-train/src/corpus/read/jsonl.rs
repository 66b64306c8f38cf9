use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use super::Reader;
use super::json::Json;
use super::lines::Lines;
use crate::corpus::document::Document;
use crate::corpus::error::CorpusError;
use crate::corpus::format::Fields;

/// A document a line.
pub(super) struct Jsonl {
    lines: Lines,
    fields: Fields,
}

impl Jsonl {
    pub(super) fn new(lines: Lines, fields: Fields) -> Self {
        Self { lines, fields }
    }
}

impl Reader for Jsonl {
    fn end(&self) -> u64 {
        self.lines.end()
    }

    fn bytes(&self) -> u64 {
        self.lines.end()
    }

    fn seek(&mut self, at: u64) -> Result<(), CorpusError> {
        self.lines.seek(at)
    }

    fn at(&self) -> u64 {
        self.lines.at()
    }

    fn next(&mut self) -> Result<Option<(u64, Document)>, CorpusError> {
        loop {
            let Some((at, line)) = self.lines.next()? else {
                return Ok(None);
            };
            match document(line, &self.fields) {
                Ok(Some(document)) => return Ok(Some((at, document))),
                Ok(None) => {}
                Err(reason) => {
                    let place = self.lines.place(at);
                    return Err(CorpusError::Malformed { place, reason });
                }
            }
        }
    }

    fn place(&mut self, at: u64) -> String {
        self.lines.place(at)
    }
}

/// Reads a line; a blank one, or a blank text, is none.
fn document(line: &[u8], fields: &Fields) -> Result<Option<Document>, String> {
    let line = std::str::from_utf8(line).map_err(|error| format!("not UTF-8 ({error})"))?;
    if line.trim().is_empty() {
        return Ok(None);
    }
    let expects = |what: String| format!("{what}; each line must be {}", expected(fields));
    let Found {
        values,
        others,
        num_others,
    } = object(line, names(fields)).map_err(expects)?;
    let missing = |field: &str| {
        let others = match (others.is_empty(), num_others - others.len()) {
            (true, _) => "it has none".to_string(),
            (false, 0) => format!("it has {}", others.join(", ")),
            (false, more) => format!("it has {} and {more} more", others.join(", ")),
        };
        let what = expects(format!("missing field `{field}` ({others})"));
        Err(format!(
            "{what}; name fields that are called otherwise: {}",
            fields.naming()
        ))
    };
    let [text_name, prompt_name, response_name, messages_name] = names(fields);
    let document = match values {
        [Some(text), ..] => Document::Text(text),
        [None, _, _, Some(messages)] if prompt_name.is_none() || *fields == Fields::Dialogue => {
            Document::Chat(messages)
        }
        [None, Some(prompt), Some(response), _] if !response.trim().is_empty() => {
            Document::Pair { prompt, response }
        }
        [None, Some(_), Some(_), _] => return Err(expects("the response is empty".to_string())),
        [None, None, None, Some(messages)] => Document::Chat(messages),
        [None, None, Some(_), _] => return missing(prompt_name.unwrap_or_default()),
        [None, Some(_), None, _] => return missing(response_name.unwrap_or_default()),
        [None, None, None, None] => {
            let first = text_name.or(prompt_name).or(messages_name);
            return missing(first.unwrap_or_default());
        }
    };
    Ok((!document.is_empty()).then_some(document))
}

/// The fields of the text, the prompt, the response and the messages, as far as they are looked for.
fn names(fields: &Fields) -> [Option<&str>; 4] {
    let [text, prompt, response, messages] = ["text", "prompt", "response", "messages"].map(Some);
    match fields {
        Fields::Usual => [text, prompt, response, messages],
        Fields::Dialogue => [None, prompt, response, messages],
        Fields::Text(text) => [Some(text), None, None, None],
        Fields::Pair { prompt, response } => [None, Some(prompt), Some(response), None],
        Fields::Messages(messages) => [None, None, None, Some(messages)],
    }
}

fn expected(fields: &Fields) -> String {
    let pair = |prompt: &str, response: &str| {
        format!("{{\"{prompt}\": \"...\", \"{response}\": \"...\"}}")
    };
    let chat = |messages: &str| {
        format!("{{\"{messages}\": [{{\"role\": \"...\", \"content\": \"...\"}}, ...]}}")
    };
    let usual = || format!("{} or {}", pair("prompt", "response"), chat("messages"));
    match fields {
        Fields::Usual => format!("{{\"text\": \"...\"}} or {}", usual()),
        Fields::Dialogue => usual(),
        Fields::Text(text) => format!("{{\"{text}\": \"...\"}}"),
        Fields::Pair { prompt, response } => pair(prompt, response),
        Fields::Messages(messages) => chat(messages),
    }
}

/// The place of messages among the names.
const MESSAGES: usize = 3;

/// Messages name so many fields, and show so much of each.
const NAMES_MAX: usize = 16;
const NAME_CHARS: usize = 40;

/// Strings of an object, and the JSON of its messages: those that are looked for, and the names of the first others.
struct Found {
    values: [Option<String>; 4],
    others: Vec<String>,
    num_others: usize,
}

/// A name as messages have it.
fn shown(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARS) {
        Some((end, _)) => format!("`{}...`", &name[..end]),
        None => format!("`{name}`"),
    }
}

fn object(line: &str, names: [Option<&str>; 4]) -> Result<Found, String> {
    struct Pick<'a>([Option<&'a str>; 4]);

    impl<'de> Visitor<'de> for Pick<'_> {
        type Value = Found;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
            let mut found = Found {
                values: [None, None, None, None],
                others: Vec::new(),
                num_others: 0,
            };
            while let Some(name) = map.next_key::<String>()? {
                let wanted = self.0.iter().position(|wanted| *wanted == Some(&name));
                match wanted {
                    Some(MESSAGES) => {
                        let Json(json) = map.next_value()?;
                        found.values[MESSAGES] = Some(json);
                    }
                    Some(at) => found.values[at] = Some(map.next_value()?),
                    None => {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                found.num_others += 1;
                if found.others.len() < NAMES_MAX {
                    found.others.push(shown(&name));
                }
            }
            Ok(found)
        }
    }

    let mut reader = serde_json::Deserializer::from_str(line);
    let found = reader.deserialize_map(Pick(names));
    let found = found.and_then(|found| reader.end().map(|()| found));
    // serde_json counts lines within the text it is given, always 1 here: only its column is of use.
    found.map_err(|error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what);
        format!("{what} (column {})", error.column())
    })
}
