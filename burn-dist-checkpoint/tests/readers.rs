//! Hostile files: no reader takes memory out of proportion, panics, or goes on without end.

#[path = "../../dev/hostile.rs"]
mod hostile;
#[path = "../../dev/quarters.rs"]
mod quarters;

use std::fs;
use std::path::{Path, PathBuf};

use burn_dist_checkpoint::convert::{Conversion, Kind};
use burn_dist_checkpoint::hf::{Folder, Names};
use burn_dist_checkpoint::{Checkpoint, Checkpoints, tools};
use ciborium::{Value as Cbor, cbor};
use hostile::Content::{Bytes, Link, Sparse};
use hostile::{Content, Reader, USUAL};
use xxhash_rust::xxh3::xxh3_64;

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples")
}

fn sample(name: &str) -> Vec<u8> {
    fs::read(samples().join(name)).unwrap()
}

/// Opens a checkpoint, of which files that are not there are the sample's, and reads all of it.
fn checkpoint(folder: &Path) -> Result<(), String> {
    for entry in fs::read_dir(samples().join("v1")).unwrap() {
        let path = entry.unwrap().path();
        let to = folder.join(path.file_name().unwrap());
        if fs::symlink_metadata(&to).is_err() && path.is_file() {
            fs::copy(path, to).unwrap();
        }
    }
    let checkpoint = Checkpoint::open(folder).map_err(|error| error.to_string())?;
    let verified = tools::verify(&checkpoint).map_err(|error| error.to_string())?;
    match verified.problems.first() {
        Some(problem) => Err(problem.to_string()),
        None => Ok(()),
    }
}

/// As the newest of a run.
fn newest(folder: &Path) -> Result<(), String> {
    let newest = Checkpoints::at(folder).open_latest();
    newest.map(drop).map_err(|error| error.to_string())
}

