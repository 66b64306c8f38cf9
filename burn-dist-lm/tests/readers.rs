//! Hostile files of model folders: no reader takes memory out of proportion, panics, or goes on without end.

#[path = "../../dev/hostile.rs"]
mod hostile;

use std::path::Path;

use burn_dist_lm::data::tokenizer::Text;
use burn_dist_lm::data::tokens::Tokens;
use burn_dist_lm::hf;
use hostile::Content::{Bytes, Link, Sparse};
use hostile::{Content, Reader, USUAL};

/// What a tokenizer takes in memory as against its file, measured: its crate keeps every token and merge several times.
/// A vocabulary of short tokens takes 17 times, merges 18, and merges of nothing, which are none, 54.
const TOKENIZER: u64 = 56;

fn usual() -> Vec<(&'static str, Content)> {
    let list = |value: &str, count: usize| {
        let many = vec![value; count].join(",");
        Bytes(format!("{{\"eos_token_id\":[{many}],\"x\":[{many}]}}").into_bytes())
    };
    vec![
        ("device", Link("/dev/zero")),
        ("hole", Sparse(b"{\"a\":[".to_vec(), 1 << 40)),
        ("numbers", list("0", 200_000)),
        ("small objects", list("{\"\":0}", 30_000)),
        (
            "deep",
            Bytes(format!("{{\"x\":{}", "[".repeat(100_000)).into_bytes()),
        ),
        ("long", Bytes(vec![b' '; 100 << 20])),
    ]
}

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

fn read_config(folder: &Path) -> Result<(), String> {
    hf::read_config(folder)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// What is there as long as one reads: a device, and a file that is one hole.
fn endless() -> Vec<(&'static str, Content)> {
    vec![
        ("device", Link("/dev/zero")),
        ("hole", Sparse(Vec::new(), 1 << 40)),
    ]
}

const READERS: &[Reader] = &[
    Reader {
        name: "config.json",
        sources: &["hf/folder.rs"],
        file: "config.json",
        good: || {
            br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"num_hidden_layers":2,
                "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":128,"vocab_size":300,
                "rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","max_position_embeddings":512,
                "tie_word_embeddings":false,"attention_bias":false,"mlp_bias":false,"torch_dtype":"float32"}"#
                .to_vec()
        },
        hostile: usual,
        read: read_config,
        factor: USUAL,
    },
    Reader {
        name: "ends of texts",
        sources: &[],
        file: "generation_config.json",
        good: || br#"{"eos_token_id":[1,2]}"#.to_vec(),
        hostile: usual,
        read: |folder| {
            hf::read_tokens(folder)
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
            hf::read_tokens(folder)
                .map(drop)
                .map_err(|error| error.to_string())
        },
        factor: USUAL,
    },
    Reader {
        name: "tokenizer",
        sources: &["data/tokenizer.rs"],
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
    Reader {
        name: "files that a model takes along",
        sources: &["hf/origin.rs"],
        file: "chat_template.jinja",
        good: || b"{{ messages }}".to_vec(),
        hostile: endless,
        read: |folder| {
            std::fs::write(folder.join("config.json"), "{}").unwrap();
            let model = [&2u64.to_le_bytes()[..], b"{}"].concat();
            std::fs::write(folder.join("model.safetensors"), model).unwrap();
            hf::Origin::read(folder)
                .map(drop)
                .map_err(|error| error.to_string())
        },
        // A file of the kind may be as long as a tokenizer.
        factor: TOKENIZER,
    },
];

#[test]
fn hostile_files_take_no_memory_out_of_proportion() {
    hostile::check(READERS);
}

#[test]
fn every_place_that_reads_a_file_belongs_to_a_reader() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    hostile::check_sources(&src, READERS, &[]);
}
