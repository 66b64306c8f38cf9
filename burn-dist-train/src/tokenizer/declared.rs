//! The tokens before and after a text, as the files beside a tokenizer name them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::files::{self, JsonError, read_json, without_mark};

/// Where [`Tokens`] are asked for, besides `tokenizer.json`.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Where the end of an answer is asked for, the first first.
pub const ENDS: [&str; 2] = ["generation_config.json", "config.json"];

/// No file that says it is longer.
const TOKENS_BYTES_MAX: u64 = 2 << 20;

/// The tokens before and after a text, as far as files beside a tokenizer name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Ids that end an answer, if any file names some.
    pub ends: Option<Ends>,
    /// The tokenizer's own end of a text.
    pub eos_token: Option<String>,
    /// The tokenizer's own beginning of a text.
    pub bos_token: Option<String>,
    /// True if texts begin with that.
    pub add_bos_token: Option<bool>,
    /// The tokens that have a name, by it: `bos_token`, `pad_token`, ...
    pub special: BTreeMap<String, String>,
    /// The text of conversations, as a template.
    pub chat_template: Option<String>,
}

/// Where a chat template stands, if not in `tokenizer_config.json`.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The template of several that is for conversations without tools.
const DEFAULT: &str = "default";

/// Ids that end an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The ids, at least one.
    pub ids: Vec<u32>,
    /// The file that names them.
    pub from: &'static str,
}

impl Tokens {
    /// Reads those of a folder: the ends of `generation_config.json`, without any those of `config.json`, and what
    /// `tokenizer_config.json` says.
    ///
    /// # Errors
    /// [`JsonError`] of a file that is there.
    pub fn read(dir: &Path) -> Result<Self, JsonError> {
        let mut ends = None;
        for from in ENDS {
            let OfModel { eos_token_id } = read_if_there(dir, from)?;
            let ids = eos_token_id.filter(|Ids(ids)| !ids.is_empty());
            ends = ends.or(ids.map(|Ids(ids)| Ends { ids, from }));
        }
        let of_tokenizer: OfTokenizer = read_if_there(dir, TOKENIZER_CONFIG)?;
        let special = of_tokenizer.special();
        let path = dir.join(CHAT_TEMPLATE);
        let chat_template = match path.exists() {
            true => {
                let bytes = files::read(&path, TOKENS_BYTES_MAX);
                let bytes = bytes.map_err(|source| JsonError::Read { path, source })?;
                Some(String::from_utf8_lossy(without_mark(&bytes)).into_owned())
            }
            false => of_tokenizer.chat_template.and_then(Templates::usual),
        };
        Ok(Self {
            ends,
            special,
            chat_template,
            eos_token: of_tokenizer.eos_token.map(Token::into_text),
            bos_token: of_tokenizer.bos_token.map(Token::into_text),
            add_bos_token: of_tokenizer.add_bos_token,
        })
    }
}

fn read_if_there<T: DeserializeOwned + Default>(dir: &Path, name: &str) -> Result<T, JsonError> {
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
    unk_token: Option<Token>,
    sep_token: Option<Token>,
    pad_token: Option<Token>,
    cls_token: Option<Token>,
    mask_token: Option<Token>,
    chat_template: Option<Templates>,
}

impl OfTokenizer {
    /// The tokens that have a name.
    fn special(&self) -> BTreeMap<String, String> {
        let named = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
            ("sep_token", &self.sep_token),
            ("pad_token", &self.pad_token),
            ("cls_token", &self.cls_token),
            ("mask_token", &self.mask_token),
        ];
        let named = named.into_iter();
        let named = named.filter_map(|(name, token)| Some((name, token.clone()?.into_text())));
        named.map(|(name, text)| (name.to_string(), text)).collect()
    }
}

/// A chat template, or several with names.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    fn usual(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(all) => {
                let found = all.into_iter().find(|it| it.name == DEFAULT);
                found.map(|it| it.template)
            }
        }
    }
}

/// A token by its text, alone or with how it is found in texts.
#[derive(Clone, Deserialize)]
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

/// One id of a token, or several, as a field of such a file has them.
#[derive(Debug, Clone)]
pub struct Ids(pub Vec<u32>);

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
