mod families;

use std::collections::HashMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor, TensorData, bf16, f16};
use burn_dist::DeviceMesh;
use burn_dist::checkpoint::hf::{self, Export, Form};
use burn_dist::train::corpus::generate;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::args::{AxesArgs, MeshArgs};
use burn_dist::trainer::folder::{load, load_reported};
use burn_dist::trainer::mesh::Mesh;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::config::read_config;
use super::*;
use crate::model::{Rope, RopeConfig, RopeScaling};

thread_local! {
    /// It lives as long as the test.
    static DEVICE: Device = DeviceMesh::parse("fsdp=2").unwrap().device();
}

fn device() -> Device {
    DEVICE.with(Device::clone)
}

/// Random values in `[-0.5, 0.5)` that bf16 holds exactly.
fn values(count: usize, rng: &mut Rng) -> Vec<f32> {
    (0..count)
        .map(|_| (rng.below(256) as f32 - 128.0) / 256.0)
        .collect()
}

struct Fake {
    config: serde_json::Value,
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<f32>)>,
}

/// A checkpoint as Hugging Face would write it for the test configuration: half in bf16, the output tied.
fn fake() -> Fake {
    let config = LlamaConfig::test();
    let (d, f, v, kv) = (
        config.dim,
        config.hidden_dim,
        config.vocab,
        2 * config.head_dim(),
    );
    let mut shapes = vec![("model.embed_tokens.weight".to_string(), vec![v, d])];
    for layer in 0..config.num_layers {
        for (name, shape) in [
            ("self_attn.q_proj", vec![d, d]),
            ("self_attn.k_proj", vec![kv, d]),
            ("self_attn.v_proj", vec![kv, d]),
            ("self_attn.o_proj", vec![d, d]),
            ("mlp.gate_proj", vec![f, d]),
            ("mlp.up_proj", vec![f, d]),
            ("mlp.down_proj", vec![d, f]),
            ("input_layernorm", vec![d]),
            ("post_attention_layernorm", vec![d]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    shapes.push(("model.norm.weight".to_string(), vec![d]));
    let mut rng = Rng::new(9, 0);
    let tensors = shapes
        .into_iter()
        .enumerate()
        .map(|(i, (name, shape))| {
            let dtype = if i % 2 == 0 { Dtype::F32 } else { Dtype::BF16 };
            let values = values(shape.iter().product(), &mut rng);
            (name, dtype, shape, values)
        })
        .collect();
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": true, "eos_token_id": [7, 8]
    });
    Fake { config, tensors }
}

impl Fake {
    /// Writes the folder, its tensors spread over `num_files` files.
    fn write(&self, dir: &Path, num_files: usize) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        let mut weight_map = HashMap::new();
        for file in 0..num_files {
            let name = match num_files {
                1 => "model.safetensors".to_string(),
                _ => format!("model-{file}.safetensors"),
            };
            let mine = || self.tensors.iter().skip(file).step_by(num_files);
            let bytes: Vec<Vec<u8>> = mine()
                .map(|(_, dtype, _, values)| match dtype {
                    Dtype::BF16 => values
                        .iter()
                        .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
                        .collect(),
                    Dtype::F16 => values
                        .iter()
                        .flat_map(|x| f16::from_f32(*x).to_le_bytes())
                        .collect(),
                    _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                })
                .collect();
            let views = mine()
                .zip(&bytes)
                .map(|((tensor, dtype, shape, _), bytes)| {
                    weight_map.insert(tensor.clone(), name.clone());
                    (
                        tensor,
                        TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
                    )
                });
            let views: Vec<_> = views.collect();
            safetensors::serialize_to_file(views, None, &dir.join(&name)).unwrap();
        }
        if num_files > 1 {
            let index = serde_json::json!({ "weight_map": weight_map });
            std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        }
    }

    fn tensor(&self, name: &str) -> &[f32] {
        &self
            .tensors
            .iter()
            .find(|(tensor, ..)| tensor == name)
            .unwrap()
            .3
    }
}

