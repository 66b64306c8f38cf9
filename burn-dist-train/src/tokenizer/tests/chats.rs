//! Conversations by templates that packages ship, against Hugging Face's library (`dev/goldens/chats.py`).

use std::path::{Path, PathBuf};

use super::super::*;
use super::{declared, tokenizer};
use crate::chat::{ChatError, Conversation};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/chats")
}

/// The tokenizer with a template.
fn text_with(template: &str) -> Text {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", TOKENIZER_CONFIG, ENDS[0]] {
        std::fs::copy(goldens().join(name), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join(CHAT_TEMPLATE), template).unwrap();
    Text::of_model(dir.path(), 1 << 10).unwrap()
}

fn hash(encoded: &Encoded) -> String {
    let ids = encoded.ids.iter().flat_map(|id| id.to_le_bytes());
    let learn = |index| encoded.learn.iter().any(|range| range.contains(&index));
    let mask = (0..encoded.ids.len()).map(|index| u8::from(learn(index)));
    let hash = ids
        .chain(mask)
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
    format!("{hash:016x}")
}

#[test]
fn ids_and_answers_are_those_of_the_library() {
    let rows = std::fs::read_to_string(goldens().join("conversations.jsonl")).unwrap();
    let rows: Vec<serde_json::Value> = rows
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let templates = std::fs::read_dir(goldens().join("templates")).unwrap();
    let (mut num, mut wrong) = (0, Vec::new());
    for template in templates {
        let path = template.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = text_with(&std::fs::read_to_string(&path).unwrap());
        let expected = goldens().join(format!("expected/{name}.txt"));
        let expected = std::fs::read_to_string(expected).unwrap();
        assert_eq!(expected.lines().count(), rows.len());
        for (number, (row, expected)) in rows.iter().zip(expected.lines()).enumerate() {
            let found = match text.encode_messages(&row["messages"].to_string()) {
                Ok(encoded) => hash(&encoded),
                Err(TokenizerError::Chat(ChatError::Template(_))) => "fails".to_string(),
                Err(TokenizerError::Chat(ChatError::Prefix { .. })) => "prefix".to_string(),
                Err(TokenizerError::Chat(ChatError::NoAnswer)) => "no answer".to_string(),
                Err(error) => error.to_string(),
            };
            num += 1;
            if found != expected {
                wrong.push(format!(
                    "{name}, conversation {}: {found}, not {expected}",
                    number + 1
                ));
            }
        }
    }
    assert_eq!(num, 13 * 200);
    assert!(
        wrong.is_empty(),
        "{} of {num}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

const PLAIN: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                     {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The end of an answer is learnt, and not what the template writes after it.
#[test]
fn an_answer_is_learnt_with_its_end() {
    let text = text_with(PLAIN);
    let example = Example {
        kind: None,
        prompt: "a b".into(),
        response: "c d".into(),
    };
    let encoded = text.encode_example(&example).unwrap();
    let [learn] = encoded.learn.as_slice() else {
        panic!("{:?}", encoded.learn);
    };
    let read = |ids: &[u32]| text.tokenizer.decode(ids, false).unwrap();
    assert_eq!(read(&encoded.ids[learn.clone()]), "c d<|im_end|>");
    assert_eq!(read(&encoded.ids[learn.end..]), "\n");
    let asked = text.encode_prompt("a b", text.asking()).unwrap();
    assert_eq!(asked, encoded.ids[..learn.start]);
    assert!(
        text.description()
            .ends_with("dialogues are in the form of its chat template")
    );
}

#[test]
fn a_template_in_which_no_answer_ends_is_not_what_pairs_are_taught_in() {
    let tokens = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"];
    let with = |ends: &[u32]| {
        let declared = Tokens {
            chat_template: Some(PLAIN.to_string()),
            ..declared(ends, "</s>")
        };
        Text::new(tokenizer(&tokens), &declared).unwrap()
    };
    assert_eq!(with(&[257]).dialogue, Dialogue::Plain);
    assert_eq!(with(&[257, 259]).dialogue, Dialogue::Template);
    // Whoever asks for it has it all the same.
    assert!(with(&[257]).encode_prompt("a", Wrap::Chat).is_ok());
    let broken = Tokens {
        chat_template: Some("{% if %}".to_string()),
        ..declared(&[257], "</s>")
    };
    let broken = Text::new(tokenizer(&tokens), &broken).unwrap();
    assert!(broken.encode_text("a").is_ok());
    let error = broken
        .encode_prompt("a", Wrap::Chat)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("the chat template failed: "), "{error}");
    let none = Text::new(tokenizer(&tokens), &declared(&[257], "</s>")).unwrap();
    let error = none
        .encode_messages(r#"[{"role":"assistant","content":"a"}]"#)
        .unwrap_err();
    assert!(matches!(error, TokenizerError::NoChat), "{error}");
}

/// Models made here have no template file, and one all the same.
#[test]
fn conversations_of_models_made_here_are_their_pairs() {
    let text = super::text();
    let example = Example {
        kind: None,
        prompt: "What is 4 plus 5?".into(),
        response: "9".into(),
    };
    let mut conversation = Conversation::default();
    conversation.push("user", &example.prompt);
    assert_eq!(
        text.encode_asked(&conversation).unwrap(),
        text.encode_prompt(&example.prompt, Wrap::Chat).unwrap()
    );
    conversation.push("assistant", &example.response);
    assert_eq!(
        text.encode_conversation(&conversation).unwrap(),
        text.encode_example(&example).unwrap()
    );
}
