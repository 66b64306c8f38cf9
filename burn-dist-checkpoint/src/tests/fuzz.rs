//! Hostile manifests and files: errors, never a panic, and nothing that is not there.

use super::state::{State, options};
use crate::format::{MANIFEST, Manifest, checksum};
use crate::load::{Match, Options};
use crate::save::Checkpoints;
use crate::storage::memory::MemoryStorage;
use burn_dist_mesh::Rank;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const PREFIX: &str = "{\"format\":\"burn-dist-checkpoint\",\"version\":1,\"checksum\":\"";

fn saved(state: &State) -> (MemoryStorage, Checkpoints) {
    let storage = MemoryStorage::new();
    let checkpoints = Checkpoints::on(Arc::new(storage.clone()), "run");
    state.save(&checkpoints, 1, 1).unwrap();
    (storage, checkpoints)
}

fn manifest_path() -> std::path::PathBuf {
    Path::new("run/step-0000000001").join(MANIFEST)
}

/// The manifest as JSON, without what comes before the checksum's end.
fn body(storage: &MemoryStorage) -> Value {
    let mut bytes = Vec::new();
    storage
        .corrupt(&manifest_path(), |manifest| bytes = manifest.clone())
        .unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let body = &text[PREFIX.len() + 16 + 2..];
    serde_json::from_str(&format!("{{{body}")).unwrap()
}

/// Writes a manifest whose checksum is right, whatever it says.
fn signed(body: &Value) -> Vec<u8> {
    let text = serde_json::to_string(body).unwrap();
    let body = &text[1..];
    format!("{PREFIX}{}\",{body}", checksum(body.as_bytes())).into_bytes()
}

/// Loads all there is; errors are fine, and equal bytes are.
fn try_all(state: &State, checkpoints: &Checkpoints) {
    let Ok(checkpoint) = checkpoints.open(1) else {
        return;
    };
    for verify in [true, false] {
        let options = Options {
            verify,
            matching: Match::Lenient,
            ..options()
        };
        for rank in state.mesh.ranks() {
            if let Err(error) = state.load(&checkpoint, rank, options) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
    let _ = crate::tools::inspect(&checkpoint);
    let _ = crate::tools::verify(&checkpoint);
}

/// Numbers that tend to break things.
fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(0)),
        Just(json!(1)),
        Just(json!(-1)),
        Just(json!(7)),
        Just(json!(1u64 << 31)),
        Just(json!(1u64 << 32)),
        Just(json!(1u64 << 40)),
        Just(json!(u64::MAX)),
        Just(json!(i64::MAX)),
        Just(json!(1.5)),
        Just(json!(1e300)),
        (0u64..100).prop_map(|n| json!(n)),
    ]
}

fn strange() -> impl Strategy<Value = Value> {
    let texts = vec![
        "",
        "../x.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "f32",
        "[{fsdp}]",
        "0",
        "layers.0.bias",
        "00000-of-00004.safetensors",
        "\u{0}.safetensors",
        "..",
        "C:\\x.safetensors",
    ];
    prop_oneof![
        number(),
        prop::sample::select(texts).prop_map(|text| json!(text)),
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!(true)),
    ]
}

/// A change of one place of a manifest.
#[derive(Clone, Debug)]
enum Change {
    Replace(Value),
    Remove,
    Repeat,
    Swap,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => strange().prop_map(Change::Replace),
        1 => Just(Change::Remove),
        1 => Just(Change::Repeat),
        1 => Just(Change::Swap),
    ]
}

