//! A model in the form of Hugging Face has the same bytes from every mesh, and the same values on every mesh; each
//! process reads its part.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{DType as BurnDType, Device, Distribution, Int, Tensor, TensorData, bf16, f16};
use burn_dist::checkpoint::hf::{
    Described, Export, FLOAT8_BLOCK, Float8, Folder, FolderWriter, Form, Names, Region, Request,
    check, load, load_reported, save, tensors,
};
use burn_dist::checkpoint::{CheckpointError, KeyReport, Match, StateError};
use burn_dist::mesh::DType;
use burn_dist::{DeviceMeshBuilder, Float, ParallelizeWith, Plan, Precision, Scaling};
use tempfile::TempDir;

use crate::transformer::run::{BLOCKS, builder, weights};
use crate::transformer::worlds::in_processes;
use crate::transformer::{DIM, HEADS, Net, VOCAB, sequence_parallel};
use crate::weights::deterministic;

/// The contents of files, by their names.
type Files = BTreeMap<String, Vec<u8>>;

const MESHES: [&str; 6] = ["", "fsdp=2", "fsdp=3", "tp=2", "fsdp=2,tp=2", "pp=2"];

const NAMES: &str = r#"
"embedding.weight" = "model.embed_tokens.weight"
"blocks.*.attention_norm.gamma" = "model.layers.*.input_layernorm.weight"
"blocks.*.wq.weight" = "model.layers.*.self_attn.q_proj.weight, rotary(head_dim)"
"blocks.*.wk.weight" = "model.layers.*.self_attn.k_proj.weight, rotary(head_dim)"
"blocks.*.wv.weight" = "model.layers.*.self_attn.v_proj.weight, transposed"
"blocks.*.wo.weight" = "model.layers.*.self_attn.o_proj.weight, transposed"
"blocks.*.norm.gamma" = "model.layers.*.post_attention_layernorm.weight"
"blocks.*.w1.weight" = "model.layers.*.mlp.gate_proj.weight, transposed"
"blocks.*.w2.weight" = "model.layers.*.mlp.down_proj.weight, transposed"
"blocks.*.w3.weight" = "model.layers.*.mlp.up_proj.weight, transposed"
"norm.gamma" = "model.norm.weight"
"output.weight" = "lm_head.weight, transposed"
"#;

fn names_of(text: &str) -> Names {
    Names::parse(text, &[("head_dim", DIM / HEADS)]).expect("names")
}

fn names() -> Names {
    names_of(NAMES)
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn plan() -> Plan {
    let plan = sequence_parallel().first("embedding").stages("blocks");
    plan.unit("blocks").last("norm").last("output")
}

/// A model on a mesh, without values.
fn blank(mesh: DeviceMeshBuilder, blocks: usize) -> (Device, Net) {
    let mesh = mesh.build().expect("a mesh");
    let net = Net::new(blocks, &mesh.device().autodiff());
    let net = net.parallelize_with(&mesh, &plan()).expect("a plan");
    (mesh.device().autodiff(), net)
}

/// The model whose values are compared, on a mesh.
fn known(mesh: DeviceMeshBuilder) -> (Device, Net) {
    let mesh = mesh.build().expect("a mesh");
    let net = deterministic(Net::new(BLOCKS, &mesh.device().autodiff()));
    let net = net.parallelize_with(&mesh, &plan()).expect("a plan");
    (mesh.device().autodiff(), net)
}

fn save_known(mesh: DeviceMeshBuilder, folder: &Path, export: &Export) -> Result<(), StateError> {
    let (device, net) = known(mesh);
    save(&net, &names(), folder, export, &device).map(drop)
}

fn open(folder: &Path) -> Folder {
    Folder::open(folder).expect("a model")
}

/// The values that a mesh has loaded.
fn loaded(mesh: DeviceMeshBuilder, folder: &Path) -> Vec<TensorData> {
    let (device, net) = blank(mesh, BLOCKS);
    let next = || Tensor::<1>::random([4], Distribution::Default, &device).into_data();
    device.seed(7);
    let expected = next();
    device.seed(7);
    let net = load(net, &open(folder), &names(), &device).expect("the model");
    assert_eq!(next(), expected, "no value is made to be replaced");
    weights(&net)
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).expect("a directory");
    let files = files.map(|file| file.expect("a file"));
    let name = |file: &std::fs::DirEntry| file.file_name().into_string().expect("UTF-8");
    let each = files.map(|file| (name(&file), std::fs::read(file.path()).expect("bytes")));
    each.collect()
}

