//! From every form to every other and back, and what cannot be converted.

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

/// What is at a path: types, shapes and elements of all parameters.
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

#[test]
fn floats_change_their_type_and_nothing_else_does() {
    let storage = samples();
    for (dtype, to) in [(DType::BF16, "hf/bf16"), (DType::F16, "hf/f16")] {
        convert(&storage, ("burn/model.mpk", to), Kind::Hf, |c| {
            c.dtype = Some(dtype)
        })
        .unwrap();
        let found = content(&storage, to, Kind::Hf, None);
        assert_eq!(found, expected(dtype, DType::I32));
    }
    convert(&storage, ("burn/half.mpk", "a.bpk"), Kind::Bpk, |c| {
        c.dtype = Some(DType::F32)
    })
    .unwrap();
    assert_eq!(
        content(&storage, "a.bpk", Kind::Bpk, None),
        expected(DType::F32, DType::I16)
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
fn numbers_beyond_the_range_of_a_type_are_errors() {
    let largest = half::f16::MAX.to_f32();
    let mut values = vec![0.5; 40];
    // What rounds to a number is one; what is not finite is so in all types.
    values.extend([
        largest,
        -largest,
        65519.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-9,
    ]);
    let to_f16 = |storage: &MemoryStorage, kind, to| {
        convert(storage, ("from", to), kind, |c| c.dtype = Some(DType::F16))
    };
    to_f16(&with_floats(&values), Kind::Mpk, "to/a.mpk").unwrap();
    values[33] = 65520.0;
    let storage = with_floats(&values);
    for (kind, to) in KINDS.into_iter().zip(["run", "hf", "to/a.mpk", "to/a.bpk"]) {
        let error = to_f16(&storage, kind, to).unwrap_err();
        let said = error.to_string();
        assert!(
            matches!(error, ConvertError::Range { .. }),
            "{kind}: {said}"
        );
        assert_eq!(
            said,
            "x has values beyond the range of f16: choose another type"
        );
        // At most an empty folder.
        for folder in [to, "to"] {
            let left = storage.list(Path::new(folder)).unwrap_or_default();
            assert_eq!(left, [""; 0], "{kind}");
        }
        assert!(storage.open(Path::new(to)).is_err(), "{kind}");
    }
    values[33] = f32::MAX;
    let storage = with_floats(&values);
    let error = convert(&storage, ("from", "to/a"), Kind::Hf, |c| {
        c.dtype = Some(DType::BF16)
    });
    assert!(matches!(error.unwrap_err(), ConvertError::Range { .. }));
}

#[test]
fn floats_are_rounded_once_to_nearest() {
    let round = |from: DType, to: DType, source: &[u8]| {
        let mut target = vec![0; source.len() / from.size() * to.size()];
        assert!(super::floats::convert(from, to, source, &mut target));
        target
    };
    // Just above the middle of two bf16, which rounding to f32 first would make the middle, and then even.
    let value = 1.0 + f64::from(half::bf16::EPSILON) / 2.0 + 1e-12;
    let expected = half::bf16::from_f32(1.0 + half::bf16::EPSILON.to_f32()).to_le_bytes();
    assert_eq!(
        round(DType::F64, DType::BF16, &value.to_le_bytes()),
        expected
    );
    let below = 1.0 + f64::from(half::f16::EPSILON) / 2.0 - 1e-12;
    let expected = half::f16::ONE.to_le_bytes();
    assert_eq!(
        round(DType::F64, DType::F16, &below.to_le_bytes()),
        expected
    );
    let mut target = [0; 2];
    let large = f64::MAX.to_le_bytes();
    assert!(!super::floats::convert(
        DType::F64,
        DType::BF16,
        &large,
        &mut target
    ));
    assert!(!super::floats::convert(
        DType::F64,
        DType::F32,
        &large,
        &mut [0; 4]
    ));
    for bits in 0..=u16::MAX {
        let (half, brain) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        if half.is_nan() || brain.is_nan() {
            continue;
        }
        let wide = round(DType::F16, DType::F32, &bits.to_le_bytes());
        assert_eq!(wide, half.to_f32().to_le_bytes());
        assert_eq!(round(DType::F32, DType::F16, &wide), bits.to_le_bytes());
        let wide = round(DType::BF16, DType::F32, &bits.to_le_bytes());
        assert_eq!(wide, (u32::from(bits) << 16).to_le_bytes());
        assert_eq!(round(DType::F32, DType::BF16, &wide), bits.to_le_bytes());
    }
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
fn what_cannot_be_converted_is_said() {
    let storage = samples();
    write(&storage, "bad/text", b"hello, here is a text");
    write(&storage, "bad/empty", b"");
    write(&storage, "bad/a.mpk.gz", &[0x1f, 0x8b, 8, 0]);
    write(&storage, "bad/x.safetensors", b"\x08\0\0\0\0\0\0\0{}      ");
    let said = |from: &str| {
        let error = convert(&storage, (from, "to"), Kind::Hf, |_| {}).unwrap_err();
        assert!(matches!(error, ConvertError::Unknown { .. }), "{error}");
        error.to_string()
    };
    assert!(
        said("bad/text").starts_with("bad/text is a file of another kind: a checkpoint (a dir")
    );
    assert!(said("bad/empty").contains("is an empty file"));
    assert!(said("bad/a.mpk.gz").contains("gunzip"));
    assert!(said("bad/x.safetensors").contains("give its folder"));
    assert!(said("bad").contains("is a directory without any of these"));
    let missing = convert(&storage, ("none", "to"), Kind::Hf, |_| {}).unwrap_err();
    assert!(matches!(
        missing,
        ConvertError::Checkpoint(CheckpointError::Io { .. })
    ));

    let target = |to: &str, kind: Option<Kind>| {
        let mut conversion = Conversion::new(Path::new("burn/model.mpk"), Path::new(to));
        (conversion.kind, conversion.storage) = (kind, Arc::new(storage.clone()));
        conversion.run()
    };
    assert!(matches!(
        target("to/x", None),
        Err(ConvertError::Target { .. })
    ));
    assert_eq!(target("bad/y.bpk", None).unwrap().to, Kind::Bpk);
    assert_eq!(target("bad/y.mpk", None).unwrap().to, Kind::Mpk);
    target("hf", Some(Kind::Hf)).unwrap();
    target("run", Some(Kind::Checkpoint)).unwrap();
    for (to, kind) in [
        ("bad/y.bpk", Kind::Bpk),
        ("bad/y.mpk", Kind::Mpk),
        ("hf", Kind::Hf),
        ("hf", Kind::Bpk),
        ("bad/text", Kind::Checkpoint),
        ("bad/text", Kind::Hf),
    ] {
        let error = target(to, Some(kind)).unwrap_err();
        assert!(
            matches!(error, ConvertError::Exists { .. }),
            "{to}: {error}"
        );
    }
    for dtype in [DType::I32, DType::Flex32, DType::U8] {
        let error = convert(&storage, ("hf", "x.mpk"), Kind::Mpk, |c| {
            c.dtype = Some(dtype)
        });
        assert!(
            matches!(error.unwrap_err(), ConvertError::Floats { .. }),
            "{dtype}"
        );
    }
    // The same step of a run.
    let again = target("run", Some(Kind::Checkpoint)).unwrap_err();
    assert!(
        matches!(
            again,
            ConvertError::Checkpoint(CheckpointError::Exists { .. })
        ),
        "{again}"
    );

    let names = Names::parse("embedding = \"e\"\nignored = [\"mask\"]", &[]).unwrap();
    let error = convert(&storage, ("burn/model.mpk", "x"), Kind::Hf, |c| {
        c.names = Some(&names)
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("layers.0.linear.weight\n  ") && !error.contains("embedding"),
        "{error}"
    );
    let error = convert(&storage, ("hf", "x.mpk"), Kind::Mpk, |c| {
        c.names = Some(&names)
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("\n  scale") && !error.contains("mask"),
        "{error}"
    );
    let turned = Names::parse("x = \"x, rotary(4)\"", &[]).unwrap();
    let error = convert(&with_floats(&[1.0]), ("from", "x.mpk"), Kind::Mpk, |c| {
        c.names = Some(&turned)
    });
    assert!(matches!(
        error.unwrap_err(),
        ConvertError::Checkpoint(CheckpointError::Form { .. })
    ));
}

#[test]
fn an_interrupted_conversion_leaves_all_or_nothing() {
    for kind in KINDS {
        let before = samples();
        for calls in 0.. {
            let storage = before.restart(Survives::Everything);
            storage.crash_at(calls);
            let result = convert(&storage, ("burn/model.mpk", "to/a"), kind, |_| {});
            for survives in [
                Survives::Nothing,
                Survives::Everything,
                Survives::Some(calls),
            ] {
                let after = storage.restart(survives);
                let shared: Arc<dyn Storage> = Arc::new(after.clone());
                let path = Path::new("to/a");
                if super::source::Source::open(&shared, path, None).is_ok() {
                    let found = content(&after, "to/a", kind, None);
                    assert_eq!(found, expected(DType::F32, DType::I32), "{kind} {calls}");
                } else {
                    assert!(result.is_err(), "{kind} {calls} {survives:?}");
                }
                // And the next one goes on from there.
                if result.is_err() && content_is_missing(&shared) {
                    convert(&after, ("burn/model.mpk", "to/a"), kind, |_| {}).unwrap();
                }
            }
            if result.is_ok() {
                assert!(calls > 5, "{kind}");
                break;
            }
        }
    }
}

fn content_is_missing(storage: &Arc<dyn Storage>) -> bool {
    super::source::Source::open(storage, Path::new("to/a"), None).is_err()
}
