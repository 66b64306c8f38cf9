//! The machine crashes, or the disk fills up, at every call of a save over an earlier model.

use super::{DIR, Parameter, assert_is, bytes_of, model, names_in, open, save};
use crate::error::CheckpointError;
use crate::hf::{FolderProblem, FolderWriter, Tensor};
use crate::storage::memory::{MemoryStorage, Survives};
use crate::storage::{ReadFile, Storage, WriteFile};
use burn_dist_mesh::DType;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

const OTHERS: [&str; 2] = ["config.json", "tokenizer.json"];

/// Saves a model whose files beside the tensors say `text`, but for one that says the same in all.
fn save_as(
    storage: &MemoryStorage,
    parameters: &[Parameter],
    limit: Option<u64>,
    text: &str,
) -> Result<(), CheckpointError> {
    let others = [(OTHERS[0], text), (OTHERS[1], "the same")];
    save(storage, parameters, limit, &others)
}

/// Storage that has a model in it, and a file that is none of it.
fn with_earlier(old: &[Parameter], limit: Option<u64>) -> MemoryStorage {
    let storage = MemoryStorage::new();
    save_as(&storage, old, limit, "old").unwrap();
    let mut file = storage.create(&Path::new(DIR).join("README.md")).unwrap();
    file.append(b"read me").unwrap();
    file.sync().unwrap();
    storage.sync_dir(Path::new(DIR)).unwrap();
    storage.restart(Survives::Nothing)
}

/// The limits of an earlier and of a new model: one file each, several each, and both changes.
const LIMITS: [(Option<u64>, Option<u64>); 5] = [
    (None, None),
    (Some(60), Some(60)),
    (Some(60), Some(100)),
    (None, Some(60)),
    (Some(60), None),
];

#[test]
fn a_crash_at_any_call_leaves_one_model_whole() {
    let (old, new) = (model(1), model(2));
    let all = [Survives::Nothing, Survives::Everything];
    let all: Vec<Survives> = all.into_iter().chain((0..16).map(Survives::Some)).collect();
    for (old_limit, limit) in LIMITS {
        let before = with_earlier(&old, old_limit);
        let (mut calls, mut seen) = (0, BTreeSet::new());
        loop {
            let storage = before.restart(Survives::Everything);
            storage.crash_at(calls);
            let result = save_as(&storage, &new, limit, "new");
            let text = format!("{old_limit:?} to {limit:?}, crash at call {calls}");
            if result.is_ok() {
                assert!(!storage.has_crashed(), "{text}");
                break;
            }
            for &survives in &all {
                let text = format!("{text}, {survives:?}");
                let after = storage.restart(survives);
                let folder = open(&after).unwrap_or_else(|error| panic!("{text}: {error}"));
                let is_new = is_of(&folder, &new);
                assert_is(&folder, if is_new { &new } else { &old }, &text);
                let config = bytes_of(&after, OTHERS[0]);
                assert!(config == b"new" || config == b"old" && !is_new, "{text}");
                assert_eq!(bytes_of(&after, OTHERS[1]), b"the same", "{text}");
                seen.insert(is_new);
                // The next save goes on from there, and nothing is left of the last.
                for limit in [limit, old_limit] {
                    let next = after.restart(Survives::Everything);
                    save_as(&next, &new, limit, "new")
                        .unwrap_or_else(|error| panic!("{text}: {error}"));
                    assert_only(&next, &new, &text);
                }
            }
            calls += 1;
        }
        assert_eq!(seen, [false, true].into(), "{old_limit:?} to {limit:?}");
        assert!(calls > 12, "{calls}");
    }
}

/// Returns whether a folder has the values of a model.
fn is_of(folder: &crate::hf::Folder, model: &[Parameter]) -> bool {
    let parameter = &model[0];
    let mut bytes = vec![0; parameter.bytes.len()];
    let region = crate::Region::whole(&parameter.shape).unwrap();
    let (name, dtype) = (parameter.name.as_str(), parameter.dtype);
    let mut request = crate::Request::new(name, dtype, &parameter.shape, region, &mut bytes);
    folder.read(parameter.form, &mut request).unwrap();
    bytes == parameter.bytes
}

/// Asserts that a folder has this model, what was beside it, and no file besides.
fn assert_only(storage: &MemoryStorage, model: &[Parameter], text: &str) {
    let folder = open(storage).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_is(&folder, model, text);
    let mut expected: BTreeSet<String> = OTHERS.map(str::to_owned).into();
    expected.insert("README.md".into());
    let names = names_in(storage);
    if names.contains(&"model.safetensors".to_owned()) {
        expected.insert("model.safetensors".into());
    } else {
        let index: serde_json::Value =
            serde_json::from_slice(&bytes_of(storage, crate::hf::INDEX)).unwrap();
        let files = index["weight_map"].as_object().unwrap().values();
        expected.extend(files.map(|name| name.as_str().unwrap().to_owned()));
        expected.insert(crate::hf::INDEX.into());
    }
    assert_eq!(BTreeSet::from_iter(names), expected, "{text}");
}

