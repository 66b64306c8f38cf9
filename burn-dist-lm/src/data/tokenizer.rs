//! Text to token ids: a byte-level BPE trained on the data at hand, or the `tokenizer.json` of a checkpoint.

use std::path::{Path, PathBuf};

use burn_dist::train::corpus::{Document, EncodeError, Encoded};
use burn_dist::train::files::{self, caught};
use thiserror::Error;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, Encoding, Token, Tokenizer};

use super::tokens::{ENDS, Ends, TOKENIZER_CONFIG, Tokens};
use super::{Example, plain};
use crate::files::{shown, without_mark};
use burn_dist::trainer::rng::hash_text;

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

/// A tokenizer that cannot be made, read or used.
#[derive(Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file cannot be read or understood.
    #[error("cannot read the tokenizer {}: {}", path.display(), shown(reason))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// It has no text form.
    #[error("cannot write the tokenizer: {0}")]
    Write(String),
    /// Training on the texts failed.
    #[error("cannot train a tokenizer: {0}")]
    Train(String),
    /// Text or ids that the tokenizer cannot take.
    #[error("the tokenizer failed: {}", shown(.0))]
    Use(String),
    /// Nothing tells how to speak with the model.
    #[error(
        "how to chat with this model is not known: its answers end neither with <|eot_id|>, as those of Llama 3's \
         dialogues, nor with the mark of models made here; use --template, or neither to have it go on with a text"
    )]
    NoChat,
    /// Nothing tells where an answer ends.
    #[error(
        "no file says which token ends an answer: write eos_token_id into {}, or eos_token into {TOKENIZER_CONFIG}",
        ENDS.join(" or ")
    )]
    NoEnd,
    /// A token that texts end or begin with is none.
    #[error(
        "{TOKENIZER_CONFIG} says that {field} is {:?}, and tokenizer.json has no such token",
        shown(token)
    )]
    NoToken {
        /// The field of the tokenizer that names it.
        field: &'static str,
        /// The token.
        token: String,
    },
    /// Texts begin with a token that is not named.
    #[error(
        "{TOKENIZER_CONFIG} says that texts begin with bos_token (add_bos_token), and names none"
    )]
    NoBegin,
}