/// The elements of a tensor as the files have them.
fn stored(folder: &Path, name: &str) -> Vec<f32> {
    let folder = open(folder);
    let (dtype, shape) = folder.tensor(name).expect(name);
    assert_eq!(dtype, Some(DType::F32));
    let mut bytes = vec![0; 4 * shape.iter().product::<usize>()];
    let region = Region::whole(shape).expect("a region");
    let mut request = Request::new(name, DType::F32, shape, region, &mut bytes);
    folder.read(Form::Same, &mut request).expect("bytes");
    let (values, _) = bytes.as_chunks();
    values
        .iter()
        .map(|four| f32::from_le_bytes(*four))
        .collect()
}

fn assert_same(found: &[TensorData], expected: &[TensorData], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.dtype(), expected.dtype(), "weights {number}, {what}");
        assert!(
            found.bytes() == expected.bytes(),
            "weights {number}, {what}"
        );
    }
}

/// Asserts that an error is about keys; returns the differences.
fn keys(error: StateError) -> KeyReport {
    match error {
        StateError::Checkpoint(CheckpointError::Keys(report)) => *report,
        error => panic!("{error}"),
    }
}

#[test]
fn every_mesh_saves_the_same_bytes_and_loads_the_same_values() {
    let folder = directory();
    save_known(builder(""), folder.path(), &Export::default()).unwrap();
    let bytes = files(folder.path());
    let expected = weights(&known(builder("")).1);
    for axes in MESHES {
        let here = directory();
        save_known(builder(axes), here.path(), &Export::default()).unwrap();
        assert!(files(here.path()) == bytes, "saved from {axes:?}");
        assert_same(&loaded(builder(axes), folder.path()), &expected, axes);
    }
    for axes in &MESHES[1..] {
        let here = directory();
        let processes = if *axes == "fsdp=3" { 3 } else { 2 };
        let all = in_processes(processes, |world| {
            save_known(
                builder(axes).world(world.clone()),
                here.path(),
                &Export::default(),
            )
            .unwrap();
            loaded(builder(axes).world(world), here.path())
        });
        assert!(files(here.path()) == bytes, "saved by processes of {axes}");
        for found in all {
            assert_same(&found, &expected, axes);
        }
    }
}

#[test]
fn tensors_lie_as_hugging_face_has_them() {
    let folder = directory();
    save_known(builder("fsdp=2,tp=2"), folder.path(), &Export::default()).unwrap();
    let (_device, net) = known(builder(""));
    let of = |index: usize| weights(&net)[index].try_to_vec::<f32>().unwrap();
    let (embedding, wq, output) = (of(0), of(2), of(9 * BLOCKS + 2));
    assert_eq!(
        stored(folder.path(), "model.embed_tokens.weight"),
        embedding
    );
    let found = stored(folder.path(), "lm_head.weight");
    let found_wq = stored(folder.path(), "model.layers.0.self_attn.q_proj.weight");
    for input in 0..DIM {
        for column in 0..VOCAB {
            assert_eq!(found[column * DIM + input], output[input * VOCAB + column]);
        }
        for column in 0..DIM {
            // The first elements of all pairs of a head of 4: 0 1 2 3 is stored as 0 2 1 3.
            let row = column / 4 * 4 + [0, 2, 1, 3][column % 4];
            assert_eq!(found_wq[row * DIM + input], wq[input * DIM + column]);
        }
    }
}

#[test]
fn a_model_in_several_files_is_one_and_is_replaced_by_one() {
    let folder = directory();
    let export = Export {
        shard_bytes: Some(6000),
        others: vec![("config.json".into(), b"{}".to_vec())],
        ..Export::default()
    };
    let expected = weights(&known(builder("")).1);
    in_processes(2, |world| {
        save_known(builder("fsdp=2").world(world), folder.path(), &export).unwrap();
    });
    let found = files(folder.path());
    let shards = found.keys().filter(|name| name.starts_with("model-"));
    assert!(shards.count() > 2, "{:?}", found.keys());
    assert!(found.contains_key("model.safetensors.index.json"));
    assert_eq!(found["config.json"], b"{}");
    for axes in MESHES {
        assert_same(&loaded(builder(axes), folder.path()), &expected, axes);
    }
    save_known(builder("tp=2"), folder.path(), &Export::default()).unwrap();
    let found: Vec<String> = files(folder.path()).into_keys().collect();
    assert_eq!(found, ["config.json", "model.safetensors"]);
    assert_same(
        &loaded(builder("fsdp=2"), folder.path()),
        &expected,
        "again",
    );
}

