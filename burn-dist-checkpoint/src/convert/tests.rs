//! From every form to every other and back.

mod floats;
mod refused;

use super::{Conversion, ConvertError, Converted, Kind};
use crate::error::CheckpointError;
use crate::hf::{Folder, FolderWriter, Form, Names, Tensor};
use crate::records::tests::{parameters, sample};
use crate::records::{open_bpk, open_mpk};
use crate::save::Checkpoints;
use crate::storage::memory::{MemoryStorage, Survives};
use crate::storage::{ReadFile, Storage};
use crate::{Region, Request};
use burn_dist_mesh::DType;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Names for the model of the samples.
const NAMES: &str = r#"
embedding = "model.embed.weight"
"layers.*.linear.weight" = "model.layers.*.proj.weight, transposed"
"layers.*.linear.bias" = "model.layers.*.proj.bias"
"layers.*.norm.gamma" = "model.layers.*.norm.weight"
scale = "scale"
steps = "steps"
mask = "mask"
"#;

fn write(storage: &MemoryStorage, path: &str, bytes: &[u8]) {
    let path = Path::new(path);
    storage.create_dir(path.parent().unwrap()).unwrap();
    let mut file = storage.create(path).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
    storage.sync_dir(path.parent().unwrap()).unwrap();
}

fn bytes_of(storage: &MemoryStorage, path: &str) -> Vec<u8> {
    let file: Box<dyn ReadFile> = storage.open(Path::new(path)).unwrap();
    let mut bytes = vec![0; usize::try_from(file.num_bytes()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Storage with the samples of Burn in it.
fn samples() -> MemoryStorage {
    let storage = MemoryStorage::new();
    for name in ["model.mpk", "half.mpk", "model.bpk"] {
        write(&storage, &format!("burn/{name}"), &sample(name));
    }
    storage.restart(Survives::Nothing)
}

fn convert<'a>(
    storage: &MemoryStorage,
    (from, to): (&'a str, &'a str),
    kind: Kind,
    change: impl FnOnce(&mut Conversion<'a>),
) -> Result<Converted, ConvertError> {
    let mut conversion = Conversion::new(Path::new(from), Path::new(to));
    conversion.kind = Some(kind);
    conversion.storage = Arc::new(storage.clone());
    change(&mut conversion);
    conversion.run()
}

/// The content of a path: types, shapes and elements of all parameters.
fn content(storage: &MemoryStorage, path: &str, kind: Kind, names: Option<&Names>) -> Content {
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    let source = super::source::Source::open(&shared, Path::new(path), names).unwrap();
    assert_eq!(source.kind, kind);
    let mut content = Content::new();
    for (index, entry) in source.entries.iter().enumerate() {
        let mut bytes = Vec::new();
        let whole = [Region::whole(&entry.shape).unwrap()].into_iter();
        let each = |_: &Region, part: &[u8]| -> Result<(), CheckpointError> {
            bytes.extend_from_slice(part);
            Ok(())
        };
        source.read(index, whole, each).unwrap();
        content.insert(entry.key.clone(), (entry.dtype, entry.shape.clone(), bytes));
    }
    content
}

type Content = BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>;

fn expected(float: DType, int: DType) -> Content {
    let all = parameters(float, int).into_iter();
    all.map(|(p, bytes)| (p.key, (p.dtype, p.shape, bytes)))
        .collect()
}

const KINDS: [Kind; 4] = [Kind::Checkpoint, Kind::Hf, Kind::Mpk, Kind::Bpk];

/// Three experts of two layers, each a matrix of 4 outputs and 6 inputs, as a folder with other tensors.
fn experts(storage: &MemoryStorage, path: &str, left_out: &[&str]) {
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    let mut tensors = vec![("norm".to_string(), vec![5])];
    for (layer, expert) in (0..2).flat_map(|layer| (0..3).map(move |expert| (layer, expert))) {
        let name = format!("layers.{layer}.experts.{expert}.up.weight");
        tensors.push((name, vec![4, 6]));
    }
    tensors.retain(|(name, _)| !left_out.contains(&name.as_str()));
    let listed = tensors.iter();
    let listed = listed.map(|(name, shape)| Tensor::new(name, DType::F32, shape.clone()));
    let writer = FolderWriter::create_on(shared, Path::new(path), listed.collect(), None);
    let mut writer = writer.unwrap();
    for (number, (name, shape)) in tensors.iter().enumerate() {
        let numel: usize = shape.iter().product();
        let values = (0..numel).map(|at| (number * 100 + at) as f32);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        writer.write(name, &bytes).unwrap();
    }
    writer.commit().unwrap();
}

const STACKED: &str =
    "norm = \"norm\"\n\"layers.*.up\" = \"layers.*.experts.*.up.weight, stacked\"\n";

#[test]
fn what_several_tensors_hold_is_one_parameter_and_becomes_them_again() {
    let storage = MemoryStorage::new();
    experts(&storage, "there", &[]);
    let names = Names::parse(STACKED, &[]).unwrap();
    let mut found = Vec::new();
    for kind in [Kind::Checkpoint, Kind::Mpk] {
        let (to, back) = (format!("as/{kind}"), format!("back/{kind}"));
        let run = |from: &str, to: &str, kind, dtype| {
            convert(&storage, (from, to), kind, |conversion| {
                (conversion.names, conversion.dtype) = (Some(&names), dtype);
            })
            .unwrap()
        };
        assert_eq!(run("there", &to, kind, None).parameters, 3);
        let stacked = content(&storage, &to, kind, None);
        let (_, shape, bytes) = &stacked["layers.1.up"];
        assert_eq!(*shape, [3, 6, 4]);
        // Of its second expert, input 2 and output 3.
        let at = (24 + 2 * 4 + 3) * 4;
        let value = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(value, (5 * 100 + 3 * 6 + 2) as f32);
        run(&to, &back, Kind::Hf, None);
        assert_eq!(
            content(&storage, &back, Kind::Hf, None),
            content(&storage, "there", Kind::Hf, None)
        );
        found.push(stacked);
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(content(&storage, "there", Kind::Hf, Some(&names)), found[0]);

    // One that is not there is named.
    experts(&storage, "less", &["layers.1.experts.1.up.weight"]);
    let error = convert(&storage, ("less", "more"), Kind::Checkpoint, |conversion| {
        conversion.names = Some(&names);
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("layers.1.experts.1.up.weight"), "{error}");
}

#[test]
fn every_form_becomes_every_other_bit_by_bit() {
    let names = Names::parse(NAMES, &[]).unwrap();
    for names in [None, Some(&names)] {
        for (first, second) in KINDS.iter().flat_map(|a| KINDS.map(|b| (*a, b))) {
            let storage = samples();
            let run = |from: &str, to: &str, kind| {
                convert(&storage, (from, to), kind, |conversion| {
                    (conversion.names, conversion.shard_bytes) = (names, Some(40));
                })
                .unwrap()
            };
            let done = run("burn/model.mpk", "one/a", first);
            assert_eq!((done.from, done.to, done.parameters), (Kind::Mpk, first, 8));
            assert_eq!(done.bytes, (32 + 24 + 12 + 12 + 24 + 12 + 8 + 3) as u64);
            let done = run("one/a", "two/b", second);
            assert_eq!((done.from, done.to), (first, second));
            let found = content(&storage, "two/b", second, names);
            assert_eq!(
                found,
                expected(DType::F32, DType::I32),
                "{first} to {second}"
            );
        }
    }
}

#[test]
fn folders_hold_what_the_names_say() {
    let storage = samples();
    let names = Names::parse(NAMES, &[]).unwrap();
    convert(
        &storage,
        ("burn/model.bpk", "hf/model"),
        Kind::Hf,
        |conversion| {
            conversion.names = Some(&names);
        },
    )
    .unwrap();
    let folder = Folder::open_on(&storage, "hf/model").unwrap();
    let tensors: Vec<_> = folder.tensors().map(|(name, ..)| name).collect();
    assert_eq!(tensors.len(), 8);
    let shape = [2, 3];
    let read = |form, shape: &[usize]| {
        let mut bytes = vec![0; 24];
        let region = Region::whole(shape).unwrap();
        let name = "model.layers.1.proj.weight";
        let mut request = Request::new(name, DType::F32, shape, region, &mut bytes);
        folder.read(form, &mut request).unwrap();
        let floats = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|four| f32::from_le_bytes(*four));
        floats.collect::<Vec<_>>()
    };
    assert_eq!(
        read(Form::Transposed, &shape),
        [2.25, 2.5, 2.75, 3.0, 3.25, 3.5]
    );
    assert_eq!(read(Form::Same, &[3, 2]), [2.25, 3.0, 2.5, 3.25, 2.75, 3.5]);
}

#[test]
fn ids_and_metadata_stay() {
    let storage = samples();
    convert(&storage, ("burn/model.mpk", "a/a.bpk"), Kind::Bpk, |_| {}).unwrap();
    convert(&storage, ("a/a.bpk", "a/b.mpk"), Kind::Mpk, |_| {}).unwrap();
    let record = open_mpk(&storage, Path::new("a/b.mpk")).unwrap();
    assert_eq!(record.ids["embedding"], 101);
    assert_eq!(record.ids["mask"], 108);
    // From what has none, each gets its own.
    convert(&storage, ("a/a.bpk", "run"), Kind::Checkpoint, |_| {}).unwrap();
    convert(&storage, ("run", "a/c.mpk"), Kind::Mpk, |_| {}).unwrap();
    let ids = open_mpk(&storage, Path::new("a/c.mpk")).unwrap().ids;
    let different: std::collections::BTreeSet<_> = ids.values().collect();
    assert_eq!((ids.len(), different.len()), (8, 8));
    convert(&storage, ("run", "a/d.bpk"), Kind::Bpk, |_| {}).unwrap();
    assert!(
        open_bpk(&storage, Path::new("a/d.bpk"))
            .unwrap()
            .ids
            .is_empty()
    );

    // The step and what a checkpoint says of itself.
    let state = crate::tests::state::State::seeded(3);
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    state
        .save(&Checkpoints::on(shared.clone(), "other"), 40, 1)
        .unwrap();
    let done = convert(&storage, ("other", "copy"), Kind::Checkpoint, |_| {}).unwrap();
    assert_eq!(done.path, Path::new("copy/step-0000000040"));
    let open = |run: &str| Checkpoints::on(shared.clone(), run).open(40).unwrap();
    let difference = crate::tools::diff(&open("other"), &open("copy")).unwrap();
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(
        open("copy").manifest().metadata,
        open("other").manifest().metadata
    );
}

/// A folder with one tensor of these numbers, and files beside it.
fn with_floats(values: &[f32]) -> MemoryStorage {
    let storage = MemoryStorage::new();
    let tensors = vec![Tensor::new("x", DType::F32, vec![values.len()])];
    let shared = Arc::new(storage.clone());
    let mut writer = FolderWriter::create_on(shared, "from", tensors, None).unwrap();
    writer
        .write_other("config.json", br#"{"torch_dtype": "float32", "a": [1]}"#)
        .unwrap();
    writer.write_other("tokenizer.json", b"any text").unwrap();
    writer.write_other("README.md", b"read me").unwrap();
    for value in values {
        writer.write("x", &value.to_le_bytes()).unwrap();
    }
    writer.commit().unwrap();
    storage
}

#[test]
fn a_folder_takes_along_what_is_beside_its_tensors() {
    let storage = with_floats(&[1.0, 2.0]);
    convert(&storage, ("from", "to"), Kind::Hf, |c| {
        c.dtype = Some(DType::BF16)
    })
    .unwrap();
    let config: serde_json::Value =
        serde_json::from_slice(&bytes_of(&storage, "to/config.json")).unwrap();
    assert_eq!(
        config,
        serde_json::json!({"torch_dtype": "bfloat16", "a": [1]})
    );
    assert_eq!(bytes_of(&storage, "to/tokenizer.json"), b"any text");
    let mut names = storage.list(Path::new("to")).unwrap();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "model.safetensors", "tokenizer.json"]
    );
    convert(&storage, ("from", "same"), Kind::Hf, |_| {}).unwrap();
    assert_eq!(
        bytes_of(&storage, "same/config.json"),
        bytes_of(&storage, "from/config.json")
    );
}

#[test]
fn one_module_of_a_checkpoint_is_taken() {
    let storage = samples();
    convert(
        &storage,
        ("burn/model.mpk", "all"),
        Kind::Checkpoint,
        |_| {},
    )
    .unwrap();
    let layers = |conversion: &mut Conversion<'_>| conversion.module = Some("layers");
    convert(&storage, ("all", "layers.bpk"), Kind::Bpk, layers).unwrap();
    let mut expected = expected(DType::F32, DType::I32);
    let all = expected.len();
    expected = expected
        .into_iter()
        .filter_map(|(key, content)| Some((key.strip_prefix("layers.")?.to_owned(), content)))
        .collect();
    assert!(!expected.is_empty() && expected.len() < all);
    let found = content(&storage, "layers.bpk", Kind::Bpk, None);
    assert_eq!(found, expected);

    let other = |conversion: &mut Conversion<'_>| conversion.module = Some("layer");
    let error = convert(&storage, ("all", "none.bpk"), Kind::Bpk, other).unwrap_err();
    assert!(
        error.to_string().contains("nothing under `layer.`"),
        "{error}"
    );
    let error = convert(&storage, ("burn/model.mpk", "none.bpk"), Kind::Bpk, layers).unwrap_err();
    assert!(error.to_string().contains("leave --module out"), "{error}");
}