fn load_from(dir: &Path) -> Result<Llama, FolderError> {
    let (config, device) = (read_config(dir)?, device());
    load(config.init(&device), &config, dir, &device)
}

/// Writes a model that was made here, or from `origin`.
fn save_to(
    dir: &Path,
    model: &Llama,
    config: &LlamaConfig,
    origin: Option<&Origin>,
) -> Result<(), SaveError> {
    save_to_on(dir, model, config, origin, &device())
}

/// Does the same on another device.
fn save_to_on(
    dir: &Path,
    model: &Llama,
    config: &LlamaConfig,
    origin: Option<&Origin>,
    device: &Device,
) -> Result<(), SaveError> {
    save(model, config, &text(), origin, dir, device).map(drop)
}

/// Each parameter by the name of its tensor, in the model's own layout.
fn parameters(model: &Llama) -> HashMap<String, Vec<f32>> {
    struct List {
        path: Vec<String>,
        found: HashMap<String, Vec<f32>>,
    }
    impl ModuleVisitor for List {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_string());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let names = Llama::names(&LlamaConfig::test());
            let (name, _) = names.tensor(&self.path.join(".")).unwrap();
            let values = param.val().into_data().try_to_vec().unwrap();
            self.found.insert(name, values);
        }
    }
    let (path, found) = (Vec::new(), HashMap::new());
    let mut list = List { path, found };
    model.visit(&mut list);
    list.found
}

fn text() -> Text {
    let data = generate(0, 50, 0).expect("no questions are held out");
    Text::train(data.statements.iter().map(String::as_str), 300).unwrap()
}

#[test]
fn reads_one_file_or_several_with_a_tied_output() {
    let fake = fake();
    for num_files in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        fake.write(dir.path(), num_files);
        let config = read_config(dir.path()).unwrap();
        let tied = LlamaConfig {
            tied: true,
            ..LlamaConfig::test()
        };
        assert_eq!(config, tied);
        let model = load_from(dir.path()).unwrap();
        let parameters = parameters(&model);
        assert_eq!(
            parameters["model.embed_tokens.weight"],
            fake.tensor("model.embed_tokens.weight")
        );
        assert_eq!(
            parameters["model.norm.weight"],
            fake.tensor("model.norm.weight")
        );
        let down = fake.tensor("model.layers.1.mlp.down_proj.weight");
        assert_eq!(
            parameters["model.layers.1.mlp.down_proj.weight"][3 * 16 + 5],
            down[5 * 32 + 3],
            "transposed"
        );
        assert!(!parameters.contains_key("lm_head.weight"), "tied");
        let tokens =
            Tensor::<2, Int>::from_data(TensorData::new(vec![1_i64, 2, 3], [1, 3]), &device());
        assert!(
            model
                .forward(tokens)
                .into_data()
                .iter::<f32>()
                .all(f32::is_finite)
        );
    }
}

#[test]
fn rotary_weights_give_the_rotation_of_hugging_face() {
    let (s, d, e) = (6, 12, 6);
    let mut rng = Rng::new(4, 0);
    let (x, stored) = (values(s * d, &mut rng), values(d * d, &mut rng));
    let rope = RopeConfig {
        theta: 100.0,
        scaling: None,
    };

    // As there: q = x W^T, then the halves of each head are the two parts of its pairs.
    let frequencies = rope.frequencies(e, s);
    let mut expected = vec![0.0_f32; s * d];
    for position in 0..s {
        let q: Vec<f32> = (0..d)
            .map(|o| {
                (0..d)
                    .map(|i| x[position * d + i] * stored[o * d + i])
                    .sum()
            })
            .collect();
        for head in 0..d / e {
            for pair in 0..e / 2 {
                let (a, b) = (q[head * e + pair], q[head * e + pair + e / 2]);
                let (sin, cos) = ((position as f64 * frequencies[pair]) as f32).sin_cos();
                // Where our form keeps the pair.
                expected[position * d + head * e + 2 * pair] = a * cos - b * sin;
                expected[position * d + head * e + 2 * pair + 1] = b * cos + a * sin;
            }
        }
    }

    // The parameter that is stored like that.
    let form = Form::Rotary { head_dim: e };
    let weight = (0..d * d).map(|at| stored[form.row(at % d) * d + at / d]);
    let weight = TensorData::new(weight.collect::<Vec<_>>(), [d, d]);
    let weight = Tensor::<2>::from_data(weight, &Device::flex());
    let q = Tensor::<2>::from_data(TensorData::new(x, [s, d]), &Device::flex())
        .matmul(weight)
        .reshape([1, s, d]);
    let got = Rope::new(s, e, &rope, &Device::flex()).apply(q).into_data();
    got.assert_approx_eq::<f32>(
        &TensorData::new(expected, [1, s, d]),
        burn::tensor::Tolerance::absolute(1e-5),
    );
}

