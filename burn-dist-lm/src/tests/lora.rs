//! Adapters against PEFT's own, on meshes, in the plan, and of other bases.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::checkpoint::hf::{ADAPTERS, Folder};
use burn_dist::explanation::Ask;
use burn_dist::layout::Rows;
use burn_dist::report::MeshReport;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::args::{AxesArgs, ConvertArgs, MeshArgs};
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::convert::merge;
use burn_dist::trainer::folder::{self, InFolders};
use burn_dist::trainer::lora::{AdapterError, Adapters, Base, Layers, Targets, load, read, save};
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::optimizer::optimizer;
use burn_dist::trainer::tokens::{Batch, RandomTokens};
use burn_dist::trainer::{predict, step};
use safetensors::SafeTensors;

use crate::model::{Llama, LlamaConfig};

/// The path of a file that `tests/peft/make.py` has made.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/peft")
        .join(name)
}

fn devices(axes: &str) -> MeshArgs {
    let axes = AxesArgs {
        mesh: Some(axes.parse().unwrap()),
        ..AxesArgs::default()
    };
    axes.into()
}

fn mesh(axes: &str) -> Mesh {
    Mesh::open::<Llama>(&devices(axes)).unwrap()
}

/// The base with the adapters of a folder.
fn config(adapters: &Path) -> LlamaConfig {
    let config = Llama::read_config(&golden("base")).unwrap();
    LlamaConfig {
        adapters: Some(read::<Llama>(adapters, &config).unwrap()),
        ..config
    }
}

fn loaded(mesh: &Mesh, config: &LlamaConfig, base: &Path, adapters: Option<&Path>) -> Llama {
    let model = mesh.parallelize(config.init(mesh.device())).unwrap();
    let model = folder::load(model, config, base, mesh.device()).unwrap();
    match adapters {
        Some(dir) => load(model, config, dir, mesh.device()).unwrap().0,
        None => model,
    }
}

/// The largest difference to the logits that PEFT has computed.
fn apart(model: &Llama, device: &Device, name: &str) -> f32 {
    let bytes = std::fs::read(golden("logits.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let elements = |name: &str| {
        tensors
            .tensor(name)
            .unwrap()
            .data()
            .as_chunks::<4>()
            .0
            .to_vec()
    };
    let tokens: Vec<i32> = elements("tokens")
        .into_iter()
        .map(i32::from_le_bytes)
        .collect();
    let shape = tensors.tensor("tokens").unwrap().shape().to_vec();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, shape), device);
    let found = model.forward(tokens).into_data();
    let expected = elements(name).into_iter().map(f32::from_le_bytes);
    assert_eq!(found.num_elements(), expected.len());
    found
        .iter::<f32>()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// Adapters that PEFT made, and adapters that were trained here.
#[test]
fn logits_are_those_of_peft() {
    for name in ["adapters", "trained"] {
        let config = config(&golden(name));
        for axes in ["1", "fsdp=2,tp=2", "pp=2,dp=2"] {
            let mesh = mesh(axes);
            let model = loaded(&mesh, &config, &golden("base"), Some(&golden(name)));
            let apart = apart(&model.valid(), &mesh.inference_device(), name);
            assert!(apart <= 2e-4, "{name} on {axes}: {apart}");
        }
    }
}

/// The same tensors, bit by bit, and the fields that PEFT has written.
#[test]
fn a_folder_is_written_as_it_was_read() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["adapters", "trained"] {
        let config = config(&golden(name));
        let mesh = mesh("fsdp=2,tp=2");
        let model = loaded(&mesh, &config, &golden("base"), Some(&golden(name)));
        let (to, adapters) = (dir.path().join(name), config.adapters.as_ref().unwrap());
        save(&model, &config, (adapters, "base"), &to, mesh.device()).unwrap();
        let tensors = |dir: &Path| -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
            let bytes = std::fs::read(dir.join(ADAPTERS)).unwrap();
            let tensors = SafeTensors::deserialize(&bytes)
                .unwrap()
                .tensors()
                .into_iter();
            let owned = tensors.map(|(name, it)| (name, (it.shape().to_vec(), it.data().to_vec())));
            owned.collect()
        };
        assert_eq!(tensors(&to), tensors(&golden(name)), "{name}");
        let fields = |dir: &Path| -> BTreeMap<String, serde_json::Value> {
            let text = std::fs::read_to_string(dir.join("adapter_config.json")).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        let expected = fields(&golden(name));
        for (field, value) in fields(&to) {
            let (mut value, mut expected) = (value, expected[&field].clone());
            for list in [&mut value, &mut expected] {
                if let Some(list) = list.as_array_mut() {
                    list.sort_by_key(ToString::to_string);
                }
            }
            assert_eq!(value, expected, "{name}: {field}");
        }
        assert_eq!(read::<Llama>(&to, &config).unwrap(), *adapters);
    }
}