fn folder(folder: &Path) -> Result<(), String> {
    Folder::open(folder)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn record(from: &Path) -> Result<(), String> {
    let to = from.with_file_name("converted");
    let conversion = Conversion {
        kind: Some(Kind::Bpk),
        ..Conversion::new(from, &to)
    };
    let converted = conversion.run();
    let _ = fs::remove_file(to);
    converted.map(drop).map_err(|error| error.to_string())
}

fn signed(body: &str) -> Vec<u8> {
    let checksum = xxh3_64(&body.as_bytes()[1..]);
    let start = "{\"format\":\"burn-dist-checkpoint\",\"version\":1,\"checksum\":\"";
    format!("{start}{checksum:016x}\",{}", &body[1..]).into_bytes()
}

fn with(metadata: &str, tensors: &str, bytes: usize) -> Vec<u8> {
    let header = format!("{:016x}", xxh3_64(b""));
    signed(&format!(
        "{{\"save_id\":\"{}\",\"block_bytes\":65536,\"mesh\":[],\"metadata\":{metadata},\"files\":[{{\"name\":\
         \"a.safetensors\",\"bytes\":{bytes},\"header_bytes\":0,\"header_checksum\":\"{header}\"}}],\"tensors\":\
         [{tensors}]}}",
        "0".repeat(32)
    ))
}

/// A tensor of u8 of so many pieces of one element each.
fn pieces(shape: &[usize], starts: impl Iterator<Item = Vec<usize>>) -> (String, usize) {
    let checksum = format!("{:016x}", xxh3_64(b"\0"));
    let ones = vec![1; shape.len()];
    let piece = |(at, start): (usize, Vec<usize>)| {
        format!(
            "{{\"file\":0,\"offset\":{at},\"start\":{start:?},\"extent\":{ones:?},\"checksums\":\"{checksum}\"}}"
        )
    };
    let pieces: Vec<String> = starts.enumerate().map(piece).collect();
    let count = pieces.len();
    let text = format!(
        "{{\"key\":\"a\",\"dtype\":\"u8\",\"shape\":{shape:?},\"layout\":\"[-]\",\"pieces\":[{}]}}",
        pieces.join(",")
    );
    (text, count)
}

fn manifests() -> Vec<(&'static str, Content)> {
    let metadata = |text: String| Bytes(with(&text, "", 0));
    let list = |value: &str, count: usize| format!("{{\"a\":[{}]}}", vec![value; count].join(","));
    let empty = |index| {
        format!(
            "{{\"key\":\"t{index:07}\",\"dtype\":\"u8\",\"shape\":[0],\"layout\":\"[-]\",\"pieces\":[]}}"
        )
    };
    let million = (0..1_000_000).map(empty).collect::<Vec<_>>().join(",");
    let place =
        |index: usize, dims: u32| (0..dims).map(|dim| index / 4usize.pow(dim) % 4).collect();
    let grid = |dims: u32| {
        let starts = (0..4usize.pow(dims)).map(|index| place(index, dims));
        let (text, bytes) = pieces(&vec![4; dims as usize], starts);
        Bytes(with("{}", &text, bytes))
    };
    let line = pieces(&[500_000], (0..500_000).map(|at| vec![at]));
    let long = format!(
        "{{\"key\":\"a\",\"dtype\":\"u8\",\"shape\":[{}],\"layout\":\"[-]\",\"pieces\":[]}}",
        vec!["1"; 6_000_000].join(",")
    );
    let factors = format!(
        "{{\"key\":\"a\",\"dtype\":\"u8\",\"shape\":[1],\"factors\":[{}],\"layout\":\"[-]\",\"pieces\":[]}}",
        vec!["[]"; 8_000_000].join(",")
    );
    let start = sample("v1/manifest.json")[..200].to_vec();
    vec![
        ("hole", Sparse(start.clone(), 8 << 30)),
        ("large hole", Sparse(start, 1 << 40)),
        ("device", Link("/dev/zero")),
        ("numbers", metadata(list("0", 6_000_000))),
        ("objects", metadata(list("{}", 8_000_000))),
        ("small objects", metadata(list("{\"\":0}", 5_000_000))),
        (
            "deep",
            metadata(format!(
                "{{\"a\":{}{}}}",
                "[".repeat(100_000),
                "]".repeat(100_000)
            )),
        ),
        ("tensors", Bytes(with("{}", &million, 0))),
        ("grid of 6 dims", grid(6)),
        ("grid of 9 dims", grid(9)),
        ("line", Bytes(with("{}", &line.0, line.1))),
        ("shape", Bytes(with("{}", &long, 0))),
        ("factors", Bytes(with("{}", &factors, 0))),
    ]
}

/// A safetensors file with this header, and so many bytes of data.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn headers() -> Vec<(&'static str, Content)> {
    let of = |header: String, data| Bytes(safetensors(&header, data));
    let list = |value: &str, count: usize| vec![value; count].join(",");
    let tensor = |shape: &str, from: u64, to: u64| {
        format!("{{\"dtype\":\"U8\",\"shape\":[{shape}],\"data_offsets\":[{from},{to}]}}")
    };
    let million = (0..1_000_000).map(|at| format!("\"t{at:07}\":{}", tensor("0", 0, 0)));
    let metadata = (0..2_000_000).map(|at| format!("\"{at}\":\"\""));
    let metadata = metadata.collect::<Vec<_>>().join(",");
    let huge = "1099511627776";
    vec![
        (
            "numbers",
            of(format!("{{\"a\":[{}]}}", list("0", 12_000_000)), 0),
        ),
        (
            "objects",
            of(format!("{{\"a\":[{}]}}", list("{}", 8_000_000)), 0),
        ),
        (
            "shape",
            of(
                format!("{{\"a\":{}}}", tensor(&list("1", 12_000_000), 0, 1)),
                1,
            ),
        ),
        (
            "tensors",
            of(format!("{{{}}}", million.collect::<Vec<_>>().join(",")), 0),
        ),
        (
            "metadata",
            of(format!("{{\"__metadata__\":{{{metadata}}}}}"), 0),
        ),
        ("deep", of(format!("{{\"a\":{}", "[".repeat(100_000)), 0)),
        (
            "twice",
            of(
                format!(
                    "{{\"a\":{},\"\\u0061\":{}}}",
                    tensor("1", 0, 1),
                    tensor("1", 1, 2)
                ),
                2,
            ),
        ),
        (
            "overlap",
            of(
                format!(
                    "{{\"a\":{},\"b\":{}}}",
                    tensor("2", 0, 2),
                    tensor("2", 1, 3)
                ),
                3,
            ),
        ),
        (
            "huge",
            Sparse(
                safetensors(
                    &format!(
                        "{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{huge}],\"data_offsets\":[0,{huge}]}}}}"
                    ),
                    0,
                ),
                (1 << 40) + 90,
            ),
        ),
        ("length", Bytes([&[0xff; 8][..], b"{}"].concat())),
        ("device", Link("/dev/zero")),
    ]
}