#[test]
fn a_saved_model_answers_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 64,
    };
    let rope = RopeConfig {
        theta: 1000.0,
        scaling: Some(scaling),
    };
    let config = LlamaConfig {
        vocab: 300,
        rope,
        ..LlamaConfig::test()
    };
    let model = config.init(&device());
    save_to(dir.path(), &model, &config, None).unwrap();
    assert_eq!(read_config(dir.path()).unwrap(), config);
    let loaded = load_from(dir.path()).unwrap();
    let answer = |model: &Llama| {
        let tokens = TensorData::new((0..12_i64).collect::<Vec<_>>(), [2, 6]);
        let tokens = Tensor::from_data(tokens, &device());
        model.forward(tokens).into_data()
    };
    answer(&model).assert_eq(&answer(&loaded), true);
    let names: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

/// The tensors of a folder's only file: type, shape and bytes.
fn stored(dir: &Path) -> HashMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter();
    let stored =
        |view: &TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    tensors.map(|(name, view)| (name, stored(&view))).collect()
}

#[test]
fn a_model_leaves_as_it_came() {
    for tied in [true, false] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut fake = fake();
        let more = serde_json::json!({
            "tie_word_embeddings": tied, "max_position_embeddings": 8192, "bos_token_id": 128000,
            "pretraining_tp": 1, "torch_dtype": "bfloat16", "what is this": {"nobody": ["knows"]}
        });
        let config = fake.config.as_object_mut().unwrap();
        config.extend(more.as_object().unwrap().clone());
        if !tied {
            let output = values(64 * 16, &mut Rng::new(1, 1));
            let shape = vec![64, 16];
            let name = "lm_head.weight".to_string();
            fake.tensors.push((name, Dtype::F16, shape, output));
        }
        // Values that all three types hold.
        fake.write(from.path(), 1);
        let companions = ["tokenizer.json", "tokenizer_config.json"];
        for name in companions {
            std::fs::write(from.path().join(name), format!("{{ \"is\": \"{name}\"}}")).unwrap();
        }
        let origin = Origin::read(from.path()).unwrap();
        let config = read_config(from.path()).unwrap();
        assert_eq!(config.tied, tied);
        let model = load_from(from.path()).unwrap();
        save_to(to.path(), &model, &config, Some(&origin)).unwrap();
        assert_eq!(stored(to.path()), stored(from.path()));
        let json = |dir: &Path| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
        };
        assert_eq!(json(to.path()), json(from.path()));
        for name in companions {
            let read = |dir: &Path| std::fs::read(dir.join(name)).unwrap();
            assert_eq!(read(to.path()), read(from.path()), "{name}");
        }
    }
}

