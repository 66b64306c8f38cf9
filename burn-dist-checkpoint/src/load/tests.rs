//! Loading: any layouts to any layouts, exactly; what differs is reported; what is damaged is named.

use super::*;
use crate::error::{CheckpointError, FileProblem};
use crate::region::Region;
use crate::save::Checkpoints;
use crate::storage::memory::MemoryStorage;
use crate::tests::state::{State, options};
use burn_dist_mesh::DType;
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

fn saved(state: &State) -> (MemoryStorage, Checkpoints) {
    let storage = MemoryStorage::new();
    let checkpoints = Checkpoints::on(Arc::new(storage.clone()), "run");
    state.save(&checkpoints, 1, 1).unwrap();
    (storage, checkpoints)
}

proptest! {
    #[test]
    fn any_layout_loads_as_any_other(
        (from, to) in State::any().prop_flat_map(State::elsewhere),
        writers in any::<u64>(), verify in any::<bool>(), threads in 0usize..3,
    ) {
        let checkpoints = Checkpoints::on(Arc::new(MemoryStorage::new()), "run");
        from.save_by(&checkpoints, 1, 1, &from.plan_by(writers)).unwrap();
        let (step, checkpoint) = checkpoints.open_latest().unwrap().unwrap();
        prop_assert_eq!(step, 1);
        to.assert_is(&checkpoint, Options { verify, threads, ..Options::default() });
    }
}

#[test]
fn large_tensors_load_exactly_too() {
    // Larger than blocks, direct reads, what the reader holds at once, and jobs.
    let mesh: burn_dist_mesh::MeshShape = "fsdp=3,tp=2".parse().unwrap();
    let layout =
        |text: &str| burn_dist_layout::Layout::parse(text, &mesh, Some(&[1501, 2222])).unwrap();
    let of = |text: &str| State {
        mesh: mesh.clone(),
        tensors: vec![crate::Tensor::new("w", DType::F32, layout(text))],
        seed: 3,
    };
    let texts = [
        "[{fsdp}, -]",
        "[-, {tp}]",
        "[{fsdp}, {tp}]",
        "[-, -]",
        "[(19 . 79{fsdp}), -]",
    ];
    for (at, from) in texts.iter().enumerate() {
        let (_, checkpoints) = saved(&of(from));
        let checkpoint = checkpoints.open(1).unwrap();
        // As it was saved, and in the next layout but one.
        for to in [at, (at + 2) % texts.len()] {
            of(texts[to]).assert_is(&checkpoint, options());
        }
    }
}

#[test]
fn contiguous_cuts_read_little_more_than_they_need() {
    let mesh: burn_dist_mesh::MeshShape = "a:model=4,b:model=3".parse().unwrap();
    let of = |axis: &str| {
        let axis = mesh.axis(axis).unwrap();
        let layout = burn_dist_layout::Layout::sharded(&[4096, 2048], 0, &[axis]);
        State {
            mesh: mesh.clone(),
            tensors: vec![crate::Tensor::new("w", DType::F32, layout)],
            seed: 3,
        }
    };
    let (_, checkpoints) = saved(&of("a"));
    let checkpoint = checkpoints.open(1).unwrap();
    let third = Region::of(&of("b").tensors[0].layout, &mesh, burn_dist_mesh::Rank(1)).unwrap();
    let mut buffer = vec![0; third.numel() * 4];
    let mut requests = [Request::new(
        "w",
        DType::F32,
        &[4096, 2048],
        third,
        &mut buffer,
    )];
    let loaded = checkpoint.load(&mut requests, options()).unwrap();
    assert_eq!(loaded.bytes_needed, 1366 * 2048 * 4);
    assert!(
        loaded.bytes_read * 100 <= loaded.bytes_needed * 102,
        "{loaded:?}"
    );
}

