//! The tokens before and after a text, as files beside a tokenizer name them.

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
}

/// Ids that end an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The ids, at least one.
    pub ids: Vec<u32>,
    /// The file that names them.
    pub from: &'static str,
}

/// Where [`Tokens`] are asked for, besides `tokenizer.json`.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Where the end of an answer is asked for, the first first.
pub const ENDS: [&str; 2] = ["generation_config.json", "config.json"];
