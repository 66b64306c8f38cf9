//! Saving and loading the parameters of a model on a mesh, against one plain file on the same disk.
//!
//! The state: 32 matrices of f32, 4096 x 2048 (1 GiB), which rest in pieces along fsdp, as PyTorch's distributed
//! checkpoint is measured with. Each repetition does every measurement once, so that ratios compare what the disk did
//! at about the same time.
//!
//! - `plain write`, `plain read`: one thread writes the bytes to one file, 16 MiB at a time, and syncs it, or reads
//!   them into memory.
//! - `save`: `Checkpointer::save`, checksums on. `load`: `Saved::module` on a mesh with other ranks, into a model
//!   without values. Cold: the pages of the files are dropped before; warm: they are not.
//! - `stall`: how long `Checkpointer::save_in_background` holds up the program; `in background`: until it has ended.
//! - `step`: every matrix times a number, alone and beside a save in the background.
//! - memory: how far the process grows beyond what it held before, at most.
//!
//! Run: `cargo bench -p burn-dist-021 --bench checkpoint -- [--dir DIR] [--tensors 32] [--reps 5] [--ranks 4] [--loaders 2]`.
//! Prints one line of JSON at the end; ratios are medians over the repetitions. That of a save or a load is the time of
//! the plain file over its own: at least 1 is as fast as the disk.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::backend::Flex;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};
use burn_dist::checkpoint::{Checkpointer, Keep, State};
use burn_dist::{DeviceMesh, Dist, MeshDevice, ParallelizeWith, Plan};
use serde_json::json;

#[path = "../../burn-dist-checkpoint/benches/disk/mod.rs"]
mod disk;
use disk::{Times, drop_pages, median, peak_of, plain_read, plain_write};

type B = Dist<Flex>;

const SHAPE: [usize; 2] = [4096, 2048];
const TENSOR_BYTES: usize = SHAPE[0] * SHAPE[1] * 4;

struct Arguments {
    dir: PathBuf,
    tensors: usize,
    reps: usize,
    ranks: usize,
    loaders: usize,
}

fn arguments() -> Arguments {
    let mut found = Arguments {
        dir: Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoint"),
        tensors: 32,
        reps: 5,
        ranks: 4,
        loaders: 2,
    };
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    for pair in given.chunks(2) {
        let [name, value] = pair else {
            panic!("{pair:?} has no value")
        };
        let number = || value.parse().expect("a number");
        match name.as_str() {
            "--dir" => found.dir = value.into(),
            "--tensors" => found.tensors = number(),
            "--reps" => found.reps = number(),
            "--ranks" => found.ranks = number(),
            "--loaders" => found.loaders = number(),
            other => panic!("unknown argument {other}"),
        }
    }
    found
}

#[derive(Module, Debug)]
struct Layer<B: Backend> {
    weight: Param<Tensor<B, 2>>,
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    layers: Vec<Layer<B>>,
}

/// A model on so many ranks, without values.
fn model(tensors: usize, ranks: usize) -> (DeviceMesh, Model<B>) {
    let mesh = DeviceMesh::builder()
        .axis("fsdp", ranks)
        .build()
        .expect("a mesh");
    let device = mesh.device();
    let layer = || {
        let init = |device: &_, _| Tensor::random(SHAPE, Distribution::Default, device);
        let weight = Param::uninitialized(ParamId::new(), init, device.clone(), true, SHAPE.into());
        Layer { weight }
    };
    let layers = (0..tensors).map(|_| layer()).collect();
    let model = Model { layers }.parallelize_with(&mesh, &Plan::new().unit("layers"));
    (mesh, model.expect("a plan"))
}

/// A step of training, as far as a save is concerned: every value is another one after it.
fn step(model: Model<B>, device: &MeshDevice) -> Model<B> {
    struct Scale;
    impl<B: Backend> ModuleMapper<B> for Scale {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            param.map(|tensor| tensor * 0.9999)
        }
    }
    let model = model.map(&mut Scale);
    B::sync(device).expect("the mesh works");
    model
}