/// All tensors in one type.
fn in_type(dtype: DType) -> Export {
    let (_, net) = blank(builder(""), BLOCKS);
    let all = tensors(&net, &names()).unwrap().into_iter();
    Export {
        dtypes: all.map(|tensor| (tensor.name, dtype)).collect(),
        ..Export::default()
    }
}

#[test]
fn floats_of_every_type_become_those_of_the_module() {
    let exact = weights(&known(builder("")).1);
    let rounded = |round: fn(f32) -> f32| -> Vec<TensorData> {
        let each = exact.iter().map(|data| {
            let values: Vec<f32> = data.iter::<f32>().map(round).collect();
            TensorData::new(values, data.shape().clone())
        });
        each.collect()
    };
    for (dtype, expected) in [
        (DType::F64, exact.clone()),
        (DType::F32, exact.clone()),
        (DType::F16, rounded(|x| f16::from_f32(x).to_f32())),
        (DType::BF16, rounded(|x| bf16::from_f32(x).to_f32())),
    ] {
        let folder = directory();
        save_known(builder("fsdp=2"), folder.path(), &in_type(dtype)).unwrap();
        for (_, found, _) in open(folder.path()).tensors() {
            assert_eq!(found, Some(dtype));
        }
        for axes in ["", "fsdp=3", "fsdp=2,tp=2", "pp=2"] {
            let found = loaded(builder(axes), folder.path());
            assert_same(&found, &expected, &format!("{dtype} on {axes}"));
        }
    }
}

/// The matrices of the blocks of a model.
fn matrices(net: &Net, names: &Names) -> BTreeSet<String> {
    let all = tensors(net, names).unwrap().into_iter();
    let of_blocks = all.filter(|it| it.shape.len() == 2 && it.name.contains("layers"));
    of_blocks.map(|tensor| tensor.name).collect()
}

/// A tensor in 8 bits as the files have it: what its bits are times the factors of their blocks.
fn stored_float8(folder: &Path, name: &str) -> (Vec<u8>, Vec<f32>) {
    let of = open(folder);
    assert!(of.is_float8(name), "{name}");
    let (_, shape) = of.tensor(name).expect(name);
    let mut bits = vec![0; shape.iter().product()];
    let region = Region::whole(shape).expect("a region");
    let mut request = Request::new(name, DType::U8, shape, region, &mut bits);
    of.read_float8(Form::Same, &mut request).expect("bits");
    let factors = stored(folder, &Float8::factors_name(name));
    let (rows, columns) = (shape[0], shape[1]);
    assert_eq!(
        factors.len(),
        rows.div_ceil(FLOAT8_BLOCK) * columns.div_ceil(FLOAT8_BLOCK)
    );
    let value = |(at, bits): (usize, &u8)| {
        let (row, column) = (at / columns / 128, at % columns / 128);
        let (sign, exponent, mantissa) = (bits >> 7, bits >> 3 & 15, f32::from(bits & 7) / 8.0);
        let magnitude = match exponent {
            0 => mantissa / 64.0,
            _ => (1.0 + mantissa) * 2f32.powi(i32::from(exponent) - 7),
        };
        let sign = if sign == 0 { 1.0 } else { -1.0 };
        sign * magnitude * factors[row * columns.div_ceil(128) + column]
    };
    let values = bits.iter().enumerate().map(value).collect();
    (bits, values)
}

