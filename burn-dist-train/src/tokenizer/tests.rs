mod chats;

use super::*;
use crate::corpus::generate;
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
        encoded.ids[..encoded.learn[0].start],
        text.encode_prompt(&example.prompt, Wrap::Chat).unwrap()
    );
    assert_eq!(
        text.decode(&encoded.ids[encoded.learn[0].start..]).unwrap(),
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
    assert!(
        read(&instruct, Wrap::Chat).starts_with(
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nThe capital"
        )
    );
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
        assert_eq!(taught.ids[..taught.learn[0].start], asked);
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
        for (add_bos_token, expected) in [(None, before), (Some(true), &[258]), (Some(false), &[])]
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

#[test]
fn the_ends_of_answers_are_asked_for_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: serde_json::Value| {
        // Some editors put a mark of the byte order before the text.
        std::fs::write(dir.path().join(name), format!("\u{FEFF}{value}")).unwrap();
    };
    let ends = || {
        let ends = Tokens::read(dir.path()).unwrap().ends;
        ends.map(|ends| (ends.ids, ends.from))
    };
    assert_eq!(ends(), None);
    for (ids, expected) in [
        (serde_json::json!(null), None),
        (serde_json::json!([]), None),
        (serde_json::json!(2), Some(vec![2])),
        (serde_json::json!([7, 8]), Some(vec![7, 8])),
    ] {
        for from in ["config.json", "generation_config.json"] {
            write("generation_config.json", serde_json::json!({}));
            write(from, serde_json::json!({"eos_token_id": ids}));
            assert_eq!(ends(), expected.clone().map(|ids| (ids, from)));
            if expected.is_none() {
                // It says nothing.
                write("config.json", serde_json::json!({"eos_token_id": 5}));
                assert_eq!(ends(), Some((vec![5], "config.json")));
                write("config.json", serde_json::json!({}));
            }
        }
    }
    for wrong in [
        serde_json::json!(-1),
        serde_json::json!([1, "a"]),
        serde_json::json!(1u64 << 32),
    ] {
        write("config.json", serde_json::json!({"eos_token_id": wrong}));
        let error = Tokens::read(dir.path()).unwrap_err().to_string();
        let expected = format!("the id of a token is a whole number from 0, and there is {wrong}");
        assert!(
            error.contains(&expected) && error.contains("config.json"),
            "{error}"
        );
    }
    write("config.json", serde_json::json!({}));
    let of_tokenizer = serde_json::json!({
        "add_bos_token": false, "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"
    });
    write("tokenizer_config.json", of_tokenizer);
    let found = Tokens::read(dir.path()).unwrap();
    assert_eq!(found.bos_token.as_deref(), Some("<s>"));
    assert_eq!(found.eos_token.as_deref(), Some("</s>"));
    assert_eq!(found.add_bos_token, Some(false));
}
