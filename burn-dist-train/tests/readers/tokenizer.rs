//! Hostile tokenizers, and files beside them.

#[path = "../../../dev/hostile_json.rs"]
mod hostile_json;

use burn_dist_train::chat::{Conversation, Day, Template};
use burn_dist_train::tokenizer::{Text, Tokens};

use super::hostile::Content::Bytes;
use super::hostile::{Content, Reader, USUAL};
use hostile_json::usual;

/// What a tokenizer takes in memory as against its file, measured: its crate keeps every token and merge several times.
/// A vocabulary of short tokens takes 17 times, merges 18, and merges of nothing, which are none, 54.
const TOKENIZER: u64 = 56;

fn trained(vocab: usize) -> Vec<u8> {
    let texts = ["a text of some words", "and another one of more words"];
    let tokenizer = Text::train(texts.into_iter(), vocab).unwrap();
    tokenizer.to_json().unwrap().into_bytes()
}

/// Tokenizers with very many tokens and merges.
fn tokenizers() -> Vec<(&'static str, Content)> {
    let base = String::from_utf8(trained(259)).unwrap();
    let at = base.find("\"vocab\"").expect("it has a vocabulary");
    let open = at + base[at..].find('{').unwrap() + 1;
    let with = |entries: String| {
        Bytes(format!("{}{entries}{}", &base[..open], &base[open..]).into_bytes())
    };
    let tokens: String = (0..400_000)
        .map(|id| format!("\"t{id}\":{},", id + 1000))
        .collect();
    let at = base.find("\"merges\"").expect("it has merges");
    let open = at + base[at..].find('[').unwrap() + 1;
    let close = open + base[open..].find(']').unwrap();
    let merges = |merge: &str, count: usize| {
        let merges = vec![merge; count].join(",");
        Bytes(format!("{}{merges}{}", &base[..open], &base[close..]).into_bytes())
    };
    let at = base
        .find("\"added_tokens\"")
        .expect("it has tokens of its own");
    let open = at + base[at..].find('[').unwrap() + 1;
    let added: String = (0..30_000)
        .map(|id| {
            format!(
                "{{\"id\":{},\"content\":\"<{id}>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\
                 \"normalized\":false,\"special\":true}},",
                id + 300
            )
        })
        .collect();
    let added = format!("{}{added}{}", &base[..open], &base[open..]);
    let mut all = usual();
    all.extend([
        ("tokens", with(tokens)),
        ("merges", merges("\"a b\"", 500_000)),
        ("short merges", merges("[]", 1_000_000)),
        ("merges of nothing", merges("[\"\",\"\"]", 500_000)),
        ("added tokens", Bytes(added.into_bytes())),
    ]);
    all
}

/// What a compiled template takes in memory as against its text.
const TEMPLATE: u64 = 56;

/// Templates that compute without end, that nest, and files that are none.
fn templates() -> Vec<(&'static str, Content)> {
    let text = |text: String| Bytes(text.into_bytes());
    let nested = "{% if true %}".repeat(50_000);
    let doubled = "{% set ns = namespace(t='x') %}{% for a in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}";
    let mut all = usual();
    all.extend([
        ("nested", text(nested)),
        ("brackets", text(format!("{{{{ {}", "[".repeat(1 << 20)))),
        ("doubled", text(doubled.to_string())),
        (
            "loops",
            text("{% for a in range(90000) %}".repeat(8) + &"{% endfor %}".repeat(8)),
        ),
        ("long", text("{{ messages }}".repeat(100_000))),
    ]);
    all
}

pub(crate) const READERS: [Reader; 4] = [
    Reader {
        name: "ends of texts",
        sources: &[],
        file: "generation_config.json",
        good: || br#"{"eos_token_id":[1,2]}"#.to_vec(),
        hostile: usual,
        read: |folder| {
            Tokens::read(folder)
                .map(drop)
                .map_err(|error| error.to_string())
        },
        factor: USUAL,
    },
    Reader {
        name: "tokens beside the tokenizer",
        sources: &[],
        file: "tokenizer_config.json",
        good: || br#"{"eos_token":"<|end|>","bos_token":{"content":"<|user|>"}}"#.to_vec(),
        hostile: usual,
        read: |folder| {
            Tokens::read(folder)
                .map(drop)
                .map_err(|error| error.to_string())
        },
        factor: USUAL,
    },
    Reader {
        name: "chat template",
        sources: &["tokenizer/declared.rs"],
        file: "chat_template.jinja",
        good: || b"{% for message in messages %}{{ message.content }}{% endfor %}".to_vec(),
        hostile: templates,
        read: |folder| {
            let tokens = Tokens::read(folder).map_err(|error| error.to_string())?;
            let template = tokens.chat_template.unwrap_or_default();
            let template = Template::new(&template, tokens.special, Day::default());
            let mut conversation = Conversation::default();
            conversation.push("user", "a");
            let prompt = template.and_then(|template| template.prompt(&conversation));
            prompt.map(drop).map_err(|error| error.to_string())
        },
        factor: TEMPLATE,
    },
    Reader {
        name: "tokenizer",
        sources: &["tokenizer/mod.rs"],
        file: "tokenizer.json",
        good: || trained(300),
        hostile: tokenizers,
        read: |folder| {
            let declared = Tokens {
                eos_token: Some("<|end|>".to_string()),
                ..Tokens::default()
            };
            let tokenizer = Text::read(&folder.join("tokenizer.json"), &declared);
            let tokenizer = tokenizer.map_err(|error| error.to_string())?;
            let text = tokenizer.decode_exactly(&[0, 5, 299, u32::MAX]);
            text.map(drop).map_err(|error| error.to_string())
        },
        factor: TOKENIZER,
    },
];