#[test]
fn matrices_in_8_bits_are_the_same_from_and_on_every_mesh() {
    // Of 144 rows and columns, the last blocks have 16.
    let dim = 144;
    let names = Names::parse(NAMES, &[("head_dim", dim / HEADS)]).expect("names");
    let known = |mesh: DeviceMeshBuilder| {
        let mesh = mesh.build().expect("a mesh");
        let net = deterministic(Net::wide(1, dim, &mesh.device().autodiff()));
        (
            mesh.device().autodiff(),
            net.parallelize_with(&mesh, &plan()).unwrap(),
        )
    };
    let (_device, net) = known(builder(""));
    let exact = weights(&net);
    let export = Export {
        float8: matrices(&net, &names),
        ..Export::default()
    };
    assert_eq!(export.float8.len(), 7);
    let folder = directory();
    let mut expected: Option<(Files, Vec<TensorData>)> = None;
    for axes in &MESHES[..5] {
        let here = directory();
        let (device, net) = known(builder(axes));
        save(&net, &names, here.path(), &export, &device).unwrap();
        if expected.is_none() {
            save(&net, &names, folder.path(), &export, &device).unwrap();
        }
        let net = load(net, &open(folder.path()), &names, &device).unwrap();
        let (files, loaded) = (files(here.path()), weights(&net));
        let (first, values) = expected.get_or_insert((files.clone(), loaded.clone()));
        assert!(*first == files, "saved from {axes:?}");
        assert_same(&loaded, values, axes);
        // What was loaded is written as the same values.
        let again = directory();
        save(&net, &names, again.path(), &export, &device).unwrap();
        let net = load(net, &open(again.path()), &names, &device).unwrap();
        assert_same(&weights(&net), values, &format!("{axes} again"));
    }
    let (_, loaded) = expected.expect("meshes");
    for (exact, found) in exact.iter().zip(&loaded) {
        let largest = exact.iter::<f32>().fold(0f32, |max, x| max.max(x.abs()));
        for (exact, found) in exact.iter::<f32>().zip(found.iter::<f32>()) {
            // Half a unit of 3 bits, or of the smallest: 2^-9 in a block whose largest is at least 224.
            let bound = (exact.abs() / 16.0).max(largest * 2f32.powi(-10) / 224.0);
            assert!((exact - found).abs() <= bound, "{exact}, {found}");
        }
    }
    // Bits and factors lie as DeepSeek has them: the second of the weights is `wq`, the fifth `wo`.
    let of = |index: usize| loaded[index].try_to_vec::<f32>().unwrap();
    let (_, wq) = stored_float8(folder.path(), "model.layers.0.self_attn.q_proj.weight");
    let (bits, wo) = stored_float8(folder.path(), "model.layers.0.self_attn.o_proj.weight");
    let rotary = Form::Rotary {
        head_dim: dim / HEADS,
    };
    let (found_wq, found_wo) = (of(2), of(5));
    for input in 0..dim {
        for output in 0..dim {
            let at = input * dim + output;
            assert_eq!(found_wq[at], wq[rotary.row(output) * dim + input]);
            assert_eq!(found_wo[at], wo[output * dim + input]);
        }
    }
    // Blocks use their format: some value has one of its largest exponents.
    assert!(bits.iter().any(|bits| bits & 0x7f >= 0x76));
}

/// A layer in float8 with blocks computes the same with what it was saved as.
#[test]
fn blocks_in_float8_are_saved_as_they_are_computed_with() {
    let dim = 256;
    let names = Names::parse(NAMES, &[("head_dim", dim / HEADS)]).expect("names");
    let float8 = |axes: &str| {
        let mesh = builder(axes).build().expect("a mesh");
        let net = deterministic(Net::wide(1, dim, &mesh.device().autodiff()));
        let plan = plan().precision(Precision::new(Float::BF16));
        let plan = plan.float8(burn_dist::Float8::new(Scaling::Blockwise128));
        (
            mesh.device().autodiff(),
            net.parallelize_with(&mesh, &plan).expect("a plan"),
        )
    };
    let logits = |net: &Net, device: &Device| {
        let tokens: Vec<i32> = (0..4 * 8).map(|i| i * 7 % VOCAB as i32).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [4, 8]), device);
        net.forward(tokens).into_data()
    };
    let (device, net) = float8("fsdp=2");
    let expected = logits(&net, &device);
    let export = Export {
        float8: matrices(&net, &names),
        dtypes: matrices(&net, &names)
            .into_iter()
            .map(|name| (name, DType::BF16))
            .collect(),
        ..Export::default()
    };
    let folder = directory();
    save(&net, &names, folder.path(), &export, &device).unwrap();
    let before = weights(&net);
    let net = load(net, &open(folder.path()), &names, &device).unwrap();
    assert!(
        weights(&net)[2].bytes() != before[2].bytes(),
        "it was rounded"
    );
    let found = logits(&net, &device);
    assert!(found.bytes() == expected.bytes(), "fsdp=2");
}