/// Changes the place of this number, counted from the outside in; returns how many places there are.
fn mutate(value: &mut Value, place: &mut usize, change: &Change) {
    if *place == 0 {
        match (change, &mut *value) {
            (Change::Replace(other), _) => *value = other.clone(),
            (Change::Remove, Value::Array(list)) => drop(list.pop()),
            (Change::Remove, Value::Object(map)) => {
                let first = map.keys().next().cloned();
                first.map(|key| map.remove(&key));
            }
            (Change::Repeat, Value::Array(list)) => list.extend(list.clone()),
            (Change::Swap, Value::Array(list)) => list.reverse(),
            _ => *value = Value::Null,
        }
        *place = usize::MAX;
        return;
    }
    *place -= 1;
    let inner: Vec<&mut Value> = match value {
        Value::Array(list) => list.iter_mut().collect(),
        Value::Object(map) => map.values_mut().collect(),
        _ => return,
    };
    for value in inner {
        mutate(value, place, change);
        if *place == usize::MAX {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn manifests_that_lie_are_errors(changes in prop::collection::vec((0usize..400, change()), 1..4)) {
        let state = State::example();
        let (storage, checkpoints) = saved(&state);
        let mut body = body(&storage);
        for (place, change) in changes {
            mutate(&mut body, &mut { place }, &change);
        }
        storage.corrupt(&manifest_path(), |bytes| *bytes = signed(&body)).unwrap();
        try_all(&state, &checkpoints);
    }

    #[test]
    fn damaged_bytes_are_errors_or_harmless(
        in_manifest in any::<bool>(), at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>(),
    ) {
        let state = State::example();
        let (storage, checkpoints) = saved(&state);
        let path = match in_manifest {
            true => manifest_path(),
            false => Path::new("run/step-0000000001/00000-of-00004.safetensors").to_path_buf(),
        };
        storage.corrupt(&path, |bytes| {
            let at = at.index(bytes.len());
            match cut {
                true => bytes.truncate(at),
                false => bytes[at] ^= 1 << bit,
            }
        }).unwrap();
        // Every byte counts: somebody notices.
        let noticed = match checkpoints.open(1) {
            Err(_) => true,
            Ok(checkpoint) => state.mesh.ranks().any(|rank| state.load(&checkpoint, rank, options()).is_err()),
        };
        prop_assert!(noticed);
        try_all(&state, &checkpoints);
    }

    #[test]
    fn any_bytes_are_no_manifest(bytes in prop::collection::vec(any::<u8>(), 0..200), keep in 0usize..90) {
        let mut manifest = format!("{PREFIX}0123456789abcdef\",\"save_id\":\"").into_bytes();
        manifest.truncate(keep);
        manifest.extend(bytes);
        prop_assert!(Manifest::from_bytes(manifest).is_err());
    }
}

fn error_of(change: impl FnOnce(&mut Value)) -> String {
    let state = State::example();
    let (storage, checkpoints) = saved(&state);
    let mut body = body(&storage);
    change(&mut body);
    storage
        .corrupt(&manifest_path(), |bytes| *bytes = signed(&body))
        .unwrap();
    let loaded = checkpoints
        .open(1)
        .and_then(|it| state.load(&it, Rank(0), options()));
    let text = loaded.unwrap_err().to_string();
    text.split_once("cannot be used: ")
        .map_or(text.clone(), |(_, problem)| problem.to_owned())
}

#[test]
fn every_lie_has_its_error() {
    // The tensor `columns` is of u8, [4, 6], in two pieces of 12 bytes.
    let piece = |body: &mut Value| body["tensors"][0]["pieces"][0].take();
    let set = |path: &'static str, value: Value| {
        let (parent, key) = path.rsplit_once('/').unwrap();
        error_of(
            move |body| match (body.pointer_mut(parent).unwrap(), key.parse::<usize>()) {
                (Value::Array(list), Ok(index)) => list[index] = value,
                (Value::Object(map), _) => drop(map.insert(key.into(), value)),
                other => panic!("{other:?}"),
            },
        )
    };
    for name in [
        "../x.safetensors",
        "/x.safetensors",
        "a\\b.safetensors",
        "x.bin",
        ".x.safetensors",
    ] {
        let error = set("/files/0/name", json!(name));
        assert_eq!(
            error,
            format!("the file `{name}` is not the plain name of a safetensors file")
        );
    }
    let cases = [
        (set("/block_bytes", json!(0)), "blocks are of 0 bytes"),
        (set("/block_bytes", json!(12)), "blocks are of 12 bytes"),
        (set("/block_bytes", json!(1u64 << 40)), "blocks are of"),
        (
            set("/files/1/name", json!("00000-of-00004.safetensors")),
            "listed twice",
        ),
        (
            set("/files/0/header_bytes", json!(u64::MAX)),
            "has a header of",
        ),
        (set("/tensors/0/key", json!("a[0]")), "cannot name a tensor"),
        (
            set("/tensors/0/key", json!("layers.0.bias")),
            "not sorted by key",
        ),
        (
            set("/tensors/0/dtype", json!("f33")),
            "columns: there is no type `f33`",
        ),
        (set("/tensors/0/shape", json!([4, 7])), "columns: "),
        (
            set("/tensors/0/shape", json!([1u64 << 40, 1u64 << 40])),
            "more elements than fit 64 bits",
        ),
        (
            set("/tensors/0/factors", json!([[4], [2, 4]])),
            "do not make up the shape",
        ),
        (
            set("/tensors/0/pieces/0/start", json!([0, 4])),
            "end outside of dim 1",
        ),
        (
            set("/tensors/0/pieces/0/start", json!([0, 2])),
            "columns: the pieces [0:4,2:5] and [0:4,3:6] overlap",
        ),
        (
            set("/tensors/0/pieces/0/extent", json!([0, 3])),
            "has no elements",
        ),
        (
            set("/tensors/0/pieces/0/offset", json!(1u64 << 50)),
            "is not in file",
        ),
        (
            set("/tensors/0/pieces/0/offset", json!(0)),
            "is not in file",
        ),
        (
            set("/tensors/0/pieces/0/file", json!(99)),
            "is not in file 99",
        ),
        (
            set("/tensors/0/pieces/0/checksums", json!("")),
            "0 checksums for 1 blocks",
        ),
        (
            set("/tensors/0/pieces/0/checksums", json!("xyz")),
            "16 hexadecimal digits",
        ),
        (
            set("/tensors/0/pieces/0/offset", json!(-1)),
            "invalid value",
        ),
        (
            set("/mesh", json!([{"name": "a", "size": 0, "role": "Model"}])),
            "axis",
        ),
        (set("/save_id", json!("12")), "32 hexadecimal digits"),
        (
            error_of(|body| {
                body["files"][0]["header_bytes"] = json!(1u64 << 40);
                body["files"][0]["bytes"] = json!(1u64 << 41);
            }),
            "has a header of",
        ),
        (
            error_of(|body| drop(body["tensors"][0]["pieces"].as_array_mut().unwrap().pop())),
            "12 of 24 elements",
        ),
        (error_of(|body| body["extra"] = json!(1)), "unknown field"),
        (error_of(|body| drop(piece(body))), "invalid type: null"),
    ];
    for (index, (error, expected)) in cases.iter().enumerate() {
        assert!(error.contains(expected), "case {index}: {error}");
    }
}

#[test]
fn bytes_of_two_pieces_are_an_error() {
    let error = error_of(|body| {
        // The first two pieces of a file that has several.
        let of = |piece: &Value| {
            (
                piece["file"].as_u64().unwrap(),
                piece["offset"].as_u64().unwrap(),
            )
        };
        let tensors = body["tensors"].as_array_mut().unwrap();
        let mut pieces: Vec<&mut Value> = tensors
            .iter_mut()
            .flat_map(|tensor| tensor["pieces"].as_array_mut().unwrap())
            .collect();
        pieces.sort_by_key(|piece| of(piece));
        let pair = pieces
            .windows(2)
            .position(|pair| of(pair[0]).0 == of(pair[1]).0)
            .unwrap();
        let offset = pieces[pair]["offset"].clone();
        pieces[pair + 1]["offset"] = offset;
    });
    assert!(error.contains("two pieces share byte"), "{error}");
}

#[test]
fn a_later_version_is_refused_by_its_number() {
    let state = State::example();
    let (storage, checkpoints) = saved(&state);
    for (version, found) in [("2", 2), ("17", 17), ("99999999999999999999999", u64::MAX)] {
        let text =
            format!("{{\"format\":\"burn-dist-checkpoint\",\"version\":{version},\"whatever\":[");
        storage
            .corrupt(&manifest_path(), |bytes| *bytes = text.into_bytes())
            .unwrap();
        let error = checkpoints.open(1).err().unwrap().to_string();
        let expected = format!(
            "it is of version {found} of the format, and this program reads up to 1: use a later burn-dist"
        );
        assert!(error.ends_with(&expected), "{error}");
    }
}