fn indices() -> Vec<(&'static str, Content)> {
    let of = |pairs: Vec<String>| {
        Bytes(format!("{{\"weight_map\":{{{}}}}}", pairs.join(",")).into_bytes())
    };
    let one = |file: &str| of(vec![format!("\"a\":\"{file}\"")]);
    let each = (0..1_000_000).map(|at| format!("\"t{at}\":\"model-{at}.safetensors\""));
    let same = (0..3_000_000).map(|at| format!("\"t{at}\":\"a.safetensors\""));
    vec![
        ("files", of(each.collect())),
        ("tensors", of(same.collect())),
        ("up", one("../model.safetensors")),
        ("elsewhere", one("/etc/hostname")),
        ("zero", one("a\\u0000b.safetensors")),
        ("long", one(&format!("{}.safetensors", "a".repeat(5000)))),
        ("missing", one("b.safetensors")),
        ("hole", Sparse(b"{\"weight_map\":{".to_vec(), 1 << 40)),
        ("device", Link("/dev/zero")),
    ]
}

fn pack(description: &[u8], data: usize) -> Vec<u8> {
    let length = u32::try_from(description.len()).unwrap();
    let mut out = [&b"NRUB\x01\x00"[..], &length.to_le_bytes(), description].concat();
    out.resize(out.len().next_multiple_of(256) + data, 7);
    out
}

fn packs() -> Vec<(&'static str, Content)> {
    let of = |value: Cbor, data| {
        let mut bytes = Vec::new();
        ciborium::into_writer(&value, &mut bytes).unwrap();
        Bytes(pack(&bytes, data))
    };
    let raw = |field: &[u8], value: &[u8]| {
        let start = b"\xa1\x67tensors\xa1\x61a\xa3".as_slice();
        Bytes(pack(&[start, field, value].concat(), 16))
    };
    let many = 10_000_000u32;
    let numbers = [
        b"\x9a".as_slice(),
        &many.to_be_bytes(),
        &vec![0; many as usize],
    ]
    .concat();
    let tensor = |from: u64, to: u64| {
        cbor!({"dtype" => "F32", "shape" => [2], "data_offsets" => [from, to]}).unwrap()
    };
    let texts =
        (0..3_000_000u32).map(|at| (Cbor::Text(format!("{at:x}")), Cbor::Text(String::new())));
    let metadata = cbor!({"tensors" => {}}).unwrap();
    let mut metadata = metadata.into_map().unwrap();
    metadata.push((Cbor::Text("metadata".into()), Cbor::Map(texts.collect())));
    let tensors = (0..200_000).map(|at| (Cbor::Text(format!("{at}")), tensor(0, 8)));
    let tensors = Cbor::Map(tensors.collect());
    let twice = Cbor::Map(vec![(Cbor::Text("a".into()), tensor(0, 8)); 2]);
    vec![
        ("type", raw(b"\x65dtype", &numbers)),
        ("shape", raw(b"\x65shape", &numbers)),
        ("deep", raw(b"\x65dtype", &[0x81; 100_000])),
        ("metadata", of(Cbor::Map(metadata), 0)),
        ("tensors", of(cbor!({"tensors" => tensors}).unwrap(), 8)),
        ("twice", of(cbor!({"tensors" => twice}).unwrap(), 16)),
        (
            "overlap",
            of(
                cbor!({"tensors" => {"a" => tensor(0, 8), "b" => tensor(4, 12)}}).unwrap(),
                16,
            ),
        ),
        (
            "hole",
            Sparse(b"NRUB\x01\x00\x00\x00\x40\x06".to_vec(), 1 << 40),
        ),
        ("device", Link("/dev/zero")),
    ]
}

fn named() -> Vec<(&'static str, Content)> {
    let parameter = |name: &str| {
        let mut out = vec![0xa0 + name.len() as u8];
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\x81\xa5param\x83\xa5bytes\xc4\0\xa5shape\x91\0\xa5dtype\xa2U8");
        out
    };
    let of = |path: &str, count: u32| {
        let mut out = b"\x82\xa8metadata\x80\xa4item\x81\xda".to_vec();
        out.extend_from_slice(&(path.len() as u16).to_be_bytes());
        out.extend_from_slice(path.as_bytes());
        out.push(0xdf);
        out.extend_from_slice(&count.to_be_bytes());
        out.extend((0..count).flat_map(|at| parameter(&format!("{at:06}"))));
        Bytes(out)
    };
    let deep = [b"\x82\xa8metadata".as_slice(), &[0x91; 100_000]].concat();
    vec![
        ("long path", of(&"p".repeat(980), 700_000)),
        ("parameters", of("p", 900_000)),
        ("deep", Bytes(deep)),
        (
            "hole",
            Sparse(b"\x82\xa8metadata\xdd\xff\xff\xff\xff".to_vec(), 1 << 33),
        ),
        ("device", Link("/dev/zero")),
    ]
}