#[test]
fn what_cannot_be_in_8_bits_is_named() {
    let save_in = |name: &str, scale: f32| {
        let (device, net) = known(builder("fsdp=2"));
        let net = net.map(&mut Scale(scale));
        let export = Export {
            float8: [name.to_string()].into(),
            ..Export::default()
        };
        let here = directory();
        save(&net, &names(), here.path(), &export, &device).map(|_| here)
    };
    let refused = |name: &str, scale: f32| match save_in(name, scale) {
        Ok(_) => panic!("{name} was written"),
        Err(error) => error.to_string(),
    };
    let weight = "model.layers.1.mlp.up_proj.weight";
    for (name, scale, reason) in [
        ("model.norm.weight", 1.0, "only matrices of floats"),
        ("model.layer.0", 1.0, "no parameter is held by it"),
        (weight, f32::INFINITY, "not finite"),
    ] {
        let error = refused(name, scale);
        assert!(error.contains(name) && error.contains(reason), "{error}");
    }
    // Factors that are not there, or others than there have to be.
    let here = save_in(weight, 1.0).unwrap();
    let (device, net) = blank(builder("fsdp=2"), BLOCKS);
    assert!(
        check(&net, &open(here.path()), &names())
            .unwrap()
            .is_empty()
    );
    drop(device);
    let of = open(here.path());
    for shape in [None, Some(vec![2, 1])] {
        let without = directory();
        let factors = Float8::factors_name(weight);
        let copied = of.tensors().filter(|(name, ..)| *name != factors);
        let copied = copied.map(|(name, dtype, shape)| match of.is_float8(name) {
            true => Described::float8(name, shape.to_vec()),
            false => Described::new(name, dtype.expect("a type"), shape.to_vec()),
        });
        let other = shape
            .clone()
            .map(|shape| Described::new(&factors, DType::F32, shape));
        let all: Vec<Described> = copied.chain(other).collect();
        let mut writer = FolderWriter::create(without.path(), all, None).unwrap();
        for tensor in writer.tensors().to_vec() {
            let bytes = tensor.shape.iter().product::<usize>() * tensor.dtype.size();
            writer.write(&tensor.name, &vec![0; bytes]).unwrap();
        }
        writer.commit().unwrap();
        let (device, net) = blank(builder("fsdp=2"), BLOCKS);
        let report = keys(load(net, &open(without.path()), &names(), &device).unwrap_err());
        match shape {
            None => assert_eq!(report.missing, [factors]),
            Some(shape) => {
                assert_eq!(report.mismatched.len(), 1, "{report}");
                assert_eq!(report.mismatched[0].key, factors);
                assert_eq!(report.mismatched[0].found_shape, shape);
            }
        }
    }
}

/// Multiplies all values.
struct Scale(f32);

impl ModuleMapper for Scale {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.mul_scalar(self.0))
    }
}

#[test]
fn values_beyond_a_type_are_named_and_leave_the_earlier_model() {
    let folder = directory();
    save_known(builder(""), folder.path(), &Export::default()).unwrap();
    let before = files(folder.path());
    let name = "model.layers.1.mlp.up_proj.weight";
    let export = Export {
        dtypes: [(name.to_string(), DType::F16)].into(),
        others: vec![("config.json".into(), b"{}".to_vec())],
        ..Export::default()
    };
    let save_large = |mesh| {
        let (device, net) = known(mesh);
        let net = net.map(&mut Scale(1e6));
        save(&net, &names(), folder.path(), &export, &device).unwrap_err()
    };
    let error = save_large(builder("fsdp=2,tp=2")).to_string();
    let said = format!("{name} has values beyond the range of f16");
    assert!(error.starts_with(&said), "{error}");
    let errors = in_processes(2, |world| save_large(builder("fsdp=2").world(world)));
    assert!(
        matches!(errors[0], StateError::Range { .. }),
        "{}",
        errors[0]
    );
    let elsewhere = matches!(errors[1], StateError::Elsewhere { process: 0, .. });
    assert!(
        elsewhere && errors[1].to_string().contains(&said),
        "{}",
        errors[1]
    );
    assert!(files(folder.path()) == before);

    // What is large as it is, has no place in a smaller parameter.
    let folder = directory();
    let (device, net) = known(builder("fsdp=2"));
    let net = net.map(&mut Scale(1e6));
    save(&net, &names(), folder.path(), &Export::default(), &device).unwrap();
    struct Half;
    impl ModuleMapper for Half {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor.cast(BurnDType::F16))
        }
    }
    let net = net.map(&mut Half);
    let error = load(net, &open(folder.path()), &names(), &device).unwrap_err();
    let is_half = matches!(
        &error,
        StateError::Range {
            dtype: DType::F16,
            ..
        }
    );
    assert!(is_half, "{error}");
}

