//! What measurements against a plain file share: files without their pages, memory, medians.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

/// The plain file is written and read by so many bytes at a time.
const BLOCK: usize = 16 << 20;

/// Writes bytes to one file, and syncs it.
pub(crate) fn plain_write<'a>(path: &Path, parts: impl IntoIterator<Item = &'a [u8]>) {
    let mut file = File::create(path).expect("a file");
    for block in parts.into_iter().flat_map(|part| part.chunks(BLOCK)) {
        file.write_all(block).expect("written");
    }
    file.sync_all().expect("synced");
}

/// Reads a file into memory.
pub(crate) fn plain_read(path: &Path, buffer: &mut [u8]) {
    let mut file = File::open(path).expect("a file");
    for block in buffer.chunks_mut(BLOCK) {
        file.read_exact(block).expect("read");
    }
}

/// Drops the pages of the files in a directory, or of a file.
pub(crate) fn drop_pages(path: &Path) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            drop_pages(&entry.expect("an entry").path());
        }
        return;
    }
    let file = File::open(path).expect("a file");
    file.sync_all().expect("synced");
    #[cfg(unix)]
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
}

/// Returns the KiB by which the memory of the process grows at most during a call; 0 where Linux does not tell.
pub(crate) fn peak_of<T>(what: impl FnOnce() -> T) -> (T, u64) {
    // Makes the highest the current again.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = status("VmRSS:");
    let result = what();
    (result, status("VmHWM:").saturating_sub(before))
}

fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.unwrap_or(0)
}

/// Seconds of each measurement, by name.
#[derive(Default)]
pub(crate) struct Times(pub BTreeMap<&'static str, Vec<f64>>);

impl Times {
    pub(crate) fn time<T>(&mut self, name: &'static str, what: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = what();
        self.push(name, start.elapsed().as_secs_f64());
        result
    }

    pub(crate) fn push(&mut self, name: &'static str, seconds: f64) {
        self.0.entry(name).or_default().push(seconds);
    }

    /// The median over the repetitions of time a over time b.
    pub(crate) fn ratio(&self, a: &str, b: &str) -> f64 {
        let pairs = self.0[a].iter().zip(&self.0[b]);
        median(pairs.map(|(a, b)| a / b).collect())
    }
}

pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
