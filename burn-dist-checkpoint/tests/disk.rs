//! Promises on the file system: files that others read, a pinned sample of the format, hostile directories.

use burn_dist_checkpoint::storage::Disk;
use burn_dist_checkpoint::tools::{consolidate, verify};
use burn_dist_checkpoint::{
    Checkpoint, CheckpointError, Checkpoints, MANIFEST, Match, Options, Region, Request, SaveId,
    SavePlan, Tensor,
};
use burn_dist_layout::Layout;
use burn_dist_mesh::{DType, MeshShape};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/samples/v1");

/// Tensors of several types and layouts: name, type, shape, layout.
const TENSORS: [(&str, DType, &[usize], &str); 6] = [
    ("layers.0.weight", DType::F32, &[4, 6], "[{fsdp}, {tp}]"),
    ("layers.0.bias", DType::BF16, &[5], "[-]"),
    ("layers.1.qkv", DType::F16, &[12, 2], "[(3 . 4{tp}), -]"),
    ("optimizer.step", DType::I64, &[], "[]"),
    (
        "mask",
        DType::Bool(burn_dist_mesh::BoolStore::Native),
        &[7],
        "[{fsdp}]",
    ),
    ("empty", DType::F32, &[0, 4], "[-, -]"),
];

fn mesh() -> MeshShape {
    "fsdp=2,tp=2".parse().unwrap()
}

/// Returns the bytes of a whole tensor: element i of F32 is i, bits of others are a count.
fn bytes(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let numel: usize = shape.iter().product();
    let element = |i: usize| match dtype {
        DType::F32 => (i as f32).to_le_bytes().to_vec(),
        DType::I64 => (i as i64 + 42).to_le_bytes().to_vec(),
        DType::Bool(_) => vec![(i % 2) as u8],
        _ => (i as u16 + 0x3c00).to_le_bytes().to_vec(),
    };
    (0..numel).flat_map(element).collect()
}

fn save(root: &Path, step: u64) -> PathBuf {
    save_as(root, step, SaveId::new(0x0123_4567_89ab_cdef))
}

fn save_as(root: &Path, step: u64, save_id: SaveId) -> PathBuf {
    let mesh = mesh();
    let tensors = TENSORS.map(|(key, dtype, shape, layout)| {
        Tensor::new(
            key,
            dtype,
            Layout::parse(layout, &mesh, Some(shape)).unwrap(),
        )
    });
    let plan = SavePlan::new(&mesh, tensors.to_vec(), &[0, 0, 1, 1]).unwrap();
    let checkpoints = Checkpoints::at(root);
    // As in several processes: each begins the save, and sends its part to the one that commits.
    let begin = || checkpoints.save(step, save_id).unwrap();
    let part = |writer| {
        let source = |share: &burn_dist_checkpoint::Share,
                      file: &mut burn_dist_checkpoint::FileWriter<'_>| {
            let tensor = tensors
                .iter()
                .find(|tensor| tensor.key == share.key)
                .unwrap();
            let (all, size) = (
                bytes(share.dtype, &tensor.layout.shape()),
                share.dtype.size(),
            );
            let elements = tensor.layout.elements(&mesh, share.rank);
            let block: Vec<u8> = elements
                .flat_map(|i| all[i * size..][..size].to_vec())
                .collect();
            file.write(&block[share.bytes.clone()])
        };
        let part = begin().write(&plan, writer, source, |_| {}).unwrap();
        serde_json::to_vec(&part).unwrap()
    };
    let parts: Vec<Vec<u8>> = (0..2).map(part).collect();
    let parts = parts
        .iter()
        .map(|part| serde_json::from_slice(part).unwrap());
    let metadata = serde_json::json!({"note": "a sample", "step": step});
    let metadata = metadata.as_object().unwrap().clone();
    begin().commit(&plan, parts.collect(), metadata).unwrap()
}

fn assert_loads(checkpoint: &Checkpoint) {
    let mut buffers = TENSORS.map(|(_, dtype, shape, _)| vec![0; bytes(dtype, shape).len()]);
    let requests = TENSORS
        .iter()
        .zip(&mut buffers)
        .map(|((key, dtype, shape, _), buffer)| {
            Request::new(*key, *dtype, shape, Region::whole(shape).unwrap(), buffer)
        });
    let mut requests: Vec<Request<'_>> = requests.collect();
    checkpoint.load(&mut requests, Options::default()).unwrap();
    drop(requests);
    for ((key, dtype, shape, _), buffer) in TENSORS.iter().zip(buffers) {
        assert_eq!(buffer, bytes(*dtype, shape), "{key}");
    }
}