#[test]
fn differences_are_all_reported() {
    let state = State::example();
    let (_, checkpoints) = saved(&state);
    let checkpoint = checkpoints.open(1).unwrap();
    let mut other = State::example();
    other
        .tensors
        .retain(|tensor| tensor.key != "step" && tensor.key != "none");
    other.tensors[1].dtype = DType::F32;
    other.tensors[2].key = "q".into();
    let load = |matching| {
        let options = Options {
            matching,
            ..options()
        };
        other.load(&checkpoint, burn_dist_mesh::Rank(0), options)
    };
    let text = load(Match::Exact).unwrap_err().to_string();
    let expected = "1 tensors are missing, 3 unexpected, 1 of another shape or type\n  missing     q\n  unexpected  \
                    none\n  unexpected  qkv\n  unexpected  step\n  mismatched  layers.0.bias: f32 [5] is wanted, the \
                    checkpoint has bf16 [5]";
    assert_eq!(text, expected);
    assert!(matches!(load(Match::Subset), Err(CheckpointError::Keys(_))));
    let blocks = load(Match::Lenient).unwrap();
    assert_eq!(
        blocks[0],
        state.block("layers.0.weight", burn_dist_mesh::Rank(0))
    );
    assert_eq!(blocks[1], [0; 20]);
    other.tensors.drain(1..3);
    let options = Options {
        matching: Match::Subset,
        ..options()
    };
    assert!(
        other
            .load(&checkpoint, burn_dist_mesh::Rank(0), options)
            .is_ok()
    );
}

