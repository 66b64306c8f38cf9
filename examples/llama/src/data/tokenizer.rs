//! Text to token ids: a byte-level BPE trained on the data at hand, or the `tokenizer.json` of a checkpoint.

use std::path::{Path, PathBuf};

use burn_dist::train::corpus::{Document, EncodeError, Encoded};
use thiserror::Error;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, Tokenizer};

use super::rng::hash_text;
use super::{Example, plain};

const USER: &str = "<|user|>";
const ASSISTANT: &str = "<|assistant|>";
const END: &str = "<|end|>";

/// Where a template takes the prompt.
pub const PLACE: &str = "{prompt}";
/// The template by which base models, whose tokenizers have no marks for a dialogue, are taught to answer.
pub const QUESTION: &str = "Question: {prompt}\nAnswer:";

/// What becomes of a prompt before a model reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrap<'a> {
    /// Nothing: the model goes on with it.
    Nothing,
    /// It is what a user says in a dialogue, in the form that the tokenizer has marks for.
    Chat,
    /// It takes the place of [`PLACE`] in this text.
    Template(&'a str),
}

/// A tokenizer that cannot be made, read or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file cannot be read or understood.
    #[error("cannot read the tokenizer {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// It has no text form.
    #[error("cannot write the tokenizer: {0}")]
    Write(String),
    /// Training on the given text failed.
    #[error("cannot train a tokenizer: {0}")]
    Train(String),
    /// Text or ids that the tokenizer cannot take.
    #[error("the tokenizer failed: {0}")]
    Use(String),
    /// Nothing tells how to speak with the model.
    #[error(
        "the tokenizer has neither the headers of Llama 3's dialogues nor the marks of models made here, so how to \
         chat with this model is not known: use --template, or neither to have it go on with a text"
    )]
    NoChat,
    /// Nothing tells where an answer ends.
    #[error(
        "the tokenizer has no token that ends an answer: none of {tried:?} is in its vocabulary, \
         and config.json names no eos_token_id"
    )]
    NoEnd {
        /// The tokens that were looked for.
        tried: Vec<&'static str>,
    },
}

/// How a question and an answer become one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialogue {
    /// Our own marks, of tokenizers trained here.
    Marks,
    /// The headers of Llama 3's instruction-tuned checkpoints.
    Llama3,
    /// Plain text, for base checkpoints.
    Plain,
}

