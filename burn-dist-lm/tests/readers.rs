//! Hostile files of model folders: no reader takes memory out of proportion, panics, or goes on without end.

#[path = "../../dev/hostile.rs"]
mod hostile;
#[path = "../../dev/hostile_json.rs"]
mod hostile_json;

use std::path::Path;

use burn_dist::trainer::folder::{InFolders, Origin};
use burn_dist::trainer::lora;
use burn_dist_lm::model::Llama;
use hostile::Content::{Link, Sparse};
use hostile::{Content, Reader, USUAL};
use hostile_json::usual;

/// A file beside the weights may be as long as a tokenizer, which takes more memory than others.
const BESIDE: u64 = 56;

fn read_config(folder: &Path) -> Result<(), String> {
    Llama::read_config(folder)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn read_adapters(folder: &Path) -> Result<(), String> {
    let tensors = include_bytes!("peft/adapters/adapter_model.safetensors");
    std::fs::write(folder.join("adapter_model.safetensors"), tensors).unwrap();
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peft/base");
    let config = Llama::read_config(&base).expect("sizes of the base");
    lora::read::<Llama>(folder, &config)
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
        sources: &["hf/config.rs"],
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
        name: "adapter_config.json",
        sources: &[],
        file: "adapter_config.json",
        good: || include_bytes!("peft/adapters/adapter_config.json").to_vec(),
        hostile: usual,
        read: read_adapters,
        factor: USUAL,
    },
    Reader {
        name: "files that a model takes along",
        sources: &[],
        file: "chat_template.jinja",
        good: || b"{{ messages }}".to_vec(),
        hostile: endless,
        read: |folder| {
            std::fs::write(folder.join("config.json"), "{}").unwrap();
            let model = [&2u64.to_le_bytes()[..], b"{}"].concat();
            std::fs::write(folder.join("model.safetensors"), model).unwrap();
            Origin::read(folder)
                .map(drop)
                .map_err(|error| error.to_string())
        },
        factor: BESIDE,
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