#[test]
fn all_processes_learn_what_one_cannot_do() {
    let folder = directory();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let errors = in_processes(2, |world| {
        save_known(builder("fsdp=2").world(world), &file, &Export::default()).unwrap_err()
    });
    let is_io = matches!(
        errors[0],
        StateError::Checkpoint(CheckpointError::Io { .. })
    );
    assert!(is_io, "{}", errors[0]);
    let elsewhere = matches!(errors[1], StateError::Elsewhere { process: 0, .. });
    assert!(elsewhere, "{}", errors[1]);

    // Two copies of a model of which one lacks its last block.
    let (whole, less) = (directory(), directory());
    save_known(builder(""), whole.path(), &Export::default()).unwrap();
    let (device, net) = blank(builder(""), BLOCKS - 1);
    save(&net, &names(), less.path(), &Export::default(), &device).unwrap();
    let errors = in_processes(2, |world| {
        let folder = [whole.path(), less.path()][world.process()];
        let (device, net) = blank(builder("fsdp=2").world(world), BLOCKS);
        load(net, &open(folder), &names(), &device).unwrap_err()
    });
    let elsewhere = matches!(errors[0], StateError::Elsewhere { process: 1, .. });
    assert!(elsewhere, "{}", errors[0]);
    let [_, error] = <[StateError; 2]>::try_from(errors).unwrap();
    assert_eq!(keys(error).missing.len(), 9);
}

#[test]
fn every_tensor_that_does_not_fit_is_listed() {
    let folder = directory();
    save_known(builder("fsdp=2"), folder.path(), &Export::default()).unwrap();
    // The roles of two matrices are swapped, and a block is missing.
    let swapped = NAMES
        .replace("mlp.up_proj", "mlp.x")
        .replace("mlp.down_proj", "mlp.up_proj");
    let swapped = names_of(&swapped.replace("mlp.x", "mlp.down_proj"));
    let (device, net) = blank(builder("tp=2"), BLOCKS + 1);
    let report = check(&net, &open(folder.path()), &swapped).unwrap();
    let added = tensors(&net, &swapped).unwrap().into_iter();
    let added = added
        .map(|tensor| tensor.name)
        .filter(|name| name.starts_with("model.layers.3."));
    assert_eq!(report.missing, added.collect::<Vec<_>>());
    assert_eq!(report.unexpected, Vec::<String>::new());
    let wrong: Vec<&str> = report.mismatched.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(wrong.len(), 2 * BLOCKS, "{wrong:?}");
    let up = &report.mismatched[0];
    assert_eq!(up.key, "model.layers.0.mlp.up_proj.weight");
    assert_eq!(
        (&up.wanted_shape[..], &up.found_shape[..]),
        (&[DIM, 2 * DIM][..], &[2 * DIM, DIM][..])
    );
    let error = load(net, &open(folder.path()), &swapped, &device).unwrap_err();
    assert_eq!(keys(error), report);

    let (device, net) = blank(builder("fsdp=2"), 1);
    let error = load(net, &open(folder.path()), &names(), &device).unwrap_err();
    let report = keys(error);
    assert_eq!((report.missing.len(), report.mismatched.len()), (0, 0));
    assert_eq!(report.unexpected.len(), 9 * (BLOCKS - 1));
    let ignored =
        format!("{NAMES}ignored = [\"model.layers.*.*.*.weight\", \"model.layers.*.*.weight\"]");
    let (device, net) = blank(builder("fsdp=2"), 1);
    load(net, &open(folder.path()), &names_of(&ignored), &device).unwrap();
}

#[test]
fn what_fits_is_loaded_if_differences_are_no_errors() {
    let folder = directory();
    save_known(builder(""), folder.path(), &Export::default()).unwrap();
    let expected = weights(&known(builder("")).1);
    for (blocks, matching) in [(1, Match::Subset), (BLOCKS + 1, Match::Lenient)] {
        let (device, net) = blank(builder("fsdp=2"), blocks);
        let read = open(folder.path());
        let (net, report) = load_reported(net, &read, &names(), matching, &device).unwrap();
        assert!(!report.report.is_empty());
        let found = weights(&net);
        let shared = 1 + 9 * blocks.min(BLOCKS);
        assert_same(&found[..shared], &expected[..shared], "what both have");
        assert_same(
            &found[found.len() - 2..],
            &expected[expected.len() - 2..],
            "the end",
        );
    }
}