#[test]
fn a_merged_folder_needs_no_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("merged");
    let with = config(&golden("adapters"));
    let args = ConvertArgs {
        from: golden("base"),
        to: to.clone(),
        like: None,
        step: None,
        dtype: None,
    };
    let file = Folder::open_file(golden("adapters"), ADAPTERS).unwrap();
    merge(&args, &file, with.adapters.as_ref().unwrap().scale()).unwrap();
    let config = Llama::read_config(&to).unwrap();
    let mesh = mesh("1");
    let model = loaded(&mesh, &config, &to, None);
    let found = apart(&model.valid(), &mesh.inference_device(), "adapters");
    assert!(found <= 2e-4, "{found}");
    // So is what is merged on the mesh, as --save-merged does.
    let model = loaded(&mesh, &with, &golden("base"), Some(&golden("adapters")));
    let found = apart(
        &model.materialize().valid(),
        &mesh.inference_device(),
        "adapters",
    );
    assert!(found <= 2e-4, "{found}");
    // Not by doing nothing.
    let model = loaded(&mesh, &config, &golden("base"), None);
    assert!(apart(&model.valid(), &mesh.inference_device(), "adapters") > 0.1);
}

#[test]
fn targets_are_names_and_patterns() {
    let config = LlamaConfig::test();
    let layers = Layers::of::<Llama>(&config);
    let chosen = |text: &str| {
        let targets: Targets = text.parse().unwrap();
        assert_eq!(targets.to_string(), text);
        targets.matrices(&layers).map(Vec::from_iter)
    };
    let of_layers = |names: &[&str]| -> Vec<String> {
        let each = |layer| {
            names
                .iter()
                .map(move |name| format!("layers.{layer}.{name}.weight"))
        };
        (0..2).flat_map(each).collect()
    };
    let ffn = ["feed_forward.w1", "feed_forward.w2", "feed_forward.w3"];
    assert_eq!(chosen("mlp.*").unwrap(), of_layers(&ffn));
    assert_eq!(
        chosen("q_proj,v_proj").unwrap(),
        of_layers(&["attention.wq", "attention.wv"])
    );
    assert_eq!(chosen("layers.1.*.*_proj").unwrap().len(), 7);
    assert_eq!(
        chosen("model.layers.0.self_attn.o_proj").unwrap(),
        ["layers.0.attention.wo.weight"]
    );
    assert_eq!(chosen("all-linear").unwrap().len(), 14);
    assert_eq!(chosen("lm_head").unwrap(), ["output.weight"]);
    for wrong in [
        "q_prj",
        "proj",
        "layers.2.self_attn.q_proj",
        "embed_tokens",
        "*norm",
    ] {
        let error = chosen(wrong).unwrap_err().to_string();
        for part in [wrong, "down_proj, gate_proj, k_proj, lm_head", "all-linear"] {
            assert!(error.contains(part), "{error}");
        }
    }
    for wrong in ["", "q_proj,", "a..b", "q proj", "q_proj$"] {
        assert!(
            wrong
                .parse::<Targets>()
                .unwrap_err()
                .contains("names no layer"),
            "{wrong}"
        );
    }
    let mut chosen = std::collections::BTreeSet::from(["model.layers.0.mlp.up_proj"]);
    assert_eq!(layers.shortest(&chosen), ["model.layers.0.mlp.up_proj"]);
    chosen.insert("model.layers.1.mlp.up_proj");
    assert_eq!(layers.shortest(&chosen), ["up_proj"]);
}

