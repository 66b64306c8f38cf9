//! Speed of saving and loading 1 GiB, against one plain file on the same disk.
//!
//! The state: 32 tensors of f32, 4096 x 2048, split by rows, as PyTorch's distributed checkpoint is measured with. Each
//! repetition does every measurement once, so that ratios compare what the disk did at about the same time.
//!
//! - `plain write`: one thread writes the bytes to one file, 16 MiB at a time, and syncs it.
//! - `save`: 4 writers, each a thread, and the commit; checksums on.
//! - `plain read`: one thread reads the bytes of one file into memory, 16 MiB at a time.
//! - `load`: 2 ranks, each a thread, load their half of what 4 saved; checksums on. `columns`: half of the columns.
//! - cold: the pages of the files are dropped before; warm: they are not.
//! - `inspect`: opens the manifest of 1 TB, 1024 tensors in 256 pieces each, and writes what it holds as text.
//! - `stall`: how long the call takes that starts a save on a thread of its own.
//!
//! Run: `cargo bench -p burn-dist-checkpoint --bench files -- [--dir DIR] [--tensors 32] [--reps 5]`. Prints one
//! line of JSON at the end; ratios are medians over the repetitions, at least 1 is as fast as the plain file.

use burn_dist_checkpoint::{
    Busy, Checkpoint, Checkpoints, Checksum, FileEntry, Keep, MANIFEST, Manifest, Options,
    PieceEntry, Region, Request, SaveId, SavePlan, Saver, Tensor, TensorEntry,
};
use burn_dist_layout::Layout;
use burn_dist_mesh::{DType, MeshShape, Rank};
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod disk;
use disk::{Times, drop_pages, median, peak_of, plain_read, plain_write};

const SHAPE: [usize; 2] = [4096, 2048];
const TENSOR_BYTES: usize = SHAPE[0] * SHAPE[1] * 4;
const WRITERS: usize = 4;
const READERS: usize = 2;

struct Arguments {
    dir: PathBuf,
    tensors: usize,
    reps: usize,
}

fn arguments() -> Arguments {
    let mut found = Arguments {
        dir: Path::new(env!("CARGO_TARGET_TMPDIR")).join("files"),
        tensors: 32,
        reps: 5,
    };
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    for pair in given.chunks(2) {
        let [name, value] = pair else {
            panic!("{pair:?} has no value")
        };
        match name.as_str() {
            "--dir" => found.dir = value.into(),
            "--tensors" => found.tensors = value.parse().expect("a number of tensors"),
            "--reps" => found.reps = value.parse().expect("a number of repetitions"),
            other => panic!("unknown argument {other}"),
        }
    }
    found
}

/// The parts of the state that ranks hold: the whole of tensor i is block r after block r.
struct State {
    mesh: MeshShape,
    keys: Vec<String>,
    plan: SavePlan,
    /// By rank and tensor.
    blocks: Vec<Vec<Vec<u8>>>,
}

impl State {
    fn new(tensors: usize) -> Self {
        let mesh: MeshShape = format!("fsdp={WRITERS}").parse().expect("a mesh");
        let keys: Vec<String> = (0..tensors)
            .map(|index| format!("layers.{index:03}.weight"))
            .collect();
        let fsdp = mesh.axis("fsdp").expect("an axis");
        let layout = Layout::sharded(&SHAPE, 0, &[fsdp]);
        let all = keys
            .iter()
            .map(|key| Tensor::new(key, DType::F32, layout.clone()));
        let writers: Vec<usize> = (0..WRITERS).collect();
        let plan = SavePlan::new(&mesh, all.collect(), &writers).expect("a plan");
        let mut random = 1u64;
        let mut block = || {
            let words = (0..TENSOR_BYTES / WRITERS / 8).flat_map(|_| {
                random = random
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                random.to_le_bytes()
            });
            words.collect()
        };
        let blocks = (0..WRITERS)
            .map(|_| (0..tensors).map(|_| block()).collect())
            .collect();
        Self {
            mesh,
            keys,
            plan,
            blocks,
        }
    }