#[test]
fn a_parameter_without_a_row_is_named() {
    let folder = directory();
    save_known(builder(""), folder.path(), &Export::default()).unwrap();
    let few = names_of(&NAMES.replace("\"norm.gamma\"", "\"other.gamma\""));
    let (device, net) = blank(builder("fsdp=2"), BLOCKS);
    let export = Export::default();
    let saved = save(&net, &few, folder.path(), &export, &device).unwrap_err();
    let loaded = load(net, &open(folder.path()), &few, &device).unwrap_err();
    for error in [saved, loaded] {
        let said = error.to_string();
        assert!(
            said.contains("the parameter norm.gamma has no tensor"),
            "{said}"
        );
    }
}

#[test]
fn integers_are_no_floats() {
    let folder = directory();
    let (device, net) = blank(builder("fsdp=2"), BLOCKS);
    let name = "model.layers.0.mlp.gate_proj.weight";
    let each = tensors(&net, &names()).unwrap().into_iter();
    let each = each.map(|tensor| match tensor.name == name {
        true => Described::new(name, DType::I8, tensor.shape),
        false => tensor,
    });
    let mut writer = FolderWriter::create(folder.path(), each.collect(), None).unwrap();
    for tensor in writer.tensors().to_vec() {
        let bytes = tensor.shape.iter().product::<usize>() * tensor.dtype.size();
        writer.write(&tensor.name, &vec![1; bytes]).unwrap();
    }
    writer.commit().unwrap();
    let report = keys(load(net, &open(folder.path()), &names(), &device).unwrap_err());
    let [wrong] = &report.mismatched[..] else {
        panic!("{report}");
    };
    assert_eq!(
        (wrong.key.as_str(), wrong.found_dtype.as_str()),
        (name, "I8")
    );
    assert!(report.missing.is_empty() && report.unexpected.is_empty());

    let (device, net) = known(builder("fsdp=2"));
    let error = save(&net, &names(), folder.path(), &in_type(DType::I8), &device).unwrap_err();
    assert!(matches!(error, StateError::Unsaved { .. }), "{error}");
}

#[derive(Module, Debug)]
struct Wide {
    embedding: Embedding,
    linear: Linear,
}

impl Wide {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(4096, 16).init(device),
            linear: LinearConfig::new(4096, 16).with_bias(false).init(device),
        }
    }
}

#[test]
fn each_process_reads_its_part() {
    let folder = directory();
    let names = "\"embedding.weight\" = \"a\"\n\"linear.weight\" = \"b, transposed\"";
    let names = names_of(names);
    let device = builder("").build().unwrap().device();
    let wide = deterministic(Wide::new(&device));
    save(&wide, &names, folder.path(), &Export::default(), &device).unwrap();
    let expected = weights(&wide);
    let all = 2 * 4 * 4096 * 16;
    let reported = |mesh: DeviceMeshBuilder| {
        let device = mesh.build().unwrap().device();
        let folder = open(folder.path());
        let wide = Wide::new(&device);
        let (wide, loaded) = load_reported(wide, &folder, &names, Match::Exact, &device).unwrap();
        assert_same(&weights(&wide), &expected, "wide");
        loaded
    };
    let alone = reported(builder("fsdp=2"));
    assert_eq!((alone.bytes_needed, alone.bytes_read), (all, all));
    for loaded in in_processes(2, |world| reported(builder("fsdp=2").world(world))) {
        assert_eq!((loaded.bytes_needed, loaded.bytes_read), (all / 2, all / 2));
    }
    // What all ranks hold, all processes read.
    for loaded in in_processes(2, |world| reported(builder("dp=2").world(world))) {
        assert_eq!(loaded.bytes_read, all);
    }
}

#[test]
fn a_dry_run_has_no_values() {
    let folder = directory();
    save_known(builder(""), folder.path(), &Export::default()).unwrap();
    let (device, net) = blank(builder("fsdp=2").dry_run(), BLOCKS);
    let saved = save(&net, &names(), folder.path(), &Export::default(), &device).unwrap_err();
    let loaded = load(net, &open(folder.path()), &names(), &device).unwrap_err();
    for error in [saved, loaded] {
        assert!(matches!(error, StateError::DryRun { .. }), "{error}");
    }
}