#[test]
fn an_output_that_is_not_what_the_configuration_says_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = fake();
    fake.config["tie_word_embeddings"] = false.into();
    fake.write(dir.path(), 1);
    let error = load_from(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("missing lm_head.weight, shape [64, 16]"),
        "{error}"
    );
    assert!(error.contains("tie_word_embeddings"), "{error}");

    // Some write the embedding twice; another matrix is another model.
    fake.config["tie_word_embeddings"] = true.into();
    let (_, dtype, shape, values) = fake.tensors[0].clone();
    fake.tensors
        .push(("lm_head.weight".to_string(), dtype, shape, values));
    fake.write(dir.path(), 1);
    load_from(dir.path()).unwrap();
    fake.tensors.last_mut().unwrap().3[5] += 0.5;
    fake.write(dir.path(), 1);
    let error = load_from(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("lm_head.weight is another one than"),
        "{error}"
    );
}

#[test]
fn what_would_not_be_read_or_has_no_place_is_not_written() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut fake = fake();
    fake.tensors[0].1 = Dtype::F16;
    fake.write(dir.path(), 1);
    let origin = Origin::read(dir.path()).unwrap();
    let config = read_config(dir.path()).unwrap();
    // As if training had led there: the file holds it in a wider type.
    fake.tensors[0].1 = Dtype::F32;
    fake.tensors[0].3[3] = 70_000.0;
    fake.write(dir.path(), 1);
    let model = load_from(dir.path()).unwrap();
    let error = save_to(to.path(), &model, &config, Some(&origin)).unwrap_err();
    let said = error.to_string();
    assert!(
        said.starts_with("model.embed_tokens.weight has values beyond"),
        "{said}"
    );
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn a_model_in_several_files_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    fake().write(dir.path(), 3);
    let num_files = || std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(num_files(), 5);
    let config = LlamaConfig::test();
    let model = config.init(&device());
    save_to(dir.path(), &model, &config, None).unwrap();
    assert_eq!(num_files(), 3);
    let loaded = load_from(dir.path()).unwrap();
    assert_eq!(parameters(&loaded), parameters(&model));
}

#[test]
fn every_tensor_that_does_not_fit_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = fake();
    fake.tensors
        .retain(|(name, ..)| name != "model.layers.1.mlp.up_proj.weight");
    fake.tensors.push((
        "model.extra.bias".to_string(),
        Dtype::F32,
        vec![2],
        vec![0.0; 2],
    ));
    let k = fake
        .tensors
        .iter_mut()
        .find(|(name, ..)| name == "model.layers.0.self_attn.k_proj.weight")
        .unwrap();
    k.2 = vec![16, 8];
    fake.write(dir.path(), 1);
    let error = load_from(dir.path()).unwrap_err().to_string();
    for line in [
        "missing model.layers.1.mlp.up_proj.weight, shape [32, 16]",
        "unexpected model.extra.bias, shape [2]",
        "model.layers.0.self_attn.k_proj.weight has shape [16, 8], and the model needs [8, 16]",
    ] {
        assert!(error.contains(line), "{error}");
    }
}

#[test]
fn folders_that_are_no_model_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = || load_from(dir.path()).unwrap_err().to_string();
    let set = |change: fn(&mut serde_json::Value)| {
        let mut fake = fake();
        change(&mut fake.config);
        std::fs::write(dir.path().join("config.json"), fake.config.to_string()).unwrap();
    };
    assert!(error().contains("config.json"), "{}", error());
    set(|_| {});
    assert!(
        error().contains("it has neither model.safetensors nor"),
        "{}",
        error()
    );
    std::fs::write(dir.path().join("model.safetensors"), b"no tensors").unwrap();
    assert!(
        error().contains("model.safetensors cannot be used"),
        "{}",
        error()
    );
    set(|config| config["num_key_value_heads"] = 3.into());
    assert!(
        error().contains("4 heads cannot share 3 key/value heads"),
        "{}",
        error()
    );
    set(|config| config["model_type"] = "qwen3_next".into());
    let expected =
        "there is no model \"qwen3_next\" here; is qwen3 meant? There are llama, mistral";
    assert!(error().contains(expected), "{}", error());
    set(|config| config["rope_scaling"] = serde_json::json!({"type": "longrope", "factor": 2.0}));
    assert!(error().contains("rope_type is \"longrope\""), "{}", error());
    std::fs::write(dir.path().join("config.json"), "{\"hidden_size\": 16}").unwrap();
    assert!(
        error().contains("config.json: missing field"),
        "{}",
        error()
    );
}