#[test]
fn adapters_for_another_base_are_named() {
    let base = Llama::read_config(&golden("base")).unwrap();
    let refused = |config: &LlamaConfig, parts: &[&str]| {
        let error = read::<Llama>(&golden("adapters"), config).unwrap_err();
        assert!(matches!(error, AdapterError::OtherBase { .. }), "{error}");
        let said = error.to_string();
        for part in parts {
            assert!(said.contains(part), "no {part} in {said}");
        }
    };
    let wider = LlamaConfig {
        dim: 64,
        ..base.clone()
    };
    let parts = [
        "of another base",
        "layers.0.self_attn.q_proj.lora_A.weight has shape [4, 32], and the base needs [4, 64]",
    ];
    refused(&wider, &parts);
    let shorter = LlamaConfig {
        num_layers: 1,
        ..base.clone()
    };
    refused(
        &shorter,
        &["the base has no linear layer model.layers.1.self_attn.q_proj"],
    );

    let dir = tempfile::tempdir().unwrap();
    let copy = |name: &str, change: &dyn Fn(String) -> String| {
        let text = std::fs::read_to_string(golden("adapters").join(name)).unwrap();
        std::fs::write(dir.path().join(name), change(text)).unwrap();
    };
    let tensors = std::fs::read(golden("adapters").join(ADAPTERS)).unwrap();
    std::fs::write(dir.path().join(ADAPTERS), tensors).unwrap();
    let config = |from: &str, to: &str| {
        copy("adapter_config.json", &|text| {
            assert!(text.contains(from), "no {from} in {text}");
            text.replace(from, to)
        });
        read::<Llama>(dir.path(), &base)
    };
    config("\"r\": 4", "\"r\": 4").unwrap();
    let error = config("\"r\": 4", "\"r\": 8").unwrap_err().to_string();
    assert!(error.contains("and the base needs [8, 32]"), "{error}");
    for (from, to, part) in [
        (
            "\"use_dora\": false",
            "\"use_dora\": true",
            "use_dora is true",
        ),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "bias is \"all\""),
        ("\"r\": 4", "\"r\": 0", "r is 0"),
        (
            "\"lora_dropout\": 0.05",
            "\"lora_dropout\": 1.5",
            "lora_dropout is 1.5",
        ),
        (
            "\"peft_type\": \"LORA\"",
            "\"peft_type\": \"IA3\"",
            "peft_type is \"IA3\"",
        ),
        (
            "\"rank_pattern\": {}",
            "\"rank_pattern\": {\"v_proj\": 2}",
            "rank_pattern is",
        ),
    ] {
        let error = config(from, to).unwrap_err();
        assert!(matches!(error, AdapterError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let bytes = std::fs::read(golden("adapters").join(ADAPTERS)).unwrap();
    let (last, end) = (
        "layers.1.self_attn.v_proj.lora_B",
        "layers.1.self_attn.v_proj.lora_X",
    );
    let at = bytes
        .windows(last.len())
        .position(|window| window == last.as_bytes())
        .unwrap();
    let mut changed = bytes.clone();
    changed[at..at + last.len()].copy_from_slice(end.as_bytes());
    std::fs::write(dir.path().join(ADAPTERS), changed).unwrap();
    let error = config("\"r\": 4", "\"r\": 4").unwrap_err().to_string();
    for part in [
        "it is no factor of a layer",
        "missing base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

fn adapted(base: LlamaConfig, rest: Base) -> LlamaConfig {
    let matrices = Targets::AllLinear
        .matrices(&Layers::of::<Llama>(&base))
        .unwrap();
    let adapters = Adapters {
        rank: 4,
        alpha: 8.0,
        is_rank_stabilized: false,
        dropout: 0.0,
        base: rest,
        matrices,
    };
    LlamaConfig {
        adapters: Some(adapters),
        ..base
    }
}

/// The same rows at every step: no number of tokens is a size of the model.
fn rows() -> Batch {
    let mut source = RandomTokens {
        batch: 4,
        seq: 12,
        vocab: 64,
        rng: Rng::new(0, 0),
        held: Rows::all(4),
    };
    source.next_batch().unwrap()
}

/// Elements that a rank of `fsdp=2,tp=2` has at rest: of the model, and of the factors alone.
fn elements_at_rest(config: &LlamaConfig) -> (usize, usize) {
    let rank = 4;
    // Over tp a layer is split by its outputs or, where it writes to the residual, by its inputs.
    let layers = Layers::of::<Llama>(config);
    let factors = layers.iter().map(|(name, layer)| {
        let (a, b) = (layer.inputs * rank, rank * layer.outputs);
        match name {
            _ if name.ends_with("lm_head") => 0,
            _ if name.ends_with("o_proj") || name.ends_with("down_proj") => a / 4 + b / 2,
            _ => a / 2 + b / 4,
        }
    });
    let factors: usize = factors.sum();
    // Norms are whole over tp, matrices are split over both axes.
    let norms = (2 * config.num_layers + 1) * config.dim;
    ((config.num_params() - norms) / 4 + norms / 2, factors)
}

/// A base has no gradient that is reduced, and no states.
#[test]
fn a_step_reduces_and_keeps_states_of_factors_alone() {
    let config = adapted(LlamaConfig::test(), Base::F32);
    let dry = Mesh::dry::<Llama>(&devices("fsdp=2,tp=2")).unwrap();
    let model = dry.parallelize(config.init(dry.device())).unwrap();
    let planned = predict::steps(&dry, model, |_| Ok(rows()), [1, 1], &Ask::default());
    let plan = planned.unwrap().steady;
    let (own, factors) = elements_at_rest(&config);

    let mesh = mesh("fsdp=2,tp=2");
    let mut model = mesh.parallelize(config.init(mesh.device())).unwrap();
    let mut optim = optimizer();
    let mut before = MeshReport::default();
    for _ in 0..2 {
        before = mesh.report();
        let (next, loss) = step::one(model, &mut optim, &rows(), 1e-2, mesh.device());
        model = next;
        let _ = loss.into_data();
    }
    let after = mesh.report();
    for (rank, plan) in after.ranks.iter().zip(&plan.memory) {
        assert_eq!(rank.predicted_peak_bytes, rank.peak_bytes);
        assert_eq!(plan.end_bytes, rank.resident_bytes);
        // In f32, and two moments of AdamW for each element of a factor.
        assert_eq!(rank.resident_bytes as usize, 4 * (own + 3 * factors));
    }
    let received = |report: &MeshReport| {
        let mut all = BTreeMap::new();
        for (kind, _, bytes) in report.ranks.iter().flat_map(|rank| rank.received.clone()) {
            *all.entry(kind.to_string()).or_insert(0) += bytes;
        }
        all
    };
    let (before, after) = (received(&before), received(&after));
    let counted = after.into_iter().map(|(kind, bytes)| {
        let earlier = before.get(&kind).copied().unwrap_or(0);
        (kind, bytes - earlier)
    });
    let counted: BTreeMap<String, u64> = counted.filter(|(_, bytes)| *bytes > 0).collect();
    let totals = plan.json["totals"].as_object().unwrap().iter();
    // All four ranks do the same.
    let planned = totals.map(|(kind, total)| (kind.clone(), 4 * total["bytes"].as_u64().unwrap()));
    assert_eq!(counted, planned.collect());

    let collectives = plan.json["collectives"].as_array().unwrap();
    let shape = |collective: &serde_json::Value| -> Vec<usize> {
        let shape = collective["shape"].as_array().unwrap().iter();
        shape.map(|size| size.as_u64().unwrap() as usize).collect()
    };
    let layers = Layers::of::<Llama>(&config);
    let bases: Vec<Vec<usize>> = layers
        .iter()
        .map(|(_, it)| vec![it.inputs, it.outputs])
        .collect();
    let of = |kinds: &[&str]| -> Vec<Vec<usize>> {
        let all = collectives.iter();
        let all = all.filter(|it| kinds.contains(&it["kind"].as_str().unwrap()));
        all.map(shape).collect()
    };
    let reduced = of(&["reduce_scatter", "all_reduce"]);
    assert!(
        !reduced.iter().any(|shape| bases.contains(shape)),
        "{}",
        plan.text
    );
    assert!(
        reduced.contains(&vec![16, 4]) && reduced.contains(&vec![4, 32]),
        "{}",
        plan.text
    );
    // It is gathered all the same.
    assert!(
        of(&["all_gather"])
            .iter()
            .any(|shape| bases.contains(shape)),
        "{}",
        plan.text
    );
}