    fn save(&self, to: &Checkpoints, step: u64) -> PathBuf {
        let save = to
            .save(step, SaveId::random().expect("random bytes"))
            .expect("a directory");
        let write = |writer: usize| {
            let (save, keys) = (&save, &self.keys);
            move || {
                let source =
                    |share: &burn_dist_checkpoint::Share,
                     file: &mut burn_dist_checkpoint::FileWriter<'_>| {
                        let tensor = keys.binary_search(&share.key).expect("a tensor");
                        let block = &self.blocks[share.rank.0 as usize][tensor];
                        file.write(&block[share.bytes.clone()])
                    };
                save.write(&self.plan, writer, source, |_| {})
            }
        };
        let parts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..WRITERS)
                .map(|writer| scope.spawn(write(writer)))
                .collect();
            let parts = threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"));
            parts.collect::<Result<Vec<_>, _>>().expect("the parts")
        });
        save.commit(&self.plan, parts, Default::default())
            .expect("a commit")
    }

    /// Loads the halves of all tensors along a dim, each by a thread. Returns bytes needed and read.
    fn load(
        &self,
        checkpoint: &Checkpoint,
        dim: usize,
        buffers: &mut [Vec<Vec<u8>>],
    ) -> (u64, u64) {
        let mesh: MeshShape = format!("fsdp={READERS}").parse().expect("a mesh");
        let layout = Layout::sharded(&SHAPE, dim, &[mesh.axis("fsdp").expect("an axis")]);
        let load = |rank: usize, buffers: &mut Vec<Vec<u8>>| {
            let region = Region::of(&layout, &mesh, Rank(rank as u32)).expect("a region");
            let requests =
                self.keys.iter().zip(buffers).map(|(key, buffer)| {
                    Request::new(key, DType::F32, &SHAPE, region.clone(), buffer)
                });
            let mut requests: Vec<Request<'_>> = requests.collect();
            let options = Options {
                threads: 1,
                ..Options::default()
            };
            let loaded = checkpoint.load(&mut requests, options).expect("loaded");
            (loaded.bytes_needed, loaded.bytes_read)
        };
        let both = std::thread::scope(|scope| {
            let each = buffers.iter_mut().enumerate();
            let threads: Vec<_> = each
                .map(|(rank, own)| scope.spawn(move || load(rank, own)))
                .collect();
            let bytes = threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"));
            bytes.collect::<Vec<_>>()
        });
        both.iter()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

fn main() {
    let Arguments { dir, tensors, reps } = arguments();
    fs::create_dir_all(&dir).expect("a directory");
    let total = tensors * TENSOR_BYTES;
    let state = Arc::new(State::new(tensors));
    assert_eq!(state.mesh.num_ranks(), WRITERS);
    let (plain, root) = (dir.join("plain.bin"), dir.join("checkpoints"));
    let checkpoints = Checkpoints::at(&root);
    let mut times = Times::default();
    let mut buffer = vec![1; total];
    let mut halves = vec![vec![vec![1u8; TENSOR_BYTES / READERS]; tensors]; READERS];
    let (mut rows, mut columns, mut peaks) = ((0, 0), (0, 0), [0; 2]);
    let keep = Keep {
        last: NonZeroUsize::MIN,
        every: None,
    };
    for step in 0..reps as u64 {
        let _ = fs::remove_file(&plain);
        times.time("plain write", || {
            plain_write(&plain, state.blocks.iter().flatten().map(Vec::as_slice))
        });
        let (path, peak) = peak_of(|| times.time("save", || state.save(&checkpoints, 2 * step)));
        peaks[0] = peaks[0].max(peak);
        let checkpoint = Checkpoint::open(&path).expect("the checkpoint");
        for (is_cold, read, load, strided) in [
            (true, "plain read, cold", "load, cold", "load columns, cold"),
            (
                false,
                "plain read, warm",
                "load, warm",
                "load columns, warm",
            ),
        ] {
            let prepare = |path| {
                if is_cold {
                    drop_pages(path);
                }
            };
            prepare(&plain);
            times.time(read, || plain_read(&plain, &mut buffer));
            prepare(&path);
            let (bytes, peak) =
                peak_of(|| times.time(load, || state.load(&checkpoint, 0, &mut halves)));
            (rows, peaks[1]) = (bytes, peaks[1].max(peak));
            assert_rows(&state, &halves);
            prepare(&path);
            columns = times.time(strided, || state.load(&checkpoint, 1, &mut halves));
        }
        let mut saver = Saver::new();
        let (to, own) = (checkpoints.clone(), state.clone());
        let saving = times.time("stall", || {
            saver.start(Busy::Wait, move |_| Ok(own.save(&to, 2 * step + 1)))
        });
        saving.and_then(|it| it.wait()).expect("saved");
        checkpoints.prune(keep).expect("pruned");
    }
    // Last, for what it frees would hide how much memory the others take.
    let large = dir.join("large");
    write_large_manifest(&large);
    for _ in 0..reps {
        times.time("inspect 1 TB", || inspect_large(&large));
    }
    for (name, all) in &times.0 {
        let time = median(all.clone());
        println!(
            "{name:24} {:9.4} s  {:8.0} MB/s",
            time,
            total as f64 / time / 1e6
        );
    }
    let amplification = |(needed, read): (u64, u64)| read as f64 / needed as f64;
    let seconds: BTreeMap<_, f64> = times
        .0
        .iter()
        .map(|(name, all)| (*name, median(all.clone())))
        .collect();
    let line = serde_json::json!({
        "bench": "checkpoint", "bytes": total, "reps": reps, "writers": WRITERS, "readers": READERS,
        "save": times.ratio("plain write", "save"),
        "load_cold": times.ratio("plain read, cold", "load, cold"),
        "load_warm": times.ratio("plain read, warm", "load, warm"),
        "load_columns_cold": times.ratio("plain read, cold", "load columns, cold"),
        "bytes_read_of_needed": amplification(rows),
        "bytes_read_of_needed_columns": amplification(columns),
        "stall_of_save": times.ratio("stall", "save"),
        "inspect_1_tb_seconds": median(times.0["inspect 1 TB"].clone()),
        "extra_peak_mib": {"save": peaks[0] >> 10, "load": peaks[1] >> 10},
        "seconds": seconds,
    });
    fs::remove_dir_all(&dir).expect("removed");
    println!("{line}");
}

/// Writes the manifest of a checkpoint of 1 TB; of its files there is none, for nobody reads them.
fn write_large_manifest(directory: &Path) {
    let (tensors, writers, rows, columns) = (1024, 256, 1 << 14, 1 << 15);
    let (share, header_bytes) = (rows / writers, 1 << 20);
    let piece_bytes = share * columns * 2;
    let block_bytes = burn_dist_checkpoint::BLOCK_BYTES_MAX;
    let file = |writer| FileEntry {
        name: format!("{writer:05}-of-{writers:05}.safetensors"),
        bytes: (header_bytes + tensors * piece_bytes) as u64,
        header_bytes: header_bytes as u64,
        header_checksum: Checksum(writer as u64),
    };
    let piece = |tensor: usize, writer: usize| PieceEntry {
        file: writer,
        offset: (header_bytes + tensor * piece_bytes) as u64,
        start: vec![writer * share, 0],
        extent: vec![share, columns],
        checksums: vec![Checksum(u64::MAX / 3); piece_bytes / block_bytes],
    };
    let tensor = |index: usize| TensorEntry {
        key: format!("layers.{index:04}.weight"),
        dtype: "bf16".into(),
        shape: vec![rows, columns],
        factors: None,
        layout: "[{fsdp}, -]".into(),
        stage: None,
        pieces: (0..writers).map(|writer| piece(index, writer)).collect(),
    };
    let manifest = Manifest {
        save_id: SaveId::new(1),
        block_bytes,
        mesh: format!("fsdp={writers}").parse().expect("a mesh"),
        metadata: Default::default(),
        files: (0..writers).map(file).collect(),
        tensors: (0..tensors).map(tensor).collect(),
    };
    assert_eq!(manifest.num_bytes(), 1 << 40);
    fs::create_dir_all(directory).expect("a directory");
    fs::write(
        directory.join(MANIFEST),
        manifest.to_bytes().expect("a manifest"),
    )
    .expect("written");
}

fn inspect_large(directory: &Path) {
    let checkpoint = Checkpoint::open(directory).expect("the manifest");
    assert!(
        burn_dist_checkpoint::tools::inspect(&checkpoint)
            .lines()
            .count()
            > 1024
    );
}

/// Row halves: of two blocks each.
fn assert_rows(state: &State, halves: &[Vec<Vec<u8>>]) {
    let each = WRITERS / READERS;
    for (rank, half) in halves.iter().enumerate() {
        for (tensor, bytes) in half.iter().enumerate() {
            let parts = bytes.chunks(TENSOR_BYTES / WRITERS).enumerate();
            assert!(
                parts
                    .into_iter()
                    .all(|(i, part)| part == state.blocks[rank * each + i][tensor])
            );
        }
    }
}