#[test]
fn types_are_converted_on_request() {
    let state = State::example();
    let (_, checkpoints) = saved(&state);
    let checkpoint = checkpoints.open(1).unwrap();
    let mut floats = vec![0; 20];
    let widen = |from: &[u8], to: &mut [u8]| {
        for (from, to) in from.chunks(2).zip(to.chunks_mut(4)) {
            to.copy_from_slice(&[0, 0, from[0], from[1]]);
        }
    };
    let whole = Region::whole(&[5]).unwrap();
    let request = Request::new("layers.0.bias", DType::F32, &[5], whole, &mut floats);
    let options = Options {
        matching: Match::Subset,
        ..options()
    };
    checkpoint
        .load(&mut [request.converted(&widen)], options)
        .unwrap();
    let bytes = state.bytes("layers.0.bias");
    let expected: Vec<u8> = bytes.chunks(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
    assert_eq!(floats, expected);
}

#[test]
fn long_runs_are_converted_bit_by_bit() {
    let layout = burn_dist_layout::Layout::replicated(&[3_000_001]);
    let state = State {
        mesh: "1".parse().unwrap(),
        tensors: vec![crate::Tensor::new("w", DType::BF16, layout)],
        seed: 1,
    };
    let (_, checkpoints) = saved(&state);
    let checkpoint = checkpoints.open(1).unwrap();
    let region = Region::range(3_000_001, 5..2_999_999).unwrap();
    let mut low = vec![0; region.numel()];
    let first = |from: &[u8], to: &mut [u8]| {
        for (from, to) in from.chunks(2).zip(to) {
            *to = from[0];
        }
    };
    let request = Request::new("w", DType::U8, &[3_000_001], region, &mut low);
    checkpoint
        .load(&mut [request.converted(&first)], options())
        .unwrap();
    let bytes = state.bytes("w");
    assert!(
        bytes
            .chunks(2)
            .skip(5)
            .zip(&low)
            .all(|(both, low)| both[0] == *low)
    );
}

#[test]
fn requests_that_do_not_fit_are_errors() {
    let state = State::example();
    let (_, checkpoints) = saved(&state);
    let checkpoint = checkpoints.open(1).unwrap();
    let load = |region: Region, bytes: usize| {
        let mut buffer = vec![0; bytes];
        let request = Request::new("columns", DType::U8, &[4, 6], region, &mut buffer);
        let options = Options {
            matching: Match::Subset,
            ..options()
        };
        checkpoint.load(&mut [request], options)
    };
    let whole = || Region::whole(&[24]).unwrap();
    assert!(load(whole(), 24).is_ok());
    assert!(matches!(
        load(whole(), 23),
        Err(CheckpointError::Bytes { expected: 24, .. })
    ));
    // Elements that share bytes cannot be converted one by one.
    let (size, code, mut nothing) = (0, [0; 15], []);
    let dtype = DType::Quantized(burn_dist_mesh::Quantized { size, code });
    let request = Request::new("columns", dtype, &[4, 6], whole(), &mut nothing);
    let lenient = Options {
        matching: Match::Lenient,
        ..options()
    };
    let loaded = checkpoint.load(&mut [request.converted(&|_, _| {})], lenient);
    assert!(matches!(loaded, Err(CheckpointError::DType { .. })));
    let other = Region::whole(&[5, 5]).unwrap();
    assert!(matches!(
        load(other, 25),
        Err(CheckpointError::Grid { found: 25, .. })
    ));
}

#[test]
fn a_damaged_block_is_named() {
    let state = State::example();
    let (storage, checkpoints) = saved(&state);
    let checkpoint = checkpoints.open(1).unwrap();
    let tensor = checkpoint.manifest().tensor("layers.0.weight").unwrap();
    let piece = &tensor.pieces[0];
    let file = checkpoint
        .path()
        .join(&checkpoint.manifest().files[piece.file].name);
    let at = piece.offset as usize + 3;
    storage.corrupt(&file, |bytes| bytes[at] ^= 1).unwrap();
    let error = state
        .load(&checkpoint, burn_dist_mesh::Rank(0), options())
        .unwrap_err();
    let CheckpointError::Checksum {
        path,
        key,
        block,
        expected,
        found,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((path, key.as_str(), *block), (&file, "layers.0.weight", 0));
    assert_eq!(*expected, piece.checksums[0]);
    let text = error.to_string();
    for part in [
        &file.display().to_string(),
        &expected.to_string(),
        &found.to_string(),
        key,
    ] {
        assert!(text.contains(part), "{text}");
    }
    // Who does not verify gets the bytes as they are.
    let unverified = Options {
        verify: false,
        ..options()
    };
    assert!(
        state
            .load(&checkpoint, burn_dist_mesh::Rank(0), unverified)
            .is_ok()
    );
}

#[test]
fn files_of_two_saves_are_not_mixed_up() {
    let (first, second) = (State::example(), State::seeded(6));
    let (storage, checkpoints) = saved(&first);
    second.save(&checkpoints, 2, 2).unwrap();
    let name = "00000-of-00004.safetensors";
    let other = Path::new("run/step-0000000002").join(name);
    let mut bytes = Vec::new();
    storage
        .corrupt(&other, |other| bytes = other.clone())
        .unwrap();
    let own = Path::new("run/step-0000000001").join(name);
    for cut in [0, 1] {
        storage
            .corrupt(&own, |own| *own = bytes[..bytes.len() - cut].to_vec())
            .unwrap();
        let loaded = first.load(
            &checkpoints.open(1).unwrap(),
            burn_dist_mesh::Rank(0),
            options(),
        );
        let Err(CheckpointError::File { path, problem }) = loaded else {
            panic!("{loaded:?}");
        };
        assert_eq!(path, own);
        assert!(matches!(problem, FileProblem::MixedUp { .. }), "{problem}");
    }
}

#[test]
fn a_file_that_is_cut_or_gone_is_an_error() {
    let state = State::example();
    let (storage, checkpoints) = saved(&state);
    let checkpoint = checkpoints.open(1).unwrap();
    let path = checkpoint.path().join(&checkpoint.manifest().files[0].name);
    storage
        .corrupt(&path, |bytes| bytes.truncate(bytes.len() - 1))
        .unwrap();
    let cut = state.load(&checkpoint, burn_dist_mesh::Rank(0), options());
    assert!(matches!(
        cut,
        Err(CheckpointError::File {
            problem: FileProblem::Size { .. },
            ..
        })
    ));
    let missing = checkpoints.open(7).err();
    assert!(matches!(missing, Some(CheckpointError::Missing { .. })));
}