#[test]
fn a_full_disk_leaves_the_earlier_model_and_nothing_else() {
    let (old, new) = (model(1), model(2));
    for (old_limit, limit) in LIMITS {
        let before = with_earlier(&old, old_limit);
        let names = names_in(&before);
        let mut room = 0;
        loop {
            let storage = before.restart(Survives::Everything);
            storage.fill_at(Some(storage.num_bytes() + room));
            match save_as(&storage, &new, limit, "new") {
                Ok(()) => break,
                Err(error) => assert!(matches!(error, CheckpointError::Io { .. }), "{error}"),
            }
            assert_eq!(names_in(&storage), names);
            assert_is(&open(&storage).unwrap(), &old, "full disk");
            assert_eq!(bytes_of(&storage, OTHERS[0]), b"old");
            room += 50;
        }
        assert!(room > 500, "{room}");
    }
}

/// Storage that renames the last file and says that it has not.
struct Unsure(MemoryStorage);

impl Storage for Unsure {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        self.0.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.0.open(path)
    }

    fn open_linked(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.0.open_linked(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.0.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.replace(from, to)?;
        match to.ends_with(crate::hf::INDEX) {
            true => Err(io::Error::other("the server does not answer")),
            false => Ok(()),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sync_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.0.remove_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.0.lock(path)
    }
}

#[test]
fn a_rename_that_is_done_and_reported_as_failed_loses_nothing() {
    let storage = with_earlier(&model(1), Some(60));
    let tensors = vec![
        Tensor::new("a", DType::F32, vec![2]),
        Tensor::new("b", DType::F32, vec![2]),
    ];
    let unsure = Arc::new(Unsure(storage.clone()));
    let mut writer = FolderWriter::create_on(unsure, DIR, tensors, Some(8)).unwrap();
    writer.write("a", &[1; 8]).unwrap();
    writer.write("b", &[2; 8]).unwrap();
    let error = writer.commit().unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
    assert_eq!(open(&storage).unwrap().tensors().count(), 2);
}

#[test]
fn what_is_incomplete_or_out_of_order_is_not_committed() {
    let storage = MemoryStorage::new();
    let tensor = |name: &str, dtype| Tensor::new(name, dtype, vec![2]);
    let create = |tensors: Vec<Tensor>| {
        FolderWriter::create_on(Arc::new(storage.clone()), DIR, tensors, None)
    };
    let two = || vec![tensor("small", DType::U8), tensor("large", DType::F32)];
    let problem = |error: CheckpointError| match error {
        CheckpointError::Folder { problem, .. } => problem,
        error => panic!("{error}"),
    };
    let mut writer = create(two()).unwrap();
    let order: Vec<&str> = writer
        .tensors()
        .iter()
        .map(|tensor| &*tensor.name)
        .collect();
    assert_eq!(order, ["large", "small"], "aligned");
    let error = problem(writer.write("small", &[1]).unwrap_err());
    assert!(matches!(error, FolderProblem::Order { .. }), "{error}");
    writer.write("large", &[1; 5]).unwrap();
    let error = writer.write("large", &[1; 4]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("8 bytes are needed, and there are 9"),
        "{error}"
    );
    writer.write("large", &[1; 3]).unwrap();
    writer.write("small", &[1]).unwrap();
    let error = problem(writer.commit().unwrap_err());
    assert!(
        matches!(error, FolderProblem::Incomplete { missing: 1, .. }),
        "{error}"
    );
    assert_eq!(names_in(&storage), [""; 0]);

    let twice = vec![tensor("a", DType::U8), tensor("a", DType::F32)];
    let error = create(twice).err().unwrap();
    assert!(
        matches!(error, CheckpointError::DuplicateKey { .. }),
        "{error}"
    );
    let error = create(vec![tensor("__metadata__", DType::U8)])
        .err()
        .unwrap();
    assert!(matches!(error, CheckpointError::Key { .. }), "{error}");
    let mut writer = create(two()).unwrap();
    for name in [
        "model.safetensors",
        "../x",
        "a/b",
        ".x",
        "",
        "x.partial",
        "model-00001-of-00002.safetensors",
    ] {
        let error = problem(writer.write_other(name, b"").unwrap_err());
        assert!(
            matches!(error, FolderProblem::OtherName { .. }),
            "{name}: {error}"
        );
    }
}