fn main() {
    let Arguments {
        dir,
        tensors,
        reps,
        ranks,
        loaders,
    } = arguments();
    fs::create_dir_all(&dir).expect("a directory");
    let total = tensors * TENSOR_BYTES;
    let (plain, root) = (dir.join("plain.bin"), dir.join("run"));
    let _ = fs::remove_dir_all(&root);
    let mut buffer: Vec<u8> = (0..total).map(|at| (at * 7 % 251) as u8).collect();
    let mut times = Times::default();
    let mut memory: BTreeMap<&str, u64> = BTreeMap::new();
    let mut keep_peak = |name, peak: u64| {
        let most: &mut u64 = memory.entry(name).or_default();
        *most = (*most).max(peak / 1024);
    };
    let (mesh, mut trained) = model(tensors, ranks);
    let device = mesh.device();
    trained = step(trained, &device);
    let keep = Keep {
        last: NonZeroUsize::MIN,
        every: None,
    };
    let mut checkpoints = Checkpointer::<B>::at(&root, &device).expect("a mesh that works");
    for rep in 0..reps as u64 {
        let _ = fs::remove_file(&plain);
        // Removing is no part of writing, of either.
        checkpoints.checkpoints().prune(keep).expect("room");
        times.time("plain write", || plain_write(&plain, [&buffer[..]]));
        let state = State::new().module("model", &trained);
        let save = || checkpoints.save(2 * rep, state).expect("saved");
        let ((), peak) = peak_of(|| times.time("save", save));
        keep_peak("save", peak);

        for (is_cold, read, load) in [
            (true, "plain read, cold", "load, cold"),
            (false, "plain read, warm", "load, warm"),
        ] {
            let path = checkpoints
                .checkpoints()
                .open(2 * rep)
                .expect("it was saved");
            if is_cold {
                drop_pages(&plain);
            }
            times.time(read, || plain_read(&plain, &mut buffer));
            if is_cold {
                drop_pages(path.path());
            }
            let (mesh, fresh) = model(tensors, loaders);
            let there = mesh.device();
            let checkpoints = Checkpointer::<B>::at(&root, &there).expect("a mesh that works");
            let load_all = || {
                let saved = checkpoints
                    .latest()
                    .expect("readable")
                    .expect("it was saved");
                let loaded = saved.module("model", fresh).expect("the same model");
                B::sync(&there).expect("the mesh works");
                loaded
            };
            let (loaded, peak) = peak_of(|| times.time(load, load_all));
            keep_peak(
                "load beyond the model",
                peak.saturating_sub((total >> 10) as u64),
            );
            if rep == 0 {
                let sum = |model: &Model<B>| -> Vec<f32> {
                    let layers = model.layers.iter();
                    layers
                        .map(|layer| layer.weight.val().max().into_scalar())
                        .collect()
                };
                assert_eq!(sum(&loaded), sum(&trained), "loaded is saved");
            }
        }

        for _ in 0..3 {
            trained = times.time("step", || step(trained, &device));
        }
        let alone = median(times.0["step"].iter().rev().take(3).copied().collect());
        let (mut steps, mut beside) = (0, 0.0);
        let (next, peak) = peak_of(|| {
            let start = Instant::now();
            let state = State::new().module("model", &trained);
            let saving = checkpoints
                .save_in_background(2 * rep + 1, state)
                .expect("started");
            times.push("stall", start.elapsed().as_secs_f64());
            let mut model = trained;
            while !saving.has_ended() {
                let start = Instant::now();
                model = step(model, &device);
                beside += start.elapsed().as_secs_f64();
                steps += 1;
            }
            saving.wait().expect("saved");
            times.push("in background", start.elapsed().as_secs_f64());
            model
        });
        trained = next;
        checkpoints.checkpoints().prune(keep).expect("room");
        times.push("step alone", alone);
        times.push("step beside", beside / f64::from(steps.max(1)));
        keep_peak("save in background", peak);
    }
    for (name, seconds) in &times.0 {
        let median = median(seconds.clone());
        println!(
            "{name:18} {median:8.4} s {:9.0} MB/s",
            total as f64 / median / 1e6
        );
    }
    for (name, most) in &memory {
        println!("memory: {name:22} {most:6} MiB");
    }
    let result = json!({
        "bench": "checkpoint",
        "bytes": total,
        "reps": reps,
        "ranks": ranks,
        "loaders": loaders,
        "save": times.ratio("plain write", "save"),
        "load_cold": times.ratio("plain read, cold", "load, cold"),
        "load_warm": times.ratio("plain read, warm", "load, warm"),
        "stall_of_save": times.ratio("stall", "save"),
        "background_of_save": times.ratio("in background", "save"),
        "step_beside": times.ratio("step beside", "step alone"),
        "memory_mib": memory,
        "seconds": times.0,
    });
    println!("{result}");
    let _ = fs::remove_dir_all(&dir);
}
