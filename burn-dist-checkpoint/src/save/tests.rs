//! Plans: every element once, evenly; saves: errors that lose nothing.

use super::*;
use crate::error::{CheckpointError, PartsProblem};
use crate::format::SaveId;
use crate::region::Region;
use crate::storage::memory::MemoryStorage;
use crate::tests::state::{SPOILT, State, options};
use burn_dist_layout::Layout;
use burn_dist_mesh::{DType, MeshShape};
use proptest::prelude::*;
use serde_json::Map;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;

fn plan(mesh: &str, layout: &str, shape: &[usize], writers: &[usize]) -> SavePlan {
    let mesh: MeshShape = mesh.parse().unwrap();
    let layout = Layout::parse(layout, &mesh, Some(shape)).unwrap();
    SavePlan::new(&mesh, vec![Tensor::new("w", DType::F32, layout)], writers).unwrap()
}

fn texts(plan: &SavePlan) -> Vec<Vec<String>> {
    let of = |writer| plan.shares(writer).iter().map(|s| s.region.to_string());
    (0..plan.num_writers())
        .map(|writer| of(writer).collect())
        .collect()
}

#[test]
fn replicas_are_written_once_and_large_ones_are_split() {
    // Small: one writer. Large, 32 MiB: a quarter each.
    let small = plan("dp=4", "[-, -]", &[4, 8], &[0, 1, 2, 3]);
    assert_eq!(texts(&small), [vec!["[0:4,0:8]"], vec![], vec![], vec![]]);
    let large = plan("dp=4", "[-, -]", &[4096, 2048], &[0, 1, 2, 3]);
    let quarters = [
        "[0:1024,0:2048]",
        "[1024:2048,0:2048]",
        "[2048:3072,0:2048]",
        "[3072:4096,0:2048]",
    ];
    assert_eq!(texts(&large), quarters.map(|text| vec![text.to_owned()]));
    assert_eq!(large.shares(1)[0].bytes, 8 << 20..16 << 20);
    // HSDP: each half is on two ranks, of one process each.
    let hsdp = plan("dp=2,fsdp=2", "[{fsdp}, -]", &[4096, 2048], &[0, 0, 1, 1]);
    let bytes: Vec<u64> = (0..2).map(|writer| hsdp.num_bytes(writer)).collect();
    assert_eq!(bytes, [16 << 20, 16 << 20]);
}