/// Text to ids and back, with the form of a dialogue.
#[derive(Debug, Clone)]
pub struct Text {
    tokenizer: Tokenizer,
    dialogue: Dialogue,
    begin: Option<u32>,
    end: u32,
    /// All that end an answer.
    ends: Vec<u32>,
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
        Self::new(tokenizer, &[])
    }

    /// Reads a `tokenizer.json`; `eos` are ids that end an answer, the first also what is taught as its end if the
    /// tokenizer has no token known for it.
    ///
    /// # Errors
    /// [`TokenizerError::Read`]; [`TokenizerError::NoEnd`].
    pub fn read(path: &Path, eos: &[u32]) -> Result<Self, TokenizerError> {
        let tokenizer = Tokenizer::from_file(path).map_err(|error| TokenizerError::Read {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })?;
        Self::new(tokenizer, eos)
    }

    /// Returns the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Write`].
    pub fn to_json(&self) -> Result<String, TokenizerError> {
        let text = self.tokenizer.to_string(false);
        text.map_err(|error| TokenizerError::Write(error.to_string()))
    }

    fn new(tokenizer: Tokenizer, eos: &[u32]) -> Result<Self, TokenizerError> {
        let id = |token| tokenizer.token_to_id(token);
        let (dialogue, tried): (_, &[&'static str]) =
            if id(USER).is_some() && id(ASSISTANT).is_some() {
                (Dialogue::Marks, &[END])
            } else if id("<|start_header_id|>").is_some() && id("<|eot_id|>").is_some() {
                (Dialogue::Llama3, &["<|eot_id|>"])
            } else {
                (
                    Dialogue::Plain,
                    &["<|end_of_text|>", "</s>", "<|endoftext|>"],
                )
            };
        let end = tried
            .iter()
            .find_map(|token| id(token))
            .or(eos.first().copied())
            .ok_or_else(|| TokenizerError::NoEnd {
                tried: tried.to_vec(),
            })?;
        let begin = ["<|begin_of_text|>", "<s>"].into_iter().find_map(id);
        Ok(Self {
            tokenizer,
            dialogue,
            begin,
            end,
            ends: std::iter::once(end).chain(eos.iter().copied()).collect(),
        })
    }

    /// The number of ids, marks included.
    pub fn vocab(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The id that ends an answer, which also fills unused positions.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Whether an answer ends with this id.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// How to ask a model that [`Self::encode_example`] has taught.
    pub fn asking(&self) -> Wrap<'static> {
        match self.dialogue {
            Dialogue::Plain => Wrap::Template(QUESTION),
            Dialogue::Marks | Dialogue::Llama3 => Wrap::Chat,
        }
    }

    /// A space before the first word makes it the same token there as within a sentence, for tokenizers trained here.
    fn space(&self) -> &'static str {
        match self.dialogue {
            Dialogue::Marks => " ",
            Dialogue::Llama3 | Dialogue::Plain => "",
        }
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|error| TokenizerError::Use(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a prompt, up to where the model goes on.
    ///
    /// # Errors
    /// [`TokenizerError::NoChat`]; [`TokenizerError::Use`].
    pub fn encode_prompt(&self, prompt: &str, wrap: Wrap<'_>) -> Result<Vec<u32>, TokenizerError> {
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
            (Wrap::Chat, Dialogue::Plain) => return Err(TokenizerError::NoChat),
        })?;
        Ok(self.begin.into_iter().chain(ids).collect())
    }

    /// The ids of a question and its answer.
    ///
    /// # Errors
    /// [`TokenizerError::Use`].
    pub fn encode_example(&self, example: &Example) -> Result<Encoded, TokenizerError> {
        self.encode_pair(&example.prompt, &example.response)
    }

    fn encode_pair(&self, prompt: &str, response: &str) -> Result<Encoded, TokenizerError> {
        let mut ids = self.encode_prompt(prompt, self.asking())?;
        let learn_from = ids.len();
        let space = if self.dialogue == Dialogue::Llama3 {
            ""
        } else {
            " "
        };
        ids.extend(self.ids(&format!("{space}{response}"))?);
        ids.push(self.end);
        Ok(Encoded { ids, learn_from })
    }

    /// The ids of a text that is learnt as a whole.
    ///
    /// # Errors
    /// [`TokenizerError::Use`].
    pub fn encode_text(&self, text: &str) -> Result<Encoded, TokenizerError> {
        let mut ids = self.encode_prompt(text, Wrap::Nothing)?;
        ids.push(self.end);
        Ok(Encoded { ids, learn_from: 0 })
    }

    /// Makes ids of documents: a text is learnt as a whole, and of a pair the response.
    pub fn encoder(
        &self,
    ) -> impl Fn(&Document) -> Result<Encoded, EncodeError> + Send + Sync + use<> {
        let text = self.clone();
        move |document| {
            Ok(match document {
                Document::Text(whole) => text.encode_text(whole)?,
                Document::Pair { prompt, response } => text.encode_pair(prompt, response)?,
            })
        }
    }

    /// Makes ids of documents of which everything is learnt.
    pub fn whole_encoder(
        &self,
    ) -> impl Fn(&Document) -> Result<Encoded, EncodeError> + Send + Sync + use<> {
        let text = self.clone();
        move |document| Ok(text.encode_text(&plain(document))?)
    }

    /// What tells it from other tokenizers.
    ///
    /// # Errors
    /// [`TokenizerError::Write`].
    pub fn fingerprint(&self) -> Result<String, TokenizerError> {
        Ok(format!("{:016x}", hash_text(&self.to_json()?, 0)))
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
        let text = self.tokenizer.decode(ids, true);
        text.map_err(|error| TokenizerError::Use(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::generate::generate;

    fn text() -> Text {
        let data = generate(1, 2000, 0).expect("no questions are held out");
        Text::train(data.statements.iter().map(String::as_str), 1024).unwrap()
    }

    #[test]
    fn any_text_survives_the_round_trip() {
        let text = text();
        for sample in [
            "47 plus 5 is 52.",
            "Reverse: cat dog",
            "naïve — 日本語 \u{1F980}",
            "a  b",
        ] {
            let ids = text.encode_text(sample).unwrap().ids;
            assert_eq!(text.decode(&ids).unwrap(), sample);
        }
        assert!(text.vocab() <= 1024);
    }

    #[test]
    fn digits_are_tokens_and_common_words_are_one() {
        let text = text();
        let encode = |sample: &str| text.encode_text(sample).unwrap().ids.len();
        assert_eq!(encode("7") + 2, encode("789"));
        assert_eq!(encode("plus"), 2, "the word and the end");
    }

    #[test]
    fn the_answer_begins_after_the_question() {
        let text = text();
        let example = Example {
            kind: None,
            prompt: "What is 4 plus 5?".into(),
            response: "9".into(),
        };
        let encoded = text.encode_example(&example).unwrap();
        assert_eq!(
            encoded.ids[..encoded.learn_from],
            text.encode_prompt(&example.prompt, Wrap::Chat).unwrap()
        );
        assert_eq!(
            text.decode(&encoded.ids[encoded.learn_from..]).unwrap(),
            "9"
        );
        assert_eq!(encoded.ids.last(), Some(&text.end()));
    }

    /// A byte-level tokenizer with these tokens besides the bytes, as a checkpoint brings it.
    fn of_a_checkpoint(tokens: &[&str]) -> Text {
        let bytes = ByteLevel::new(false, true, true);
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer
            .with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(bytes)))
            .with_decoder(Some(bytes));
        let mut trainer: TrainerWrapper = BpeTrainerBuilder::new()
            .show_progress(false)
            .vocab_size(256)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build()
            .into();
        tokenizer.train(&mut trainer, ["a"].into_iter()).unwrap();
        let special = tokens.iter().map(|token| AddedToken::from(*token, true));
        tokenizer.add_special_tokens(&special.collect::<Vec<_>>());
        Text::new(tokenizer, &[]).unwrap()
    }

    #[test]
    fn a_prompt_is_what_the_model_reads_unless_it_is_to_be_wrapped() {
        let all = ["<|begin_of_text|>", "<|end_of_text|>"];
        let llama3 = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
        let base = of_a_checkpoint(&all);
        let instruct = of_a_checkpoint(&[&all[..], &llama3[..]].concat());
        let read = |text: &Text, wrap| -> String {
            let ids = text
                .encode_prompt("The capital of France is", wrap)
                .unwrap();
            text.tokenizer.decode(&ids, false).unwrap()
        };
        for text in [&base, &instruct] {
            assert_eq!(
                read(text, Wrap::Nothing),
                "<|begin_of_text|>The capital of France is"
            );
            assert_eq!(
                read(text, Wrap::Template("Say: {prompt}!")),
                "<|begin_of_text|>Say: The capital of France is!"
            );
        }
        assert!(read(&instruct, Wrap::Chat).starts_with(
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nThe capital"
        ));
        let error = base.encode_prompt("a", Wrap::Chat).unwrap_err();
        assert!(matches!(error, TokenizerError::NoChat), "{error}");
        assert!(error.to_string().contains("--template"), "{error}");
        // Asked as it was taught.
        let example = Example {
            kind: None,
            prompt: "a".into(),
            response: "b".into(),
        };
        for text in [&base, &instruct] {
            let taught = text.encode_example(&example).unwrap();
            let asked = text.encode_prompt("a", text.asking()).unwrap();
            assert_eq!(taught.ids[..taught.learn_from], asked);
        }
    }

    #[test]
    fn every_end_that_the_configuration_names_ends_an_answer() {
        let text = of_a_checkpoint(&["<|end_of_text|>"]);
        let ended = Text::new(text.tokenizer.clone(), &[7, 8]).unwrap();
        assert!(ended.is_end(7) && ended.is_end(8) && ended.is_end(text.end()));
        assert!(!text.is_end(7));
    }

    #[test]
    fn training_is_deterministic_and_a_written_tokenizer_reads_the_same() {
        let (a, b) = (text(), text());
        let sample = "Anna has a red kite and Ben has a blue drum.";
        assert_eq!(
            a.encode_text(sample).unwrap(),
            b.encode_text(sample).unwrap()
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, a.to_json().unwrap()).unwrap();
        let read = Text::read(&path, &[]).unwrap();
        assert_eq!(
            a.encode_text(sample).unwrap(),
            read.encode_text(sample).unwrap()
        );
        assert_eq!(read.dialogue, Dialogue::Marks);
    }

    #[test]
    fn errors_name_the_file_and_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, "{}").unwrap();
        let error = Text::read(&path, &[]).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
        let error = Text::train(["a"].into_iter(), 100).unwrap_err().to_string();
        assert!(
            error.contains("a vocabulary of 100 is below 259"),
            "{error}"
        );
    }
}
