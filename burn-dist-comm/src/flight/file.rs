//! Writing records as files.

use super::format::FlightRecord;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

impl FlightRecord {
    /// Returns the record as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is made of numbers, texts and lists")
    }
}

/// Returns where records go if nobody says: a folder that `BURN_DIST_FLIGHT` names, none if it says `off`, else the
/// system's temporary folder if the ranks have `several_processes`.
///
/// A single process has nothing to compare, and its error says everything; so it writes records only where it is asked
/// to, and tests that fail on purpose leave nothing behind.
pub fn default_folder(several_processes: bool) -> Option<PathBuf> {
    match std::env::var_os("BURN_DIST_FLIGHT") {
        Some(folder) if folder == "off" => None,
        Some(folder) if !folder.is_empty() => Some(PathBuf::from(folder)),
        _ => several_processes.then(std::env::temp_dir),
    }
}

/// The number of this run.
static RUN: OnceLock<u64> = OnceLock::new();

/// Gives all records of this process the number of the run; the first one counts.
pub fn name_run(run: u64) {
    let _ = RUN.set(run);
}

/// Returns the number of this run, as records have it.
pub(crate) fn run() -> String {
    RUN.get()
        .map_or_else(String::new, |run| format!("{run:016x}"))
}

/// Writes a record; whoever reads the file finds all of it or nothing.
///
/// # Errors
/// The system's.
pub(crate) fn write(folder: &Path, name: &str, record: &FlightRecord) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let (path, partial) = (folder.join(name), folder.join(format!(".{name}.partial")));
    // What a process of the same number has left behind.
    let _ = fs::remove_file(&partial);
    let written = File::create_new(&partial)
        .and_then(|mut file| file.write_all(&record.to_json()))
        .and_then(|()| fs::rename(&partial, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    Ok(path)
}