/// Writes `config.json` of the test model with more fields, and reads it.
fn read_with(dir: &Path, more: serde_json::Value) -> Result<LlamaConfig, FolderError> {
    let mut config = fake().config;
    let fields = config.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    fields.retain(|_, value| !value.is_null());
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    read_config(dir)
}

/// Everywhere that files keep the numbers of rotary positions, and every form to write them in.
#[test]
fn rotary_positions_are_read_as_transformers_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let read = |more| read_with(dir.path(), more).map(|config| config.rope);
    let llama3 = |name: &str, length: serde_json::Value| {
        let mut rope = serde_json::json!({
            "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": length
        });
        rope[name] = "llama3".into();
        rope.as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        rope
    };
    let both = {
        let mut rope = llama3("type", 8192.into());
        rope["rope_type"] = "llama3".into();
        rope
    };
    let with_theta = {
        let mut rope = llama3("rope_type", 8192.into());
        rope["rope_theta"] = 500_000.into();
        rope
    };
    let plain = |theta| RopeConfig {
        theta,
        scaling: None,
    };
    let scaled = RopeConfig {
        theta: 500_000.0,
        scaling: Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        }),
    };
    let cases = [
        (serde_json::json!({}), plain(500_000.0)),
        (serde_json::json!({"rope_theta": null}), plain(10_000.0)),
        (serde_json::json!({"rope_scaling": {}}), plain(500_000.0)),
        (
            serde_json::json!({"rope_scaling": {"rope_type": "default"}}),
            plain(500_000.0),
        ),
        (
            serde_json::json!({"rope_theta": null, "rope_parameters": {"rope_theta": 7, "rope_type": "default"}}),
            plain(7.0),
        ),
        (
            serde_json::json!({"rope_scaling": llama3("type", 8192.into())}),
            scaled.clone(),
        ),
        (
            serde_json::json!({"rope_scaling": llama3("rope_type", 8192.0.into())}),
            scaled.clone(),
        ),
        (serde_json::json!({"rope_scaling": both}), scaled.clone()),
        (serde_json::json!({"rope_parameters": both}), scaled.clone()),
        (
            serde_json::json!({"rope_theta": null, "rope_parameters": with_theta}),
            scaled.clone(),
        ),
        // The one takes the place of the other.
        (
            serde_json::json!({"rope_scaling": both, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}),
            scaled.clone(),
        ),
        (
            serde_json::json!({"rope_scaling": {}, "rope_parameters": both}),
            scaled.clone(),
        ),
        // The length beside the sizes of the model.
        (
            serde_json::json!({
                "rope_scaling": llama3("type", serde_json::Value::Null), "original_max_position_embeddings": 8192
            }),
            scaled.clone(),
        ),
        (
            serde_json::json!({
                "rope_scaling": llama3("type", 8192.into()), "original_max_position_embeddings": 8192.0
            }),
            scaled,
        ),
    ];
    for (more, expected) in cases {
        let found = read(more.clone()).unwrap_or_else(|error| panic!("{more}: {error}"));
        assert_eq!(found, expected, "{more}");
    }
    let refused = [
        (
            serde_json::json!({"rope_scaling": {"type": "llama3", "rope_type": "default"}}),
            "rope_scaling.rope_type is default and rope_scaling.type is llama3: keep the one",
        ),
        (
            serde_json::json!({"rope_parameters": {"rope_theta": 7}}),
            "rope_parameters.rope_theta is 7 and rope_theta is 500000",
        ),
        (
            serde_json::json!({"rope_scaling": both, "rope_parameters": {"rope_theta": 7}}),
            "rope_parameters.rope_theta is 7 and rope_theta is 500000",
        ),
        (
            serde_json::json!({"rope_theta": null, "rope_scaling": both, "rope_parameters": {"rope_theta": 7}}),
            "there is a rope_theta of 7 there: write it into rope_scaling",
        ),
        (
            serde_json::json!({"rope_scaling": both, "original_max_position_embeddings": 4096}),
            "rope_scaling.original_max_position_embeddings is 8192 and original_max_position_embeddings is 4096",
        ),
        (
            serde_json::json!({"rope_scaling": llama3("type", 8192.5.into())}),
            "8192.5 is no whole number from 0",
        ),
        (
            serde_json::json!({"rope_scaling": llama3("type", serde_json::Value::Null)}),
            "rope_type llama3 needs original_max_position_embeddings",
        ),
    ];
    for (more, expected) in refused {
        let error = read(more.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
        assert!(error.contains("config.json"), "{error}");
    }
}

