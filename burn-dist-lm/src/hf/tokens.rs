//! The tokens before and after a text, as the files of a folder name them.

use std::path::Path;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::HfError;
use super::folder::read_json;
use crate::data::tokens::{ENDS, Ends, TOKENIZER_CONFIG, Tokens};

/// No file that says it is longer.
const TOKENS_BYTES_MAX: u64 = 2 << 20;

/// Reads the tokens before and after a text of a folder: the ends of `generation_config.json`, without any those of
/// `config.json`, and what `tokenizer_config.json` says.
///
/// # Errors
/// [`HfError::Read`] or [`HfError::Json`] of a file that is there.
pub fn read_tokens(dir: &Path) -> Result<Tokens, HfError> {
    let mut ends = None;
    for from in ENDS {
        let OfModel { eos_token_id } = read_if_there(dir, from)?;
        let ids = eos_token_id.filter(|Ids(ids)| !ids.is_empty());
        ends = ends.or(ids.map(|Ids(ids)| Ends { ids, from }));
    }
    let of_tokenizer: OfTokenizer = read_if_there(dir, TOKENIZER_CONFIG)?;
    Ok(Tokens {
        ends,
        eos_token: of_tokenizer.eos_token.map(Token::into_text),
        bos_token: of_tokenizer.bos_token.map(Token::into_text),
        add_bos_token: of_tokenizer.add_bos_token,
    })
}

fn read_if_there<T: DeserializeOwned + Default>(dir: &Path, name: &str) -> Result<T, HfError> {
    let path = dir.join(name);
    match path.exists() {
        true => read_json(&path, TOKENS_BYTES_MAX),
        false => Ok(T::default()),
    }
}

/// Fields of `config.json` and `generation_config.json`.
#[derive(Default, Deserialize)]
struct OfModel {
    eos_token_id: Option<Ids>,
}

/// Fields of `tokenizer_config.json`.
#[derive(Default, Deserialize)]
struct OfTokenizer {
    add_bos_token: Option<bool>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
}

/// A token by its text, alone or with how it is found in texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

impl Token {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

/// One id of a token, or several.
#[derive(Debug, Clone)]
pub(super) struct Ids(pub(super) Vec<u32>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let ids = match &value {
            Value::Array(values) => values.iter().map(id).collect(),
            value => id(value).map(|id| vec![id]),
        };
        let wrong = || {
            D::Error::custom(format!(
                "the id of a token is a whole number from 0, and there is {value}"
            ))
        };
        ids.map(Self).ok_or_else(wrong)
    }
}

impl Serialize for Ids {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [id] => id.serialize(serializer),
            ids => ids.serialize(serializer),
        }
    }
}