#[test]
fn the_sample_of_version_1_loads() {
    let checkpoint = Checkpoint::open(SAMPLE).unwrap();
    assert_loads(&checkpoint);
    assert!(verify(&checkpoint).unwrap().problems.is_empty());
    assert_eq!(checkpoint.manifest().metadata["note"], "a sample");
    let tensor = checkpoint.manifest().tensor("layers.0.weight").unwrap();
    let layout = Layout::parse(
        &tensor.layout,
        &checkpoint.manifest().mesh,
        Some(&tensor.shape),
    );
    assert_eq!(
        layout
            .unwrap()
            .local_shape(&mesh(), burn_dist_mesh::Rank(1)),
        [2, 3]
    );
}

#[test]
#[ignore = "makes the sample of a new version, once"]
fn make_the_sample() {
    let directory = tempfile::tempdir().unwrap();
    let saved = save(directory.path(), 7);
    fs::create_dir_all(SAMPLE).unwrap();
    for entry in fs::read_dir(saved).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), Path::new(SAMPLE).join(entry.file_name())).unwrap();
    }
}

#[test]
fn version_1_is_written_as_in_the_sample() {
    // Byte by byte.
    let directory = tempfile::tempdir().unwrap();
    let saved = save(directory.path(), 7);
    let mut names: Vec<_> = fs::read_dir(SAMPLE)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names.len(), 3);
    for name in names {
        let (sample, found) = (
            fs::read(Path::new(SAMPLE).join(&name)),
            fs::read(saved.join(&name)),
        );
        assert!(sample.unwrap() == found.unwrap(), "{}", name.display());
    }
}

#[test]
fn files_are_read_by_the_safetensors_library() {
    let directory = tempfile::tempdir().unwrap();
    let saved = save(directory.path(), 1);
    let mut found: BTreeMap<String, (String, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for file in ["00000-of-00002.safetensors", "00001-of-00002.safetensors"] {
        let bytes = fs::read(saved.join(file)).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = metadata.metadata().clone().unwrap();
        assert_eq!(metadata["save_id"], "00000000000000000123456789abcdef");
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let kind = format!("{:?}", view.dtype());
            // Elements are aligned, for readers that map files.
            let at = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            assert!(
                at.is_multiple_of(view.dtype().bitsize() / 8),
                "{name} at {at}"
            );
            found.insert(name, (kind, view.shape().to_vec(), view.data().to_vec()));
        }
    }
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let expected = [
        "layers.0.bias",
        "layers.0.weight[0:2,0:3]",
        "layers.0.weight[0:2,3:6]",
        "layers.0.weight[2:4,0:3]",
        "layers.0.weight[2:4,3:6]",
        "layers.1.qkv[0:3,0:2,0:2]",
        "layers.1.qkv[0:3,2:4,0:2]",
        "mask[0:4]",
        "mask[4:7]",
        "optimizer.step",
    ];
    assert_eq!(names, expected);
    let (kind, shape, data) = &found["layers.0.weight[2:4,3:6]"];
    assert_eq!(
        (kind.as_str(), shape.as_slice()),
        ("F32", [2, 3].as_slice())
    );
    let floats = [15f32, 16., 17., 21., 22., 23.];
    assert_eq!(
        data,
        &floats
            .iter()
            .flat_map(|f| f.to_le_bytes())
            .collect::<Vec<u8>>()
    );
    assert_eq!(found["layers.1.qkv[0:3,0:2,0:2]"].1, [6, 2]);
    assert_eq!(found["mask[0:4]"].0, "BOOL");
}

#[test]
fn one_plain_file_has_all_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(save(directory.path(), 1)).unwrap();
    let path = directory.path().join("all.safetensors");
    consolidate(&checkpoint, &Disk, &path).unwrap();
    let file = fs::read(&path).unwrap();
    let all = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(all.len(), TENSORS.len());
    for (key, dtype, shape, _) in TENSORS {
        let view = all.tensor(key).unwrap();
        assert_eq!(
            (view.shape(), view.data()),
            (shape, bytes(dtype, shape).as_slice()),
            "{key}"
        );
    }
    assert!(matches!(
        consolidate(&checkpoint, &Disk, &path),
        Err(CheckpointError::Io { .. })
    ));
}