#[test]
fn a_tensor_of_a_stage_is_written_there() {
    let mesh: MeshShape = "pp=2,fsdp=2".parse().unwrap();
    let tensors = (0..2).map(|stage| Tensor {
        stage: Some(stage),
        ..Tensor::new(
            format!("layers.{stage}"),
            DType::F32,
            Layout::replicated(&[2]),
        )
    });
    let plan = SavePlan::new(&mesh, tensors.collect(), &[0, 1, 2, 3]).unwrap();
    let keys = |writer| {
        plan.shares(writer)
            .iter()
            .map(|s| s.key.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        [0, 1, 2, 3].map(keys),
        [vec!["layers.0"], vec![], vec!["layers.1"], vec![]]
    );
}

#[test]
fn work_is_spread_evenly() {
    let mesh: MeshShape = "dp=2,fsdp=4".parse().unwrap();
    let fsdp = mesh.axis("fsdp").unwrap();
    let tensors = (0..60).map(|index| {
        let shape = [(index * 37) % 500 + 1, 64 + index];
        let layout = match index % 3 {
            0 => Layout::replicated(&shape),
            _ => Layout::sharded(&shape, index % 2, &[fsdp]),
        };
        Tensor::new(format!("t{index}"), DType::F32, layout)
    });
    let plan = SavePlan::new(&mesh, tensors.collect(), &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    let bytes: Vec<u64> = (0..8).map(|writer| plan.num_bytes(writer)).collect();
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    assert!(most * 100 <= least * 110, "{bytes:?}");
}

proptest! {
    #[test]
    fn every_element_is_written_once(state in State::any(), writers in any::<u64>()) {
        let plan = state.plan_by(writers);
        let manifest = plan.manifest(SaveId::new(1)).unwrap();
        // Boxes that overlap or leave something out are found by the check of manifests, checksums apart.
        for (tensor, saved) in manifest.tensors.iter().zip(plan.tensors()) {
            let mut found: Vec<usize> = Vec::new();
            for piece in &tensor.pieces {
                found.extend(tensor.region(piece).unwrap().ranges().flatten());
            }
            found.sort_unstable();
            prop_assert!(found.into_iter().eq(0..saved.layout.numel()));
        }
        // What a share says of the block of its rank is true.
        for share in (0..plan.num_writers()).flat_map(|writer| plan.shares(writer)) {
            let layout = &plan.tensors()[share.tensor].layout;
            let block = Region::of(layout, &state.mesh, share.rank).unwrap();
            let block: Vec<usize> = block.ranges().flatten().collect();
            let size = share.dtype.size();
            let own = &block[share.bytes.start / size..share.bytes.end / size];
            prop_assert!(share.region.ranges().flatten().eq(own.iter().copied()));
        }
    }
}

#[test]
fn what_cannot_be_saved_is_an_error() {
    let mesh: MeshShape = "dp=2".parse().unwrap();
    let new = |tensors: Vec<Tensor>, writers: &[usize]| SavePlan::new(&mesh, tensors, writers);
    let tensor = |key: &str| Tensor::new(key, DType::F32, Layout::replicated(&[2]));
    let error = new(vec![tensor("a"), tensor("b"), tensor("a")], &[0, 1]);
    assert!(matches!(error, Err(CheckpointError::DuplicateKey { key }) if key == "a"));
    for key in ["", "a[0]", "a\n", "__metadata__"] {
        assert!(matches!(
            new(vec![tensor(key)], &[0, 1]),
            Err(CheckpointError::Key { .. })
        ));
    }
    for writers in [vec![0], vec![0, 2], vec![1, 1], vec![0, 0, 0]] {
        assert!(matches!(
            new(vec![], &writers),
            Err(CheckpointError::Writers { .. })
        ));
    }
    let axis = mesh.axis("dp").unwrap();
    let partial = Layout::replicated(&[2]).with_partial(&[axis], burn_dist_mesh::ReduceOp::Sum);
    let error = new(vec![Tensor::new("g", DType::F32, partial)], &[0, 1]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "g is partial, `[-] + sum{dp}`: reduce it before it is saved"
    );
    let late = Tensor {
        stage: Some(1),
        ..tensor("s")
    };
    assert!(matches!(
        new(vec![late], &[0, 1]),
        Err(CheckpointError::Stage { stages: 1, .. })
    ));
    let quantized = burn_dist_mesh::Quantized {
        size: 1,
        code: [0; 15],
    };
    let quantized = Tensor::new("q", DType::Quantized(quantized), Layout::replicated(&[2]));
    assert!(matches!(
        new(vec![quantized], &[0, 1]),
        Err(CheckpointError::DType { .. })
    ));
}

#[test]
fn parts_of_other_saves_and_plans_are_refused() {
    let state = State::example();
    let checkpoints = Checkpoints::on(Arc::new(MemoryStorage::new()), "run");
    let plan = state.plan();
    let parts_of = |id| {
        let save = checkpoints.save(1, SaveId::new(id)).unwrap();
        let parts = state.write(&save, &plan);
        (save, parts)
    };
    let problem = |parts: Vec<Part>, id: u128| {
        let (save, _) = parts_of(id);
        match save.commit(&plan, parts, Map::new()) {
            Err(CheckpointError::Parts(problem)) => problem,
            other => panic!("{other:?}"),
        }
    };
    let (save, parts) = parts_of(7);
    assert_eq!(
        problem(parts[1..].to_vec(), 8),
        PartsProblem::MixedUp {
            writer: 1,
            expected: SaveId::new(8),
            found: SaveId::new(7)
        }
    );
    save.abandon();
    let missing = PartsProblem::Missing {
        writer: 0,
        writers: plan.num_writers(),
    };
    let (_, own) = parts_of(9);
    checkpoints.save(1, SaveId::new(9)).unwrap().abandon();
    assert_eq!(problem(own[1..].to_vec(), 9), missing);
    let twice = vec![own[0].clone(), own[0].clone()];
    assert_eq!(problem(twice, 9), PartsProblem::Unexpected { writer: 0 });
    let mut other = own.clone();
    other[1].checksums.push(crate::format::Checksum(0));
    assert_eq!(problem(other, 9), PartsProblem::Planned { writer: 1 });
    let mut other = own;
    other[1].header_checksum = crate::format::Checksum(0);
    assert_eq!(problem(other, 9), PartsProblem::Planned { writer: 1 });
    // Nothing of all this is left.
    assert_eq!(checkpoints.steps().unwrap(), [0; 0]);
}

#[test]
fn a_share_that_gets_too_much_or_too_little_is_an_error() {
    let state = State::example();
    for wrong in [-1isize, 1] {
        let checkpoints = Checkpoints::on(Arc::new(MemoryStorage::new()), "run");
        let save = checkpoints.save(1, SaveId::new(1)).unwrap();
        let written = save.write(
            &state.plan(),
            0,
            |share, file| file.write(&vec![0; share.bytes.len().strict_add_signed(wrong)]),
            |_| {},
        );
        assert!(
            matches!(written, Err(CheckpointError::Bytes { .. })),
            "{wrong}"
        );
    }
}

#[test]
fn a_step_is_saved_once() {
    let state = State::example();
    let checkpoints = Checkpoints::on(Arc::new(MemoryStorage::new()), "run");
    state.save(&checkpoints, 5, 1).unwrap();
    let again = checkpoints.save(5, SaveId::new(2)).err();
    assert!(matches!(again, Some(CheckpointError::Exists { .. })));
}

#[test]
fn a_full_disk_is_an_error_that_loses_nothing() {
    let (old, new) = (State::example(), State::seeded(9));
    for room in (0..4000).step_by(37) {
        let storage = MemoryStorage::new();
        let checkpoints = Checkpoints::on(Arc::new(storage.clone()), "run");
        old.save(&checkpoints, 1, 1).unwrap();
        storage.fill_at(Some(storage.num_bytes() + room));
        match new.save(&checkpoints, 2, 2) {
            Ok(_) => new.assert_is(&checkpoints.open(2).unwrap(), options()),
            Err(CheckpointError::Io { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
                assert_eq!(checkpoints.steps().unwrap(), [1]);
            }
            Err(other) => panic!("{other}"),
        }
        old.assert_is(&checkpoints.open(1).unwrap(), options());
    }
}

#[test]
fn progress_reaches_the_end() {
    let state = State::example();
    let checkpoints = Checkpoints::on(Arc::new(MemoryStorage::new()), "run");
    let (plan, mut seen) = (state.plan(), Vec::new());
    let save = checkpoints.save(1, SaveId::new(1)).unwrap();
    let source = |share: &Share, file: &mut FileWriter<'_>| file.write(&vec![0; share.bytes.len()]);
    save.write(&plan, 0, source, |progress| seen.push(progress))
        .unwrap();
    let total = plan.num_bytes(0);
    assert!(
        seen.windows(2)
            .all(|pair| pair[0].bytes_done < pair[1].bytes_done)
    );
    let end = Progress {
        bytes_done: total,
        bytes_total: total,
    };
    assert_eq!(seen.last(), Some(&end));
}

#[test]
fn one_save_at_a_time() {
    let mut saver = Saver::new();
    let (release, wait) = channel::<()>();
    type Outcome = Result<&'static str, CheckpointError>;
    let first = saver.start(Busy::Wait, move |meter| -> Outcome {
        meter.expect(10);
        let mut tell = meter.writer();
        for bytes_done in [4, 10] {
            tell(Progress {
                bytes_done,
                bytes_total: 10,
            });
        }
        wait.recv().map_err(|_| CheckpointError::Panicked)?;
        Ok("first")
    });
    let first = first.unwrap();
    let refused = saver.start(Busy::Refuse, |_| Outcome::Ok(""));
    assert!(matches!(refused, Err(CheckpointError::Busy)));
    assert!(!first.has_ended());
    release.send(()).unwrap();
    let second = saver.start(Busy::Wait, |_| Outcome::Ok("second"));
    let second = second.unwrap();
    assert!(first.has_ended());
    assert_eq!(
        (first.progress().bytes_done, first.progress().bytes_total),
        (10, 10)
    );
    assert_eq!(first.wait().unwrap(), "first");
    assert_eq!(second.wait().unwrap(), "second");
    // Errors and panics come out, and the next save starts.
    let failed = saver
        .start::<(), CheckpointError>(Busy::Wait, |_| Err(CheckpointError::Busy))
        .unwrap();
    assert!(matches!(failed.wait(), Err(CheckpointError::Busy)));
    let panicked = saver
        .start::<(), CheckpointError>(Busy::Wait, |_| panic!("on purpose"))
        .unwrap();
    assert!(matches!(panicked.wait(), Err(CheckpointError::Panicked)));
    assert!(saver.start(Busy::Refuse, |_| Outcome::Ok("")).is_ok());
}

#[test]
fn values_that_are_not_finite_are_known_and_take_no_place() {
    let storage: Arc<dyn crate::storage::Storage> = Arc::new(MemoryStorage::new());
    let checkpoints = Checkpoints::on(storage, "run");
    let keep = Keep {
        last: std::num::NonZeroUsize::MIN,
        every: None,
    };
    let spoilt = State::seeded(SPOILT);
    State::seeded(1).save(&checkpoints, 10, 1).unwrap();
    spoilt.save(&checkpoints, 20, 2).unwrap();
    assert_eq!(checkpoints.prune(keep).unwrap(), [0; 0]);
    spoilt.save(&checkpoints, 30, 3).unwrap();
    assert_eq!(checkpoints.prune(keep).unwrap(), [20]);
    assert_eq!(checkpoints.steps().unwrap(), [10, 30]);
    let of = |step| checkpoints.open(step).unwrap().manifest().non_finite();
    assert_eq!(of(10), None);
    let is_spoilt = |it: &&Tensor| it.dtype.is_float() && it.layout.numel() > 0;
    let floats = spoilt.tensors.iter().filter(is_spoilt);
    let mut floats: Vec<&str> = floats.map(|tensor| tensor.key.as_str()).collect();
    floats.sort_unstable();
    let found = of(30).unwrap();
    assert_eq!(
        (found.key.as_str(), found.elements),
        (floats[0], floats.len() as u64)
    );
    assert_eq!(checkpoints.good_before(30).unwrap(), Some(10));
    // In other pieces, it is known too; and what was said of other values is not.
    let other = Checkpoints::on(Arc::new(MemoryStorage::new()), "other");
    for (step, expected) in [(30, Some(found)), (10, None)] {
        let from = checkpoints.open(step).unwrap();
        let plan = spoilt.plan();
        crate::tools::reshard(&from, &other, step, SaveId::new(9), &plan).unwrap();
        assert_eq!(other.open(step).unwrap().manifest().non_finite(), expected);
    }
    State::seeded(4).save(&checkpoints, 40, 4).unwrap();
    assert_eq!(checkpoints.prune(keep).unwrap(), [10, 30]);
}
