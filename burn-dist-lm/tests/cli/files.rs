//! Texts in several files, packed or not, as a command line names them.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::{fails, text, works};

fn losses(data: &[&str], json: &Path) -> Vec<f64> {
    let usual = [
        "pretrain",
        "--steps",
        "3",
        "--batch",
        "2",
        "--seq",
        "16",
        "--no-plot",
        "--mesh",
        "fsdp=2",
    ];
    let mut args: Vec<&str> = usual.to_vec();
    for data in data {
        args.extend(["--data", *data]);
    }
    args.extend(["--json", text(json)]);
    works(&args);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let losses = report["losses"].as_array().expect("losses").iter();
    losses
        .map(|loss| loss.as_f64().expect("a number"))
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Whether files are plain or packed, and whether a folder, a pattern or each is named: the same rows come of them.
#[test]
fn files_are_the_same_texts_however_they_are_packed_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["plain", "packed"] {
        fs::create_dir(at(folder)).unwrap();
    }
    let lines = |from: usize| -> Vec<u8> {
        let line =
            |number| format!("{{\"text\": \"the number {number} is a number of {from}\"}}\n");
        (from..from + 40).map(line).collect::<String>().into_bytes()
    };
    // Of the same length, so that each has half of the weight.
    let (one, other) = (lines(100), lines(200));
    assert_eq!(one.len(), other.len());
    fs::write(at("plain/a.jsonl"), &one).unwrap();
    fs::write(at("plain/b.jsonl"), &other).unwrap();
    fs::write(at("packed/a.jsonl.gz"), gzip(&one)).unwrap();
    fs::write(
        at("packed/b.jsonl.zst"),
        ruzstd::encoding::compress_to_vec(&other[..], ruzstd::encoding::CompressionLevel::Fastest),
    )
    .unwrap();
    let json = at("report.json");
    let named = |names: &[&str]| -> Vec<f64> {
        let names: Vec<String> = names
            .iter()
            .map(|name| at(name).display().to_string())
            .collect();
        losses(&names.iter().map(String::as_str).collect::<Vec<_>>(), &json)
    };
    let expected = named(&["plain"]);
    assert_eq!(expected.len(), 3);
    for names in [
        &["packed"][..],
        &["plain/*.jsonl"],
        &["packed/*.jsonl.*"],
        &["*/[ab].jsonl"],
        &["packed/a.jsonl.gz", "packed/b.jsonl.zst"],
    ] {
        assert_eq!(named(names), expected, "{names:?}");
    }
}

#[test]
fn files_that_are_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("a.jsonl.gz"), &gzip(b"{\"text\": \"a\"}\n")[..9]).unwrap();
    fs::write(at("a.jsonl.bz2"), "a").unwrap();
    for (name, parts) in [
        ("empty", &["the folder", "empty has no files of texts"][..]),
        (
            "none/*.jsonl",
            &["the pattern", "none/*.jsonl has no files of texts"],
        ),
        (
            "a.jsonl.gz",
            &[
                "cannot read",
                "a.jsonl.gz",
                "it cannot be unpacked",
                "is it whole",
            ],
        ),
        (
            "*.gz",
            &["cannot read", "a.jsonl.gz", "it cannot be unpacked"],
        ),
        (
            "a.jsonl.bz2",
            &["a.jsonl.bz2", "is not known", ".gz or .zst"],
        ),
        ("none.jsonl", &["none.jsonl", "No such file"]),
    ] {
        for command in ["pretrain", "finetune"] {
            fails(
                &[command, "--no-plot", "--steps", "1", "--data", &at(name)],
                1,
                parts,
            );
        }
    }
}