burn_dist_mesh::debug_by_message!(TokenizerError);

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
        Ok(Self {
            tokenizer,
            dialogue,
            begin,
            end,
            ends,
            decided_by: [begin_by, ends_by],
        })
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
        let encoding = caught(TOKENIZERS, || self.tokenizer.encode(text, false));
        let encoding = encoding.map_err(TokenizerError::Use)?;
        let encoding = encoding.map_err(|error| TokenizerError::Use(error.to_string()))?;
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

    /// Returns what distinguishes it from other tokenizers.
    ///
    /// # Errors
    /// [`TokenizerError::Write`].
    pub fn fingerprint(&self) -> Result<String, TokenizerError> {
        let begin: String = self.begin.iter().map(|id| format!(" {id}")).collect();
        let text = self.to_json()? + &begin;
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
mod tests {
    use super::*;
    use crate::data::generate::generate;
    use tokenizers::processors::template::TemplateProcessing;
    use tokenizers::{PaddingParams, PaddingStrategy, TruncationParams};

    fn text() -> Text {
        let data = generate(1, 2000, 0).expect("no questions are held out");
        Text::train(data.statements.iter().map(String::as_str), 1024).unwrap()
    }

    #[test]
    fn any_text_survives_the_round_trip() {
        let text = text();
        for sample in [
            "Counting up in tens from 47 gives 57.",
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
        assert_eq!(encode("Counting"), 2, "the word and the end");
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

    /// A byte-level tokenizer with these tokens besides the bytes, numbered from 256, as a checkpoint brings it.
    fn tokenizer(tokens: &[&str]) -> Tokenizer {
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
        tokenizer
    }

    /// Makes what [`tokenizer`] does, where files say that texts begin and end with the first two of its tokens, and
    /// `ends` are the ids that end an answer.
    fn of_a_checkpoint(tokens: &[&str], ends: &[u32]) -> Text {
        let declared = Tokens {
            bos_token: Some(tokens[0].to_string()),
            add_bos_token: Some(true),
            ..declared(ends, tokens[1])
        };
        Text::new(tokenizer(tokens), &declared).unwrap()
    }

    fn declared(ends: &[u32], eos_token: &str) -> Tokens {
        let ids = ends.to_vec();
        let from = ENDS[0];
        Tokens {
            ends: (!ids.is_empty()).then_some(Ends { ids, from }),
            eos_token: Some(eos_token.to_string()),
            ..Tokens::default()
        }
    }

    #[test]
    fn a_prompt_is_what_the_model_reads_unless_it_is_to_be_wrapped() {
        let all = ["<|begin_of_text|>", "<|end_of_text|>"];
        let llama3 = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
        let tokens = [&all[..], &llama3[..]].concat();
        // A base model knows the tokens of dialogues, and has not learnt to speak in one.
        let base = of_a_checkpoint(&tokens, &[257]);
        let instruct = of_a_checkpoint(&tokens, &[257, 260]);
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
        let tokens = ["<s>", "</s>"];
        let text = of_a_checkpoint(&tokens, &[7, 257, 8]);
        assert!([7, 8, 257].iter().all(|id| text.is_end(*id)));
        assert_eq!(text.end(), 257, "the tokenizer's own among several");
        // What the model ends its answers with is learnt, not what the tokenizer would.
        let text = of_a_checkpoint(&tokens, &[7]);
        assert!(!text.is_end(257));
        assert_eq!(text.end(), 7);
        assert_eq!(text.encode_text("a").unwrap().ids.last(), Some(&7));
        let text = of_a_checkpoint(&tokens, &[]);
        assert_eq!(text.ends(), [257]);
        let error = Text::new(tokenizer(&tokens), &Tokens::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("write eos_token_id into generation_config.json or"),
            "{error}"
        );
        let error = Text::new(tokenizer(&tokens), &declared(&[7], "<eos>")).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("eos_token is \"<eos>\", and tokenizer.json has no"),
            "{error}"
        );
    }

    /// Every pair of what the post-processor puts around a text, and what `add_bos_token` says.
    #[test]
    fn texts_begin_as_the_files_say_and_not_by_the_names_of_tokens() {
        let tokens = ["<s>", "</s>", "<|begin_of_text|>", "start"];
        let around = |template: &str| {
            let special: Vec<_> = (256..)
                .zip(tokens)
                .map(|(id, token)| (token.to_string(), id))
                .collect();
            let made = TemplateProcessing::builder()
                .try_single(template)
                .unwrap()
                .special_tokens(special)
                .build();
            made.unwrap()
        };
        let templates: [(&str, &[u32]); 5] = [
            ("$A", &[]),
            ("$A </s>", &[]),
            ("start $A", &[259]),
            ("<s> $A </s>", &[256]),
            ("start <s> $A </s>", &[259, 256]),
        ];
        for (template, before) in templates {
            let mut tokenizer = tokenizer(&tokens);
            tokenizer.with_post_processor(Some(around(template)));
            for (add_bos_token, expected) in
                [(None, before), (Some(true), &[258]), (Some(false), &[])]
            {
                let declared = Tokens {
                    add_bos_token,
                    bos_token: Some("<|begin_of_text|>".to_string()),
                    ..declared(&[7], "</s>")
                };
                let text = Text::new(tokenizer.clone(), &declared).unwrap();
                let ids = text.encode_text("a").unwrap().ids;
                assert_eq!(
                    ids[..expected.len()],
                    *expected,
                    "{template} {add_bos_token:?}"
                );
                assert_eq!(
                    ids.len(),
                    expected.len() + 2,
                    "{template} {add_bos_token:?}"
                );
                let description = text.description();
                let by = match add_bos_token {
                    None => "tokenizer.json",
                    Some(_) => "tokenizer_config.json",
                };
                assert!(
                    description.contains(&format!(", as {by} says, and end with ")),
                    "{description}"
                );
                assert!(
                    description.contains("(7), as generation_config.json says"),
                    "{description}"
                );
            }
        }
        // No post-processor puts nothing there.
        let text = Text::new(tokenizer(&tokens), &declared(&[7], "</s>")).unwrap();
        assert_eq!(text.begin, Vec::<u32>::new());
        for (bos_token, expected) in [
            (None, "names none"),
            (Some("<bos>"), "bos_token is \"<bos>\""),
        ] {
            let declared = Tokens {
                add_bos_token: Some(true),
                bos_token: bos_token.map(String::from),
                ..declared(&[7], "</s>")
            };
            let error = Text::new(tokenizer(&tokens), &declared).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn texts_are_neither_cut_nor_padded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let tokens = ["<s>", "</s>"];
        let mut cutting = tokenizer(&tokens);
        let cut = TruncationParams {
            max_length: 3,
            ..TruncationParams::default()
        };
        cutting.with_truncation(Some(cut)).unwrap();
        cutting.with_padding(Some(PaddingParams {
            strategy: PaddingStrategy::Fixed(64),
            ..PaddingParams::default()
        }));
        let json = cutting.to_string(false).unwrap();
        std::fs::write(&path, format!("\u{FEFF}{json}")).unwrap();
        let text = Text::read(&path, &declared(&[], "</s>")).unwrap();
        let encoded = text.encode_text("0123456789").unwrap();
        assert_eq!(encoded.ids.len(), 11);
        assert_eq!(text.decode(&encoded.ids).unwrap(), "0123456789");
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
        let read = Text::read(&path, &declared(&[], END)).unwrap();
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
        let error = Text::read(&path, &declared(&[], END))
            .unwrap_err()
            .to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
        let error = Text::train(["a"].into_iter(), 100).unwrap_err().to_string();
        assert!(
            error.contains("a vocabulary of 100 is below 259"),
            "{error}"
        );
    }
}
