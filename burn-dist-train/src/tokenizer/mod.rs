//! Text to token ids (feature `tokenizers`): a byte-level BPE trained on the data at hand, or the `tokenizer.json` of a
//! model.

mod chats;
mod declared;
mod dialogue;
mod error;

pub use declared::{CHAT_TEMPLATE, ENDS, Ends, Ids, TOKENIZER_CONFIG, Tokens};
pub use error::TokenizerError;

use std::path::Path;

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, Encoding, Token, Tokenizer};

use crate::chat::{ASSISTANT as ASSISTANT_ROLE, ChatError, Template};
use crate::corpus::{Document, EncodeError, Encoded, Example};
use crate::files::{self, caught, without_mark};
use crate::rng::hash_text;

const USER: &str = "<|user|>";
const ASSISTANT: &str = "<|assistant|>";
const END: &str = "<|end|>";

/// No `tokenizer.json` is longer.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Whose panics are errors.
const TOKENIZERS: &str = "the tokenizers crate";

/// Where a template takes the prompt.
pub const PLACE: &str = "{prompt}";
/// The template by which base models, whose tokenizers have no marks for a dialogue, are taught to answer.
pub const QUESTION: &str = "Question: {prompt}\nAnswer:";

/// The treatment of a prompt before a model reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrap<'a> {
    /// Nothing: the model goes on with it.
    Nothing,
    /// It is what a user says in a dialogue, in the form that the tokenizer has marks for.
    Chat,
    /// It takes the place of [`PLACE`] in this text.
    Template(&'a str),
}

/// How a question and an answer become one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialogue {
    /// Our own marks, of tokenizers trained here.
    Marks,
    /// The headers of Llama 3's instruction-tuned checkpoints.
    Llama3,
    /// The chat template.
    Template,
    /// Plain text, for base checkpoints.
    Plain,
}

/// Text to ids and back, with the form of a dialogue.
#[derive(Debug, Clone)]
pub struct Text {
    tokenizer: Tokenizer,
    dialogue: Dialogue,
    /// The chat template, or why there is none; its source.
    chat: Option<(Result<Template, ChatError>, String)>,
    /// The ids that every text begins with.
    begin: Vec<u32>,
    end: u32,
    /// All that end an answer.
    ends: Vec<u32>,
    /// Which files have decided what texts begin and end with.
    decided_by: [&'static str; 2],
}

impl Text {
    /// Trains a byte-level BPE of at most `vocab` tokens; every digit stays a token, so that numbers have structure.
    ///
    /// # Errors
    /// [`TokenizerError::Train`] if `vocab` cannot hold the 256 bytes and the marks.
    pub fn train<'a>(
        texts: impl Iterator<Item = &'a str> + Send,
        vocab: usize,
    ) -> Result<Self, TokenizerError> {
        let marks = [USER, ASSISTANT, END];
        let smallest = 256 + marks.len();
        if vocab < smallest {
            return Err(TokenizerError::Train(format!(
                "a vocabulary of {vocab} is below {smallest}: 256 bytes and 3 marks"
            )));
        }
        let train = |error: tokenizers::Error| TokenizerError::Train(error.to_string());
        let bytes = ByteLevel::new(false, true, true);
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer
            .with_pre_tokenizer(Some(Sequence::new(vec![
                PreTokenizerWrapper::Digits(Digits::new(true)),
                PreTokenizerWrapper::ByteLevel(bytes),
            ])))
            .with_decoder(Some(bytes));
        let mut trainer: TrainerWrapper = BpeTrainerBuilder::new()
            .show_progress(false)
            .vocab_size(vocab)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(marks.map(|mark| AddedToken::from(mark, true)).to_vec())
            .build()
            .into();
        // The leading space is the one that `encode` puts before a question and an answer.
        tokenizer
            .train(&mut trainer, texts.map(|text| format!(" {text}")))
            .map_err(train)?;
        let declared = Tokens {
            eos_token: Some(END.to_string()),
            ..Tokens::default()
        };
        Self::new(tokenizer, &declared)
    }

