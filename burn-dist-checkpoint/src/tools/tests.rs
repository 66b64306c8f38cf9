//! Tools on checkpoints in memory.

use super::*;
use crate::error::{CheckpointError, FileProblem};
use crate::format::{MANIFEST, SaveId};
use crate::save::Checkpoints;
use crate::storage::Storage;
use crate::storage::memory::MemoryStorage;
use crate::tests::state::{State, options};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

fn saved(state: &State) -> (MemoryStorage, Checkpoints) {
    let storage = MemoryStorage::new();
    let checkpoints = Checkpoints::on(Arc::new(storage.clone()), "run");
    state.save(&checkpoints, 1, 1).unwrap();
    (storage, checkpoints)
}

#[test]
fn inspect_draws_the_tree() {
    let (_, checkpoints) = saved(&State::example());
    let text = inspect(&checkpoints.open(1).unwrap());
    let expected = "\
directory run/step-0000000001
save      00000000000000000000000000000001
mesh      dp=2,fsdp=2
metadata  step = 1
files     4
tensors   6, 326 B
  columns          u8 [4, 6] [-, {fsdp}] 24 B, 2 pieces
  layers
    0
      bias             bf16 [5] [-] 10 B, 1 piece
      weight           f32 [7, 5] [{fsdp}, -] 140 B, 2 pieces
  none             f32 [0, 3] [-, -] 0 B, 0 pieces
  qkv              f32 [12, 3] [(3 . 4{fsdp}), -] 144 B, 2 pieces
  step             i64 [] [] 8 B, 1 piece
";
    assert_eq!(text, expected);
}

#[test]
fn verify_finds_everything_that_is_wrong() {
    let (storage, checkpoints) = saved(&State::example());
    let checkpoint = checkpoints.open(1).unwrap();
    let good = verify(&checkpoint).unwrap();
    assert_eq!((good.files, good.bytes, good.problems.len()), (4, 326, 0));
    let file = |index: usize| {
        checkpoint
            .path()
            .join(&checkpoint.manifest().files[index].name)
    };
    let last = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    storage.corrupt(&file(0), last).unwrap();
    storage.corrupt(&file(1), |bytes| bytes[20] ^= 1).unwrap();
    storage.corrupt(&file(2), |bytes| bytes.push(0)).unwrap();
    drop(storage.create(&checkpoint.path().join("stray")).unwrap());
    let found = verify(&checkpoint).unwrap();
    let [first, second, third, fourth] = found.problems.as_slice() else {
        panic!("{:?}", found.problems);
    };
    assert!(matches!(first, CheckpointError::Checksum { .. }), "{first}");
    let is = |error: &CheckpointError, text: &str| {
        assert!(matches!(error, CheckpointError::File { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    is(second, "its header has the checksum");
    is(third, "bytes instead of");
    is(fourth, "stray cannot be used: it is not in the manifest");
    assert_eq!(found.files, 1);
}

#[test]
fn verify_compares_headers_with_the_manifest() {
    // A manifest that calls a tensor otherwise than the files do.
    let (storage, checkpoints) = saved(&State::example());
    let path = Path::new("run/step-0000000001").join(MANIFEST);
    let mut manifest = checkpoints.open(1).unwrap().manifest().clone();
    manifest.tensors[0].key = "colour".into();
    storage
        .corrupt(&path, |bytes| *bytes = manifest.to_bytes().unwrap())
        .unwrap();
    let found = verify(&checkpoints.open(1).unwrap()).unwrap();
    assert_eq!(found.problems.len(), 2);
    let text = found.problems[0].to_string();
    assert!(
        text.contains("does not have the piece colour[0:4,0:3]"),
        "{text}"
    );
    let is_piece = |error: &CheckpointError| {
        matches!(
            error,
            CheckpointError::File {
                problem: FileProblem::Piece { .. },
                ..
            }
        )
    };
    assert!(found.problems.iter().all(is_piece));
}

#[test]
fn diff_says_what_changed() {
    let first = State::example();
    let (_, one) = saved(&first);
    let one = one.open(1).unwrap();
    assert!(diff(&one, &one).unwrap().is_empty());
    let mut second = State::example();
    second.tensors.retain(|tensor| tensor.key != "step");
    second.tensors[1].dtype = burn_dist_mesh::DType::F16;
    second.tensors.push(crate::Tensor {
        key: "other".into(),
        ..second.tensors[3].clone()
    });
    let (storage, two) = saved(&second);
    let checkpoint = two.open(1).unwrap();
    let found = diff(&one, &checkpoint).unwrap();
    assert_eq!((found.num_equal, found.changed.len()), (4, 0));
    let text = "4 tensors are equal\n  only in the first   step\n  only in the second  other\n  of another kind     \
                layers.0.bias: bf16 [5], f16 [5]";
    assert_eq!(found.to_string(), text);
    // Other values: of another seed.
    let (_, three) = saved(&State::seeded(6));
    let found = diff(&one, &three.open(1).unwrap()).unwrap();
    let keys: Vec<&str> = found
        .changed
        .iter()
        .map(|changed| changed.key.as_str())
        .collect();
    assert_eq!(
        keys,
        ["columns", "layers.0.bias", "layers.0.weight", "qkv", "step"]
    );
    assert!(
        found
            .to_string()
            .contains("step: 1 of 1 elements, the first is 0")
    );
    drop(storage);
}

proptest! {
    #[test]
    fn resharded_is_the_same_in_other_pieces(
        (from, to) in State::any().prop_flat_map(State::elsewhere), writers in any::<u64>(),
    ) {
        let (_, checkpoints) = saved(&from);
        let checkpoint = checkpoints.open(1).unwrap();
        let plan = to.plan_by(writers);
        reshard(&checkpoint, &checkpoints, 2, SaveId::new(2), &plan).unwrap();
        let other = checkpoints.open(2).unwrap();
        prop_assert_eq!(&other.manifest().mesh, &to.mesh);
        prop_assert_eq!(&other.manifest().metadata, &checkpoint.manifest().metadata);
        prop_assert!(diff(&checkpoint, &other).unwrap().is_empty());
        prop_assert!(verify(&other).unwrap().problems.is_empty());
        to.assert_is(&other, options());
    }
}

#[test]
fn reshard_needs_the_same_tensors() {
    let state = State::example();
    let (_, checkpoints) = saved(&state);
    let mut other = state.clone();
    other.tensors.pop();
    let checkpoint = checkpoints.open(1).unwrap();
    let found = reshard(&checkpoint, &checkpoints, 2, SaveId::new(2), &other.plan());
    assert!(matches!(found, Err(CheckpointError::Keys(report)) if report.unexpected == ["none"]));
}
