//! Folders that lie: typed errors, and never a panic.

use super::{DIR, Parameter, assert_is, model, names_in, open, save};
use crate::error::CheckpointError;
use crate::hf::{Folder, FolderProblem, Form, INDEX, SINGLE};
use crate::storage::Storage;
use crate::storage::memory::MemoryStorage;
use burn_dist_mesh::DType;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

fn write(storage: &MemoryStorage, name: &str, bytes: &[u8]) {
    let path = Path::new(DIR).join(name);
    storage.create_dir(Path::new(DIR)).unwrap();
    storage.remove_file(&path).ok();
    storage.create(&path).unwrap().append(bytes).unwrap();
}

/// A safetensors file with this header, and so many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn problem(folder: Result<Folder, CheckpointError>) -> FolderProblem {
    match folder.err().expect("it lies") {
        CheckpointError::Folder { problem, .. } => problem,
        error => panic!("{error}"),
    }
}

fn with_header(header: &Value, data: usize) -> Result<Folder, CheckpointError> {
    let storage = MemoryStorage::new();
    write(&storage, SINGLE, &file(&header.to_string(), data));
    open(&storage)
}

#[test]
fn headers_that_lie_are_refused() {
    let tensor = |shape: Value, offsets: Value| json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
    let fine = tensor(json!([2]), json!([0, 8]));
    assert!(with_header(&json!({"a": fine}), 8).is_ok());
    // A type that is not known is a tensor, too, as long as nobody reads it.
    let foreign = json!({"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}});
    assert_eq!(
        with_header(&foreign, 8).unwrap().tensors().next(),
        Some(("a", None, &[8usize][..]))
    );

    let folder = with_header(&foreign, 8).unwrap();
    assert_eq!(folder.tensor("a"), Some((None, &[8usize][..])));
    assert_eq!(folder.tensor("b"), None);
    let (region, mut bytes) = (crate::Region::whole(&[8]).unwrap(), [0; 8]);
    let mut request = crate::Request::new("a", DType::U8, &[8], region, &mut bytes);
    let error = folder.read(Form::Same, &mut request).unwrap_err();
    assert!(
        error.to_string().contains("the checkpoint has F8_E4M3"),
        "{error}"
    );
    let (region, mut bits) = (crate::Region::range(8, 2..5).unwrap(), [0; 3]);
    let mut of_bits = crate::Request::new("a", DType::U8, &[8], region, &mut bits);
    folder.read_float8(Form::Same, &mut of_bits).unwrap();
    assert_eq!(bits, [7; 3]);
    let copy = |from: &[u8], to: &mut [u8]| to.copy_from_slice(from);
    let error = folder
        .read(Form::Same, &mut request.converted(&copy))
        .unwrap_err();
    assert!(
        matches!(error, CheckpointError::UnknownDType { .. }),
        "{error}"
    );

    let short = json!({"a": {"dtype": "F8_E4M3", "shape": [9], "data_offsets": [0, 8]}});
    let found = problem(with_header(&short, 8));
    assert!(
        matches!(found, FolderProblem::TensorBytes { .. }),
        "{found}"
    );
    let bytes = json!({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}});
    let (region, mut bits) = (crate::Region::whole(&[8]).unwrap(), [0; 8]);
    let mut request = crate::Request::new("a", DType::U8, &[8], region, &mut bits);
    let folder = with_header(&bytes, 8).unwrap();
    assert!(!folder.is_float8("a") && !folder.is_float8("b"));
    let error = folder.read_float8(Form::Same, &mut request).unwrap_err();
    assert!(matches!(error, CheckpointError::Keys(_)), "{error}");

    let offsets = [
        json!({"a": tensor(json!([2]), json!([4, 12]))}),
        json!({"a": tensor(json!([2]), json!([0, 8])), "b": tensor(json!([2]), json!([4, 12]))}),
        json!({"a": tensor(json!([2]), json!([0, 8])), "b": tensor(json!([1]), json!([0, 4]))}),
        json!({"a": tensor(json!([2]), json!([0, 8])), "b": tensor(json!([1]), json!([8, 4]))}),
    ];
    for header in offsets {
        let found = problem(with_header(&header, 12));
        assert!(
            matches!(found, FolderProblem::Offsets { .. }),
            "{header}: {found}"
        );
    }
    let sizes = [
        json!([3]),
        json!([1, 1]),
        json!([u64::MAX, 2]),
        json!([1u64 << 62, 4]),
        json!([0, u64::MAX]),
        json!([]),
    ];
    for shape in sizes {
        let header = json!({"a": tensor(shape.clone(), json!([0, 8]))});
        let found = problem(with_header(&header, 8));
        assert!(
            matches!(found, FolderProblem::TensorBytes { .. }),
            "{shape}: {found}"
        );
    }
    for data in [0, 7, 9] {
        let found = problem(with_header(&json!({"a": fine}), data));
        assert!(
            matches!(found, FolderProblem::Size { .. }),
            "{data}: {found}"
        );
    }
    let enormous = json!({"a": tensor(json!([1u64 << 61]), json!([0, 1u64 << 63]))});
    let found = problem(with_header(&enormous, 8));
    assert!(matches!(found, FolderProblem::Size { .. }), "{found}");
    let storage = MemoryStorage::new();
    let twice = r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
        "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    write(&storage, SINGLE, &file(twice, 1));
    let found = problem(open(&storage)).to_string();
    assert!(found.contains("a is there twice"), "{found}");
    for header in [
        json!([]),
        json!({"a": 3}),
        json!({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
    ] {
        let found = problem(with_header(&header, 4));
        assert!(matches!(found, FolderProblem::Header(_)), "{found}");
    }
    // A header that ends beyond the file, or that no reader would accept.
    for length in [1u64 << 20, u64::MAX, u64::MAX - 7] {
        write(
            &storage,
            SINGLE,
            &[&length.to_le_bytes()[..], b"{}"].concat(),
        );
        let found = problem(open(&storage));
        assert!(matches!(found, FolderProblem::Header(_)), "{found}");
    }
}

#[test]
fn indices_that_lie_are_refused() {
    let storage = MemoryStorage::new();
    assert!(matches!(
        open(&storage).err().unwrap(),
        CheckpointError::NoModel { .. }
    ));
    let one = |name: &str| {
        let header = json!({name: {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}});
        file(&header.to_string(), 2)
    };
    write(&storage, "one.safetensors", &one("a"));
    write(&storage, "two.safetensors", &one("b"));
    write(&storage, "three.safetensors", &one("a"));
    let with = |map: Value| {
        write(
            &storage,
            INDEX,
            json!({"metadata": {}, "weight_map": map})
                .to_string()
                .as_bytes(),
        );
        open(&storage)
    };
    let map = json!({"a": "one.safetensors", "b": "two.safetensors"});
    assert_eq!(with(map).unwrap().tensors().count(), 2);
    for name in [
        "../x.safetensors",
        "/x.safetensors",
        "a/x.safetensors",
        "x.bin",
        "",
        ".safetensors",
        "..",
        "c:x.safetensors",
        "a\\x.safetensors",
    ] {
        let found = problem(with(json!({"a": name})));
        assert!(
            matches!(found, FolderProblem::FileName { .. }),
            "{name}: {found}"
        );
    }
    let missing = with(json!({"a": "missing.safetensors"})).err().unwrap();
    assert!(matches!(missing, CheckpointError::Io { .. }), "{missing}");
    assert!(
        missing.to_string().contains("missing.safetensors"),
        "{missing}"
    );
    for map in [
        json!({"c": "one.safetensors"}),
        json!({"a": "one.safetensors", "b": "one.safetensors"}),
        json!({"a": "two.safetensors", "b": "one.safetensors"}),
    ] {
        let found = problem(with(map));
        assert!(matches!(found, FolderProblem::Absent { .. }), "{found}");
    }
    let found = problem(with(
        json!({"a": "one.safetensors", "b": "three.safetensors"}),
    ));
    assert!(matches!(found, FolderProblem::Duplicate { .. }), "{found}");
    for text in ["", "{}", "[]", r#"{"weight_map": {"a": 3}}"#] {
        write(&storage, INDEX, text.as_bytes());
        let found = problem(open(&storage));
        assert!(matches!(found, FolderProblem::Index(_)), "{found}");
    }
}

#[test]
fn a_file_that_is_cut_later_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let parameter = Parameter::new("a", Form::Same, DType::F32, &[64], 1);
    let mut writer =
        crate::hf::FolderWriter::create(directory.path(), vec![parameter.tensor()], None).unwrap();
    writer.write("a", &parameter.bytes).unwrap();
    writer.commit().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    assert_is(&folder, std::slice::from_ref(&parameter), "whole");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join(SINGLE));
    file.unwrap().set_len(100).unwrap();
    let region = crate::Region::whole(&[64]).unwrap();
    let mut bytes = [0; 256];
    let mut request = crate::Request::new("a", DType::F32, &[64], region, &mut bytes);
    let error = folder.read(Form::Same, &mut request).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn links_to_files_are_followed_and_other_things_are_not_opened() {
    use std::os::unix::fs::symlink;

    let (blobs, snapshot) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let header = json!({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}});
    std::fs::write(blobs.path().join("0123abcd"), file(&header.to_string(), 2)).unwrap();
    symlink(blobs.path().join("0123abcd"), snapshot.path().join(SINGLE)).unwrap();
    assert_eq!(Folder::open(snapshot.path()).unwrap().tensors().count(), 1);
    // A pipe would wait for ever.
    std::fs::remove_file(snapshot.path().join(SINGLE)).unwrap();
    let pipe = blobs.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    for target in [pipe.as_path(), blobs.path(), Path::new("/dev/zero")] {
        symlink(target, snapshot.path().join(SINGLE)).unwrap();
        let error = Folder::open(snapshot.path()).err().unwrap();
        assert!(
            error.to_string().contains("not an ordinary file"),
            "{error}"
        );
        std::fs::remove_file(snapshot.path().join(SINGLE)).unwrap();
    }
    // What a link leads to is left alone by a new model.
    let blob = blobs.path().join("0123abcd");
    symlink(&blob, snapshot.path().join(SINGLE)).unwrap();
    let before = std::fs::read(&blob).unwrap();
    let writer = crate::hf::FolderWriter::create(snapshot.path(), Vec::new(), None);
    writer.unwrap().commit().unwrap();
    assert_eq!(std::fs::read(&blob).unwrap(), before);
    assert_eq!(Folder::open(snapshot.path()).unwrap().tensors().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Whatever is cut or changed: an error, or a folder all of whose tensors are read without a panic.
    #[test]
    fn damaged_folders_do_no_harm(
        limit in prop_oneof![Just(None), Just(Some(60u64))],
        file in 0..9usize,
        changes in proptest::collection::vec((0..2000usize, any::<u8>()), 0..4),
        cut in prop_oneof![3 => Just(usize::MAX), 1 => 0..600usize],
    ) {
        let storage = MemoryStorage::new();
        save(&storage, &model(1), limit, &[]).unwrap();
        let names = names_in(&storage);
        let path = Path::new(DIR).join(&names[file % names.len()]);
        storage.corrupt(&path, |bytes| {
            for (at, byte) in changes {
                let length = bytes.len();
                bytes[at % length] = byte;
            }
            bytes.truncate(cut);
        }).unwrap();
        let Ok(folder) = open(&storage) else { return Ok(()) };
        for (name, dtype, shape) in folder.tensors() {
            let dtype = dtype.unwrap_or(DType::U8);
            for form in [Form::Same, Form::Transposed, Form::Rotary { head_dim: 2 }] {
                let shape = form.stored_shape(shape);
                let region = crate::Region::whole(&shape).unwrap();
                let mut bytes = vec![0; region.numel() * dtype.size()];
                let mut request = crate::Request::new(name, dtype, &shape, region, &mut bytes);
                if let Err(error) = folder.read(form, &mut request) {
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