#[test]
fn steps_are_listed_and_pruned() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("deep/down");
    let checkpoints = Checkpoints::at(&root);
    assert!(checkpoints.open_latest().unwrap().is_none());
    for step in [10, 20, 30] {
        save(&root, step);
    }
    // What an interrupted save leaves, and files that are not ours.
    let interrupted = format!(".tmp-step-0000000040-{}", SaveId::new(7));
    fs::create_dir(root.join(interrupted)).unwrap();
    fs::create_dir(root.join(".tmp-step-0000000040-x")).unwrap();
    fs::write(root.join("notes.txt"), "mine").unwrap();
    let keep = burn_dist_checkpoint::Keep {
        last: std::num::NonZeroUsize::MIN,
        every: std::num::NonZeroU64::new(20),
    };
    assert_eq!(checkpoints.prune(keep).unwrap(), [10]);
    let mut names: Vec<_> = fs::read_dir(&root)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    let kept = [
        ".tmp-step-0000000040-x",
        "checkpoints.lock",
        "notes.txt",
        "step-0000000020",
        "step-0000000030",
    ];
    assert_eq!(names, kept);
    let (step, latest) = checkpoints.open_latest().unwrap().unwrap();
    assert_eq!(step, 30);
    assert_loads(&latest);
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let save = Checkpoints::at(file.join("run"))
        .save(1, SaveId::new(1))
        .err();
    let text = save.unwrap().to_string();
    assert!(text.contains("file/run"), "{text}");
}

#[cfg(unix)]
#[test]
fn links_and_pipes_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let saved = save(directory.path(), 1);
    let (file, manifest) = (
        saved.join("00000-of-00002.safetensors"),
        saved.join(MANIFEST),
    );
    let load = || {
        let checkpoint = Checkpoint::open(&saved)?;
        let mut buffer = vec![0; 96];
        let region = Region::whole(&[4, 6]).unwrap();
        let request = Request::new("layers.0.weight", DType::F32, &[4, 6], region, &mut buffer);
        let matching = Match::Subset;
        checkpoint.load(
            &mut [request],
            Options {
                matching,
                ..Options::default()
            },
        )
    };
    load().unwrap();
    for path in [file, manifest] {
        // The same bytes, but elsewhere.
        let outside = directory.path().join("outside");
        fs::rename(&path, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &path).unwrap();
        let text = load().unwrap_err().to_string();
        assert!(text.contains("not an ordinary file"), "{text}");
        fs::remove_file(&path).unwrap();
        // Opening a pipe would wait for whoever writes to it.
        let made = std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap();
        assert!(made.success());
        let text = load().unwrap_err().to_string();
        assert!(text.contains("not an ordinary file"), "{text}");
        fs::remove_file(&path).unwrap();
        fs::rename(&outside, &path).unwrap();
    }
    load().unwrap();
}

/// Saves one step after the other and removes the one before, until it is killed.
#[test]
#[ignore = "run and killed by `a_killed_process_leaves_the_newest_checkpoint_whole`"]
fn save_until_killed() {
    let root = std::env::var("CHECKPOINT_ROOT").unwrap();
    let keep = burn_dist_checkpoint::Keep {
        last: std::num::NonZeroUsize::MIN,
        every: None,
    };
    let checkpoints = Checkpoints::at(&root);
    let first = checkpoints
        .steps()
        .unwrap()
        .last()
        .map_or(0, |step| step + 1);
    for step in first.. {
        save_as(Path::new(&root), step, SaveId::random().unwrap());
        checkpoints.prune(keep).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_killed_process_leaves_the_newest_checkpoint_whole() {
    use std::process::{Command, Stdio};
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("run");
    let checkpoints = Checkpoints::at(&root);
    save(&root, 0);
    let mut newest = 0;
    for kill in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "save_until_killed"])
            .env("CHECKPOINT_ROOT", &root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It has saved something, and is somewhere in the next save.
        while checkpoints.steps().unwrap().last() == Some(&newest) {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(kill * 700));
        child.kill().unwrap();
        child.wait().unwrap();
        let (step, checkpoint) = checkpoints.open_latest().unwrap().unwrap();
        assert!(step > newest);
        assert_loads(&checkpoint);
        assert!(verify(&checkpoint).unwrap().problems.is_empty());
        newest = step;
    }
}

#[cfg(unix)]
#[test]
fn a_manifest_that_is_a_hole_is_not_read() {
    // 8 TiB, larger than memory.
    let directory = tempfile::tempdir().unwrap();
    let file = fs::File::create(directory.path().join(MANIFEST)).unwrap();
    file.set_len(1 << 43).unwrap();
    let error = Checkpoint::open(directory.path()).err().unwrap();
    assert!(matches!(error, CheckpointError::Manifest { .. }), "{error}");
}
