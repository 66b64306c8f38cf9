//! Folders of each family and option, against what Hugging Face's library makes of them
//! (`dev/goldens/families.py`).

use std::path::{Path, PathBuf};

use burn::tensor::{Int, Tensor, TensorData};
use burn_dist::trainer::args::{AxesArgs, MeshArgs};
use burn_dist::trainer::folder::{Origin, load};
use burn_dist::trainer::mesh::Mesh;

use super::{save_to_on, stored};
use crate::generate::{Decoding, decode};
use crate::hf::config::read_config;
use crate::model::{Llama, LlamaConfig};
use burn_dist::train::rng::Rng;

/// Each with a mesh on which its options are split.
const CASES: [(&str, &str); 11] = [
    ("llama", "fsdp=2,tp=2"),
    ("llama-tied-llama3", "tp=2"),
    ("llama-linear", "fsdp=2"),
    ("llama-dynamic", "cp=2"),
    ("llama-biases-yarn", "fsdp=2,tp=2"),
    ("mistral-window", "fsdp=2,tp=2"),
    ("qwen2-window", "fsdp=2,tp=2"),
    ("qwen3-yarn", "fsdp=2,tp=2"),
    ("smollm3", "fsdp=2,tp=2"),
    ("mixtral", "fsdp=2,ep=2"),
    ("qwen3-moe", "ep=2,tp=2"),
];

/// Logits may differ by so much.
const TOLERANCE: f32 = 2e-4;

fn folder(case: &str) -> PathBuf {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    goldens.join(case)
}

/// The results of the library on a folder.
struct Expected {
    tokens: Vec<i32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

impl Expected {
    fn read(folder: &Path) -> Self {
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let words = |name| {
            let (words, rest) = file.tensor(name).unwrap().data().as_chunks::<4>();
            assert!(rest.is_empty());
            words.to_vec()
        };
        let ints = |name| words(name).into_iter().map(i32::from_le_bytes);
        Self {
            tokens: ints("tokens").collect(),
            logits: words("logits")
                .into_iter()
                .map(f32::from_le_bytes)
                .collect(),
            greedy: ints("greedy").map(|id| id as u32).collect(),
        }
    }
}

/// The model of a folder, on a mesh.
fn open(axes: &str, folder: &Path) -> (Mesh, LlamaConfig, Llama) {
    let axes = AxesArgs {
        mesh: Some(axes.parse().unwrap()),
        ..AxesArgs::default()
    };
    let mesh = Mesh::open::<Llama>(&MeshArgs::from(axes)).unwrap();
    let config = read_config(folder).unwrap();
    let model = mesh.parallelize(config.init(mesh.device())).unwrap();
    let model = load(model, &config, folder, mesh.device()).unwrap();
    (mesh, config, model)
}

#[test]
fn logits_are_those_of_the_library_on_every_mesh() {
    for (case, split) in CASES {
        let folder = folder(case);
        let expected = Expected::read(&folder);
        for axes in ["1", split] {
            let (mesh, config, model) = open(axes, &folder);
            let seq = expected.tokens.len();
            assert_eq!(expected.logits.len(), seq * config.vocab);
            // Twice, so that rows are split too.
            let rows = expected.tokens.repeat(2);
            let tokens =
                Tensor::<2, Int>::from_data(TensorData::new(rows, [2, seq]), mesh.device());
            let logits = model.forward(tokens).into_data();
            let logits: Vec<f32> = logits.iter::<f32>().collect();
            for logits in logits.chunks(seq * config.vocab) {
                let pairs = logits.iter().zip(&expected.logits);
                let most = pairs.map(|(found, expected)| (found - expected).abs());
                let most = most.fold(0.0, f32::max);
                assert!(most <= TOLERANCE, "{case} on {axes}: {most:e} off");
            }
        }
    }
}

#[test]
fn greedy_text_is_that_of_the_library() {
    for (case, _) in CASES {
        let folder = folder(case);
        let expected = Expected::read(&folder);
        let (mesh, _, model) = open("1", &folder);
        let prompt = expected.tokens[..8].iter().map(|id| *id as u32).collect();
        let decoding = Decoding {
            temperature: 0.0,
            max_new_tokens: expected.greedy.len(),
            seed: 0,
        };
        let ends: (u32, &dyn Fn(u32) -> bool) = (1, &|id| id == 1);
        let mut rng = Rng::new(0, 0);
        let (rows, told) = (vec![prompt], &mut |_: usize, _: &[u32]| Ok(()));
        let found = decode(
            &model,
            rows,
            ends,
            &decoding,
            (&mut rng, told),
            mesh.device(),
        );
        assert_eq!(found.unwrap(), [expected.greedy], "{case}");
    }
}

/// Bit by bit, with every field of `config.json`; and what is written of the sizes alone says the same of them.
#[test]
fn every_family_leaves_as_it_came() {
    for (case, split) in CASES {
        let from = folder(case);
        let (mesh, config, model) = open(split, &from);
        let origin = Origin::read(&from).unwrap();
        let to = tempfile::tempdir().unwrap();
        save_to_on(to.path(), &model, &config, Some(&origin), mesh.device()).unwrap();
        assert_eq!(stored(to.path()), stored(&from), "{case}");
        let json = |dir: &Path| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
        };
        assert_eq!(json(to.path()), json(&from), "{case}");

        let made = tempfile::tempdir().unwrap();
        save_to_on(made.path(), &model, &config, None, mesh.device()).unwrap();
        assert_eq!(read_config(made.path()).unwrap(), config, "{case}");
        assert_eq!(
            json(made.path())["architectures"],
            json(&from)["architectures"]
        );
    }
}

/// A tensor that another family has is left over here, and one that is missing is named.
#[test]
fn tensors_of_another_family_are_named() {
    for (case, model_type, expected) in [
        (
            "qwen2-window",
            "llama",
            "unexpected model.layers.1.self_attn.k_proj.bias, shape [8]",
        ),
        (
            "llama",
            "qwen2",
            "missing model.layers.0.self_attn.q_proj.bias, shape [16]",
        ),
        (
            "qwen3-yarn",
            "mistral",
            "unexpected model.layers.0.self_attn.q_norm.weight, shape [8]",
        ),
    ] {
        let (from, dir) = (folder(case), tempfile::tempdir().unwrap());
        let config = std::fs::read(from.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        config["model_type"] = model_type.into();
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        std::fs::copy(
            from.join("model.safetensors"),
            dir.path().join("model.safetensors"),
        )
        .unwrap();
        let error = super::load_from(dir.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{case}: {error}");
    }
}