/// Every number of `config.json`, with values that none can have: refused by name, before a layer is built.
#[test]
fn absurd_configurations_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    ];
    let numbers = ["rms_norm_eps", "rope_theta"];
    let values: [serde_json::Value; 7] = [
        0.into(),
        (-1).into(),
        0.5.into(),
        1e30.into(),
        "2".into(),
        u64::MAX.into(),
        (1u64 << 40).into(),
    ];
    for name in sizes.into_iter().chain(numbers) {
        // Any number above 0 is one.
        let values = if numbers.contains(&name) {
            &values[..2]
        } else {
            &values[..]
        };
        for value in values {
            let found = read_with(dir.path(), serde_json::json!({name: value}));
            assert!(found.is_err(), "{name}: {value}: {found:?}");
        }
    }
    let error = read_with(
        dir.path(),
        serde_json::json!({"num_hidden_layers": 10_000_000}),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("the number of layers is 10000000, and models of up to 4096"),
        "{error}"
    );
    // Some write whole numbers with a point.
    let found = read_with(
        dir.path(),
        serde_json::json!({"num_hidden_layers": 2.0, "vocab_size": 64.0}),
    );
    assert_eq!(
        found.unwrap(),
        read_with(dir.path(), serde_json::json!({})).unwrap()
    );
}

#[test]
fn a_save_that_fails_leaves_the_earlier_model() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), "earlier").unwrap();
    // In the way of the last file that is written.
    std::fs::create_dir(dir.path().join("tokenizer.json.partial")).unwrap();
    let config = LlamaConfig::test();
    let model = config.init(&device());
    let error = save_to(dir.path(), &model, &config, None).unwrap_err();
    assert!(
        error.to_string().contains("tokenizer.json.partial"),
        "{error}"
    );
    assert_eq!(
        std::fs::read_to_string(dir.path().join("model.safetensors")).unwrap(),
        "earlier"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// All parameters times a number.
struct Times(f32);

impl ModuleMapper for Times {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.mul_scalar(self.0))
    }
}

#[test]
fn weights_that_are_no_numbers_are_found_as_they_are_written_and_read() {
    let axes = AxesArgs {
        mesh: Some("fsdp=2".parse().unwrap()),
        ..AxesArgs::default()
    };
    let mesh = Mesh::open::<Llama>(&MeshArgs::from(axes)).unwrap();
    let (config, device) = (LlamaConfig::test(), mesh.device());
    let fresh = || {
        let model = config.init(device);
        mesh.parallelize(model).unwrap()
    };
    for (factor, expected) in [(1.0, 0), (f32::NAN, config.num_params() as u64)] {
        let dir = tempfile::tempdir().unwrap();
        let model = fresh().map(&mut Times(factor));
        let (path, names) = (dir.path(), Llama::names(&config));
        let saved = hf::save(&model, &names, path, &Export::default(), device).unwrap();
        let (_, found) = load_reported(fresh(), &config, path, device).unwrap();
        assert_eq!(saved, found);
        assert_eq!(found.map_or(0, |found| found.elements), expected);
    }
}