    /// Reads a `tokenizer.json`; the files beside it have `declared` what ends an answer, and may have declared what a
    /// text begins with. Texts are neither cut nor padded, whatever the file says of that.
    ///
    /// # Errors
    /// [`TokenizerError`], if the file cannot be read, or nothing in any file tells where an answer ends.
    pub fn read(path: &Path, declared: &Tokens) -> Result<Self, TokenizerError> {
        let read = |reason| TokenizerError::Read {
            path: path.to_path_buf(),
            reason,
        };
        let bytes = files::read(path, FILE_BYTES_MAX).map_err(|error| read(error.to_string()))?;
        let tokenizer = caught(TOKENIZERS, || Tokenizer::from_bytes(without_mark(&bytes)));
        let tokenizer = tokenizer.map_err(read)?;
        let tokenizer = tokenizer.map_err(|error| read(error.to_string()))?;
        caught(TOKENIZERS, || Self::new(tokenizer, declared)).map_err(read)?
    }

    /// Reads the tokenizer of a model's folder, for a model whose embedding has so many `rows`.
    ///
    /// # Errors
    /// [`TokenizerError`].
    pub fn of_model(dir: &Path, rows: usize) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let text = Self::read(&path, &Tokens::read(dir)?)?;
        let vocab = text.vocab();
        if vocab > rows {
            return Err(TokenizerError::Rows { path, vocab, rows });
        }
        if let Some(id) = text.ends.iter().find(|id| **id as usize >= rows) {
            return Err(TokenizerError::EndRow {
                dir: dir.to_path_buf(),
                id: *id,
                rows,
            });
        }
        Ok(text)
    }

    /// Returns the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Write`].
    pub fn to_json(&self) -> Result<String, TokenizerError> {
        let text = self.tokenizer.to_string(false);
        text.map_err(|error| TokenizerError::Write(error.to_string()))
    }

    fn new(mut tokenizer: Tokenizer, declared: &Tokens) -> Result<Self, TokenizerError> {
        let failed = |error: tokenizers::Error| TokenizerError::Use(error.to_string());
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);
        let id = |token: &str| tokenizer.token_to_id(token);
        let named = |field, token: &Option<String>| {
            let id = |token: &String| {
                id(token).ok_or_else(|| TokenizerError::NoToken {
                    field,
                    token: token.clone(),
                })
            };
            token.as_ref().map(id).transpose()
        };
        let own_end = named("eos_token", &declared.eos_token)?;
        let (ends, ends_by) = match (&declared.ends, own_end) {
            (Some(Ends { ids, from }), _) => (ids.clone(), *from),
            (None, Some(end)) => (vec![end], TOKENIZER_CONFIG),
            (None, None) => return Err(TokenizerError::NoEnd),
        };
        let is_end = |id: &u32| ends.contains(id);
        let has = |tokens: &[&str]| tokens.iter().all(|token| id(token).is_some());
        // A model may know the tokens of a dialogue without having learnt to speak in one: then none ends its answers.
        let of_dialogue =
            |tokens: &[&str], end: &str| id(end).filter(is_end).filter(|_| has(tokens));
        let headers = ["<|start_header_id|>", "<|end_header_id|>"];
        let (dialogue, end) = if let Some(end) = of_dialogue(&[USER, ASSISTANT], END) {
            (Dialogue::Marks, end)
        } else if let Some(end) = of_dialogue(&headers, "<|eot_id|>") {
            (Dialogue::Llama3, end)
        } else {
            (Dialogue::Plain, own_end.filter(is_end).unwrap_or(ends[0]))
        };
        let (begin, begin_by) = match declared.add_bos_token {
            Some(true) => {
                let begin = named("bos_token", &declared.bos_token)?;
                (
                    vec![begin.ok_or(TokenizerError::NoBegin)?],
                    TOKENIZER_CONFIG,
                )
            }
            Some(false) => (Vec::new(), TOKENIZER_CONFIG),
            None => (before_a_text(&tokenizer).map_err(failed)?, "tokenizer.json"),
        };
        let chat = dialogue::template(declared, dialogue == Dialogue::Marks);
        let mut text = Self {
            tokenizer,
            dialogue,
            chat,
            begin,
            end,
            ends,
            decided_by: [begin_by, ends_by],
        };
        if dialogue != Dialogue::Marks && text.speaks() {
            text.dialogue = Dialogue::Template;
        }
        Ok(text)
    }

    /// Returns the decision about the tokens before and after texts, and the files that it comes from.
    pub fn description(&self) -> String {
        let named = |ids: &[u32]| -> String {
            let named = ids.iter().map(|id| match self.tokenizer.id_to_token(*id) {
                Some(token) => format!("{token} ({id})"),
                None => format!("id {id}"),
            });
            named.collect::<Vec<_>>().join(", ")
        };
        let [begin_by, ends_by] = self.decided_by;
        let begin = match self.begin.as_slice() {
            [] => "nothing".to_string(),
            ids => named(ids),
        };
        let mut text = format!(
            "texts begin with {begin}, as {begin_by} says, and end with {}, as {ends_by} says",
            named(&[self.end])
        );
        let others: Vec<u32> = self
            .ends
            .iter()
            .copied()
            .filter(|id| *id != self.end)
            .collect();
        if !others.is_empty() {
            text += &format!("; answers end with {} too", named(&others));
        }
        text + match self.dialogue {
            Dialogue::Marks => "; dialogues are in the form of models made here",
            Dialogue::Llama3 => "; dialogues are in the form of Llama 3",
            Dialogue::Template => "; dialogues are in the form of its chat template",
            Dialogue::Plain => "",
        }
    }

    /// The number of ids, marks included.
    pub fn vocab(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The id that ends an answer, which also fills unused positions.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// The ids that end an answer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Returns whether an answer ends with this id.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// How to ask a model that [`Self::encode_example`] has taught.
    pub fn asking(&self) -> Wrap<'static> {
        match self.dialogue {
            Dialogue::Plain => Wrap::Template(QUESTION),
            Dialogue::Marks | Dialogue::Llama3 | Dialogue::Template => Wrap::Chat,
        }
    }

    /// A space before the first word makes it the same token there as within a sentence, for tokenizers trained here.
    fn space(&self) -> &'static str {
        match self.dialogue {
            Dialogue::Marks => " ",
            Dialogue::Llama3 | Dialogue::Template | Dialogue::Plain => "",
        }
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.encoding(text)?.get_ids().to_vec())
    }

    /// The ids of a prompt, up to where the model goes on.
    ///
    /// # Errors
    /// [`TokenizerError::NoChat`]; [`TokenizerError::Chat`]; [`TokenizerError::Use`].
    pub fn encode_prompt(&self, prompt: &str, wrap: Wrap<'_>) -> Result<Vec<u32>, TokenizerError> {
        if wrap == Wrap::Chat && self.chat.is_some() && self.dialogue != Dialogue::Marks {
            return self.encode_asked(&dialogue::question(prompt));
        }
        let ids = self.ids(&match (wrap, self.dialogue) {
            (Wrap::Nothing, _) => format!("{}{prompt}", self.space()),
            (Wrap::Template(template), _) => {
                format!("{}{}", self.space(), template.replace(PLACE, prompt))
            }
            (Wrap::Chat, Dialogue::Marks) => format!("{USER} {prompt}{ASSISTANT}"),
            (Wrap::Chat, Dialogue::Llama3) => format!(
                "<|start_header_id|>user<|end_header_id|>\n\n{prompt}<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n"
            ),
            (Wrap::Chat, Dialogue::Template | Dialogue::Plain) => {
                return Err(TokenizerError::NoChat);
            }
        })?;
        Ok([&self.begin[..], &ids].concat())
    }

    /// The ids of a question and its answer.
    ///
    /// # Errors
    /// [`TokenizerError::Use`].
    pub fn encode_example(&self, example: &Example) -> Result<Encoded, TokenizerError> {
        self.encode_pair(&example.prompt, &example.response)
    }

    fn encode_pair(&self, prompt: &str, response: &str) -> Result<Encoded, TokenizerError> {
        if self.dialogue == Dialogue::Template {
            let mut conversation = dialogue::question(prompt);
            conversation.push(ASSISTANT_ROLE, response);
            return self.encode_conversation(&conversation);
        }
        let mut ids = self.encode_prompt(prompt, self.asking())?;
        let learn_from = ids.len();
        let space = if self.dialogue == Dialogue::Llama3 {
            ""
        } else {
            " "
        };
        ids.extend(self.ids(&format!("{space}{response}"))?);
        ids.push(self.end);
        Ok(Encoded::new(ids, learn_from))
    }

    /// The ids of a text that is learnt as a whole.
    ///
    /// # Errors
    /// [`TokenizerError::Use`].
    pub fn encode_text(&self, text: &str) -> Result<Encoded, TokenizerError> {
        let mut ids = self.encode_prompt(text, Wrap::Nothing)?;
        ids.push(self.end);
        Ok(Encoded::new(ids, 0))
    }

    /// Makes ids of documents: a text is learnt as a whole, of a pair the response, and of a conversation the answers.
    pub fn encoder(
        &self,
    ) -> impl Fn(&Document) -> Result<Encoded, EncodeError> + Send + Sync + use<> {
        let text = self.clone();
        move |document| {
            Ok(match document {
                Document::Text(whole) => text.encode_text(whole)?,
                Document::Pair { prompt, response } => text.encode_pair(prompt, response)?,
                Document::Chat(messages) => text.encode_messages(messages)?,
            })
        }
    }

    /// Makes ids of documents of which everything is learnt.
    pub fn whole_encoder(
        &self,
    ) -> impl Fn(&Document) -> Result<Encoded, EncodeError> + Send + Sync + use<> {
        let text = self.clone();
        move |document| match document {
            Document::Chat(messages) => {
                let ids = text.encode_messages(messages)?.ids;
                Ok(Encoded::new(ids, 0))
            }
            _ => Ok(text.encode_text(&document.plain())?),
        }
    }

    /// Returns what distinguishes it from other tokenizers.
    ///
    /// # Errors
    /// [`TokenizerError::Write`].
    pub fn fingerprint(&self) -> Result<String, TokenizerError> {
        let begin: String = self.begin.iter().map(|id| format!(" {id}")).collect();
        let chat = self.chat.as_ref().map(|(_, source)| source.as_str());
        let text = self.to_json()? + &begin + chat.unwrap_or_default();
        Ok(format!("{:016x}", hash_text(&text, 0)))
    }

    /// The text of an answer's ids, without marks and outer spaces.
    ///
    /// # Errors
    /// [`TokenizerError::Use`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        Ok(self.decode_exactly(ids)?.trim().to_string())
    }

    /// The text of ids, without marks.
    ///
    /// # Errors
    /// [`TokenizerError::Use`].
    pub fn decode_exactly(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let text = caught(TOKENIZERS, || self.tokenizer.decode(ids, true));
        let text = text.map_err(TokenizerError::Use)?;
        text.map_err(|error| TokenizerError::Use(error.to_string()))
    }
}

/// Returns the ids that the post-processor of a tokenizer puts before a text.
fn before_a_text(tokenizer: &Tokenizer) -> Result<Vec<u32>, tokenizers::Error> {
    // No token of any vocabulary stands for the text.
    const TEXT: u32 = u32::MAX;
    let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
    let made = tokenizer.post_process(text, None, true)?;
    let ids = made.get_ids().iter().copied();
    Ok(ids.take_while(|id| *id != TEXT).collect())
}

#[cfg(test)]
mod tests;
