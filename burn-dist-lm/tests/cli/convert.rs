//! Weights from a checkpoint to a folder and back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{fails, text, works};

/// Tensors of a folder by name, with type, shape and bytes.
fn tensors(folder: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors = tensors.tensors().into_iter();
    let described = |(name, tensor): (String, safetensors::tensor::TensorView<'_>)| {
        let (dtype, shape) = (format!("{:?}", tensor.dtype()), tensor.shape().to_vec());
        (name, (dtype, shape, tensor.data().to_vec()))
    };
    tensors.map(described).collect()
}

fn same_files(folder: &Path, like: &Path, names: &[&str]) {
    for name in names {
        let read = |folder: &Path| fs::read(folder.join(name)).unwrap();
        assert_eq!(read(folder), read(like), "{name}");
    }
}

/// The matrices of experts, a tensor each in a folder, are one parameter in a checkpoint.
#[test]
fn experts_are_converted_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    for family in ["mixtral", "qwen3-moe"] {
        let (folder, weights) = (goldens.join(family), dir.path().join(family));
        let back = dir.path().join(format!("{family}-back"));
        works(&["convert", text(&folder), text(&weights)]);
        let like = ["--like", text(&folder)];
        works(&[&["convert", text(&weights), text(&back)], &like[..]].concat());
        assert_eq!(tensors(&back), tensors(&folder), "{family}");
    }
}

#[test]
fn checkpoints_and_folders_become_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (data, base, run) = (at("texts.jsonl"), at("base"), at("run"));
    let line = |number| {
        format!(
            "{{\"prompt\": \"What follows {number}?\", \"response\": \"{}\"}}\n",
            number + 1
        )
    };
    fs::write(&data, (0..40).map(line).collect::<String>()).unwrap();
    let usual = ["--steps", "2", "--batch", "4", "--seq", "16", "--no-plot"];
    let train = [
        "pretrain",
        "--mesh",
        "fsdp=2,tp=2",
        "--data",
        text(&data),
        "--save",
        text(&base),
        "--run",
        text(&run),
    ];
    works(&[&train[..], &usual].concat());
    let expected = tensors(&base);

    // Of a run, of its checkpoints, and of one of them.
    let mut kept = fs::read_dir(run.join("checkpoints")).unwrap();
    let step = kept.find_map(|entry| Some(entry.ok()?.path()).filter(|path| path.is_dir()));
    let step = step.expect("a checkpoint");
    let out = at("out");
    let said = works(&["convert", text(&run), text(&out), "--like", text(&base)]);
    assert!(
        said.contains("out is a model in the form of Hugging Face"),
        "{said}"
    );
    assert_eq!(tensors(&out), expected);
    same_files(&out, &base, &["tokenizer.json"]);
    works(&[
        "generate",
        "--model",
        text(&out),
        "--prompt",
        "What",
        "--max-new-tokens",
        "2",
    ]);
    let again = at("again");
    works(&[
        "convert",
        text(&run.join("checkpoints")),
        text(&again),
        "--like",
        text(&out),
        "--step",
        "2",
    ]);
    assert_eq!(tensors(&again), expected);
    same_files(&again, &out, &["config.json", "tokenizer.json"]);
    fails(
        &[
            "convert",
            text(&step),
            text(&at("none")),
            "--like",
            text(&base),
        ],
        1,
        &["is neither a folder of a model", "nor has it checkpoints"],
    );

    // Back, and once more.
    let (weights, back) = (at("weights"), at("back"));
    let said = works(&["convert", text(&base), text(&weights)]);
    assert!(said.contains("is a checkpoint"), "{said}");
    works(&[
        "convert",
        text(&weights),
        text(&back),
        "--like",
        text(&base),
    ]);
    assert_eq!(tensors(&back), expected);

    // In another type.
    let half = at("half");
    works(&[
        "convert",
        text(&run),
        text(&half),
        "--like",
        text(&base),
        "--dtype",
        "bf16",
    ]);
    for (name, (dtype, shape, bytes)) in tensors(&half) {
        let (_, expected_shape, expected) = &expected[&name];
        assert_eq!((&*dtype, &shape), ("BF16", expected_shape), "{name}");
        assert_eq!(bytes.len() * 2, expected.len(), "{name}");
    }

    let none = at("none");
    let refused = |from: &Path, to: &Path, more: &[&str], parts: &[&str]| {
        fails(
            &[&["convert", text(from), text(to)], more].concat(),
            1,
            parts,
        );
    };
    let like = ["--like", text(&base)];
    refused(
        &run,
        &none,
        &[],
        &["is not known (the run was begun with tiny)", "--like DIR"],
    );
    refused(
        &run,
        &none,
        &[&like[..], &["--step", "9"]].concat(),
        &["no checkpoint of step 9: it has those of 2"],
    );
    refused(
        &run,
        &out,
        &like,
        &["out is there already, with files in it"],
    );
    refused(
        &base,
        &none,
        &like,
        &["--like is for checkpoints", "has a config.json"],
    );
    refused(
        &base,
        &none,
        &["--step", "2"],
        &["--step is for checkpoints"],
    );
    refused(
        &dir.path().join("nothing"),
        &none,
        &like,
        &["nothing is neither a folder of a model"],
    );
    fails(
        &["convert", text(&base), text(&none), "--dtype", "i8"],
        2,
        &["--dtype", "weights are f64, f32, f16, bf16"],
    );
    // A folder of another model.
    let config = fs::read_to_string(base.join("config.json")).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&config).unwrap();
    other["rms_norm_eps"] = 0.5.into();
    fs::write(base.join("config.json"), other.to_string()).unwrap();
    refused(
        &run,
        &none,
        &like,
        &[
            "is no folder of this model",
            "it was begun with the model tiny",
        ],
    );
    assert!(!none.exists(), "nothing is left");
    fs::write(base.join("config.json"), config).unwrap();

    // A run that was begun with a folder is known by it.
    let (tuned, tuned_run) = (at("tuned"), at("tuned-run"));
    let tune = [
        "finetune",
        "--model",
        text(&base),
        "--data",
        text(&data),
        "--questions",
        "0",
        "--run",
        text(&tuned_run),
    ];
    works(&[&tune[..], &["--save", text(&tuned)], &usual].concat());
    let out = at("tuned-again");
    works(&["convert", text(&tuned_run), text(&out)]);
    assert_eq!(tensors(&out), tensors(&tuned));
}