fn names() -> Vec<(&'static str, Content)> {
    let rows: String = (0..20_000)
        .map(|at| format!("\"a{at}\" = \"b{at}\"\n"))
        .collect();
    let ignored = vec!["\"a\""; 100_000].join(",");
    vec![
        ("rows", Bytes(rows.into_bytes())),
        (
            "ignored",
            Bytes(format!("ignored = [{ignored}]\n").into_bytes()),
        ),
        ("long", Bytes(vec![b'\n'; 1 << 20])),
        (
            "deep",
            Bytes(format!("a = {}", "[".repeat(500_000)).into_bytes()),
        ),
    ]
}

const READERS: &[Reader] = &[
    Reader {
        name: "manifest",
        sources: &["load/checkpoint.rs", "storage/disk.rs"],
        file: "manifest.json",
        good: || sample("v1/manifest.json"),
        hostile: manifests,
        read: checkpoint,
        factor: USUAL,
    },
    Reader {
        name: "newest of a run",
        sources: &[],
        file: "step-0000000001/manifest.json",
        good: || with("{}", "", 0),
        hostile: || {
            vec![(
                "hole",
                Sparse(sample("v1/manifest.json")[..200].to_vec(), 1 << 40),
            )]
        },
        read: |folder| {
            fs::write(folder.join("step-0000000001/a.safetensors"), "").unwrap();
            newest(folder)
        },
        factor: USUAL,
    },
    Reader {
        name: "file of a checkpoint",
        sources: &["load/file.rs"],
        file: "00000-of-00002.safetensors",
        good: || sample("v1/00000-of-00002.safetensors"),
        hostile: headers,
        read: checkpoint,
        factor: USUAL,
    },
    Reader {
        name: "safetensors of others",
        sources: &["hf/folder.rs"],
        file: "model.safetensors",
        good: || {
            let header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";
            safetensors(header, 3)
        },
        hostile: headers,
        read: folder,
        factor: USUAL,
    },
    Reader {
        name: "index of others",
        sources: &[],
        file: "model.safetensors.index.json",
        good: || b"{\"weight_map\":{\"a\":\"a.safetensors\"}}".to_vec(),
        hostile: indices,
        read: |path| {
            let header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";
            fs::write(path.join("a.safetensors"), safetensors(header, 3)).unwrap();
            folder(path)
        },
        factor: USUAL,
    },
    Reader {
        name: "burnpack",
        sources: &["records/bpk.rs", "convert/detect.rs"],
        file: "model.bpk",
        good: || sample("burn-0.21/model.bpk"),
        hostile: packs,
        read: |folder| record(&folder.join("model.bpk")),
        factor: USUAL,
    },
    Reader {
        name: "named MessagePack",
        sources: &["records/mpk/read.rs"],
        file: "model.mpk",
        good: || sample("burn-0.21/model.mpk"),
        hostile: named,
        read: |folder| record(&folder.join("model.mpk")),
        factor: USUAL,
    },
    Reader {
        name: "names of tensors",
        sources: &["cli/convert.rs"],
        file: "names.toml",
        good: || b"\"a.*.weight\" = \"b.*.weight, transposed\"\nignored = [\"c\"]\n".to_vec(),
        hostile: names,
        read: |folder| {
            let text = fs::read_to_string(folder.join("names.toml"));
            let text = text.map_err(|error| error.to_string())?;
            Names::parse(&text, &[])
                .map(drop)
                .map_err(|error| error.to_string())
        },
        factor: USUAL,
    },
];

quarters::hostile_files_take_no_memory_out_of_proportion!(READERS);

#[test]
fn every_place_that_reads_a_file_belongs_to_a_reader() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // These read files beside the tensors of a folder, block by block, and compare.
    hostile::check_sources(&src, READERS, &["convert/sink.rs", "hf/write.rs"]);
}
