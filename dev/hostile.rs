//! What tests of readers share: memory is counted, and places that open files are looked for in the source.
//!
//! Each crate that reads files of others has a test `readers`, which includes this file and lists its readers. A place
//! in the source that reads a file and belongs to none of them fails the test.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

#[path = "counting.rs"]
mod counting;
use counting::{HELD, PEAK};

/// A reader takes no more memory than this and `FACTOR` times the file.
const MORE: u64 = 64 << 20;
const FACTOR: u64 = 4;

/// A hole counts as no more than this, whatever its size, and a device as this.
const HOLE: u64 = 16 << 20;

/// A reader of files.
pub(crate) struct Reader {
    pub(crate) name: &'static str,
    /// The files of `src` that read for it.
    pub(crate) sources: &'static [&'static str],
    /// The name of the file in the folder that it is given.
    pub(crate) file: &'static str,
    /// A file that it reads.
    pub(crate) good: fn() -> Vec<u8>,
    /// Files that lie, by name.
    pub(crate) hostile: fn() -> Vec<(&'static str, Content)>,
    /// Reads the file of a folder, and all that it leads to; returns the error.
    pub(crate) read: fn(&Path) -> Result<(), String>,
    /// How many times the file's size it may take: `FACTOR`, or more where that is said in the docs.
    pub(crate) factor: u64,
}

/// What is in a file.
pub(crate) enum Content {
    Bytes(Vec<u8>),
    /// These bytes and a hole up to this size.
    Sparse(Vec<u8>, u64),
    /// A link to something that is no file.
    Link(&'static str),
}

/// Reads hostile files, and good ones that were damaged: so many as `BURN_DIST_HOSTILE_CASES` says, 32 by default.
pub(crate) fn check<'a>(readers: impl IntoIterator<Item = &'a Reader>) {
    let cases = std::env::var("BURN_DIST_HOSTILE_CASES").ok();
    let cases: u64 = cases.map_or(32, |cases| cases.parse().expect("a number of cases"));
    for reader in readers {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(reader.file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let good = (reader.good)();
        let read = one(
            reader,
            folder.path(),
            &path,
            "good",
            &Content::Bytes(good.clone()),
        );
        assert_eq!(read, Ok(()), "{}: a good file", reader.name);
        for (name, content) in (reader.hostile)() {
            let error = one(reader, folder.path(), &path, name, &content);
            if let Err(error) = error {
                // What somebody reads on a terminal.
                assert!(
                    error.len() < 20_000,
                    "{}, {name}: {} bytes of error",
                    reader.name,
                    error.len()
                );
            }
        }
        for case in 0..cases {
            let damaged = Content::Bytes(damaged(&good, case));
            let _ = one(
                reader,
                folder.path(),
                &path,
                &format!("case {case}"),
                &damaged,
            );
        }
    }
}

fn one(
    reader: &Reader,
    folder: &Path,
    path: &Path,
    name: &str,
    content: &Content,
) -> Result<(), String> {
    let _ = fs::remove_file(path);
    let bytes = match content {
        Content::Bytes(bytes) => {
            fs::write(path, bytes).unwrap();
            bytes.len() as u64
        }
        Content::Sparse(bytes, size) => {
            fs::write(path, bytes).unwrap();
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(*size)
                .unwrap();
            (bytes.len() as u64).max(HOLE.min(*size))
        }
        Content::Link(to) => {
            #[cfg(unix)]
            std::os::unix::fs::symlink(to, path).unwrap();
            HOLE
        }
    };
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let begin = std::time::Instant::now();
    let read = catch_unwind(AssertUnwindSafe(|| (reader.read)(folder)));
    let took = begin.elapsed();
    let peak = (PEAK.load(Ordering::Relaxed) - before) as u64;
    let Ok(read) = read else {
        panic!("{}, {name}: it panicked", reader.name);
    };
    if std::env::var_os("BURN_DIST_HOSTILE_SHOW").is_some() {
        let short = read
            .as_ref()
            .err()
            .map(|error| error.chars().take(200).collect::<String>());
        println!(
            "{}, {name}: {bytes} bytes, {peak} held, {took:.2?}, {short:?}",
            reader.name
        );
    }
    let most = bytes.saturating_mul(reader.factor) + MORE;
    assert!(
        peak <= most,
        "{}, {name}: {peak} bytes for a file of {bytes}",
        reader.name
    );
    read
}

/// A file with some bytes changed, or cut, or with bytes put in: the same for the same number.
fn damaged(good: &[u8], case: u64) -> Vec<u8> {
    let mut state = case.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let mut bytes = good.to_vec();
    for _ in 0..1 + draw(4) {
        if bytes.is_empty() {
            break;
        }
        let at = draw(bytes.len());
        match draw(8) {
            0 => bytes.truncate(at),
            1 => {
                let more = [0xff, 0x7f, 0, b'[', b'{', b'"', b'9'][draw(7)];
                let count = 1 + draw(40);
                bytes.splice(at..at, std::iter::repeat_n(more, count));
            }
            2 => {
                let end = (at + 1 + draw(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            3 => bytes[at] = [0, 0x7f, 0x80, 0xff][draw(4)],
            _ => bytes[at] ^= 1 << draw(8),
        }
    }
    bytes
}

/// Every place of `src` that reads a file belongs to a reader, or to one of those that read `nothing of others`.
pub(crate) fn check_sources(src: &Path, readers: &[Reader], nothing_of_others: &[&str]) {
    const MARKS: [&str; 10] = [
        "File::open",
        "fs::read(",
        "read_to_string(",
        "read_to_end(",
        "files::read",
        "read_until(",
        ".open_linked(",
        ".storage.open(",
        "storage.open(",
        "options.open(",
    ];
    let mut found = BTreeSet::new();
    let mut folders = vec![src.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path
                .strip_prefix(src)
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/");
            if path.is_dir() {
                if !name.ends_with("tests") {
                    folders.push(path);
                }
                continue;
            }
            if !name.ends_with(".rs") || name.ends_with("tests.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text
                .split("\n#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            let mut lines = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            if lines.any(|line| MARKS.iter().any(|mark| line.contains(mark))) {
                found.insert(name);
            }
        }
    }
    let listed = readers.iter().flat_map(|reader| reader.sources);
    let listed: BTreeSet<String> = listed
        .chain(nothing_of_others)
        .map(|name| name.to_string())
        .collect();
    let missing: Vec<_> = found.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "these read files and belong to no reader that is tested: {missing:?}"
    );
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(
        gone.is_empty(),
        "these are listed and read no files: {gone:?}"
    );
}

/// The factor of all readers but those that say otherwise.
pub(crate) const USUAL: u64 = FACTOR;
