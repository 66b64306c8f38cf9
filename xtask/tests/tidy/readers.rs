//! Places that read files: each belongs to a test with hostile files, or says here why it needs none.

use crate::workspace::{packages, sources, workspace};

/// What reads files outside of packages with a test `readers`, and why no file of others makes it take more than it
/// may.
const BOUNDED: [(&str, &str); 11] = [
    (
        "burn-dist/src/trainer/args/mod.rs",
        "a table of a schedule, of which so many bytes are read",
    ),
    (
        "burn-dist/src/trainer/args/show.rs",
        "a description of devices, of which so many bytes are read",
    ),
    (
        "burn-dist/src/trainer/capacity.rs",
        "what the system says of the machine",
    ),
    (
        "burn-dist/src/trainer/folder/origin.rs",
        "files beside weights, of which so many bytes are read; burn-dist-lm's test `readers` reads hostile ones",
    ),
    (
        "burn-dist/src/trainer/lora/settings.rs",
        "adapter_config.json, of which so many bytes are read; burn-dist-lm's test `readers` reads hostile ones",
    ),
    (
        "burn-dist-macros/src/guide.rs",
        "guides of the package that is compiled",
    ),
    (
        "burn-dist-021/src/checkpoint/recorder.rs",
        "a record without its tensors, of which so many bytes are read",
    ),
    (
        "burn-dist-launch/src/doctor/reading.rs",
        "a flight record, of which so many bytes are read; its own tests read hostile ones",
    ),
    (
        "burn-dist-gpu/src/symmetric/os.rs",
        "what the system says of its start",
    ),
    (
        "burn-dist-launch/src/rendezvous/token.rs",
        "a token, of which so many bytes are read",
    ),
    ("xtask/src/", "files of this workspace"),
];

const MARKS: [&str; 7] = [
    "File::open(",
    "fs::read(",
    "read_to_string(",
    "read_to_end(",
    "files::read",
    "read_until(",
    "open_linked(",
];

#[test]
fn every_place_that_reads_files_is_tested_or_bounded() {
    let mut found = Vec::new();
    for package in packages() {
        // There, that test looks for places that are not listed.
        if package.join("tests/readers.rs").is_file() {
            continue;
        }
        for (path, code) in sources(&package.join("src")) {
            if MARKS.iter().any(|mark| code.contains(mark)) {
                let path = path.strip_prefix(workspace()).unwrap_or(&path);
                found.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    let listed = |path: &&String| BOUNDED.iter().any(|(place, _)| path.starts_with(place));
    let missing: Vec<_> = found.iter().filter(|path| !listed(path)).collect();
    assert!(
        missing.is_empty(),
        "these read files: bound what they read and list them here, or test them as dev/hostile.rs does: {missing:?}"
    );
    for (place, _) in BOUNDED {
        let is_there = found.iter().any(|path| path.starts_with(place));
        assert!(is_there, "{place} is listed and reads no files");
    }
}
