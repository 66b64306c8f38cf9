//! Records as files.

use super::format::FlightRecord;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The largest file that is read, in bytes. A call takes about 400, and 5 more for each member of its group: a thousand
/// calls of each of 64 ranks of a process, all of them in groups of a thousand ranks, are 350 MB.
pub const RECORD_BYTES_MAX: u64 = 512 << 20;

/// Ranks, processes and members that a record may speak of.
const RANKS_MAX: usize = 1 << 20;

/// Why a file is no flight record.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is larger than any record.
    #[error("{} is larger than {} MiB, which no flight record is: name the files that errors end with", path.display(), RECORD_BYTES_MAX >> 20)]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// It is something else, or has been cut or damaged.
    #[error("this is no flight record of burn-dist: {reason}")]
    Malformed {
        /// What was expected, and where.
        reason: String,
    },
    /// A record of a newer version.
    #[error(
        "this flight record has version {found}, written by burn-dist {crate_version}, and this program reads up to \
         {}: use the doctor of that version",
        FlightRecord::VERSION
    )]
    Newer {
        /// Its version.
        found: u32,
        /// Who wrote it.
        crate_version: String,
    },
    /// A file with one of these errors.
    #[error("{}: {source}", path.display())]
    InFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<RecordError>,
    },
}

burn_dist_mesh::debug_by_message!(RecordError);

/// What every version begins with.
#[derive(serde::Deserialize)]
struct Head {
    format: String,
    version: u32,
    #[serde(default)]
    crate_version: String,
}

impl FlightRecord {
    /// Reads a record from its JSON.
    ///
    /// # Errors
    /// [`RecordError::Malformed`] with the line and column of what is wrong, [`RecordError::Newer`].
    pub fn from_json(json: &[u8]) -> Result<Self, RecordError> {
        let malformed = |reason: String| RecordError::Malformed { reason };
        let head: Head =
            serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        if head.format != Self::FORMAT {
            return Err(malformed(format!(
                "it says that it is a {:?}, not a {:?}",
                head.format.chars().take(80).collect::<String>(),
                Self::FORMAT
            )));
        }
        if head.version > Self::VERSION {
            return Err(RecordError::Newer {
                found: head.version,
                crate_version: head.crate_version,
            });
        }
        let record: Self =
            serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        record.check().map_err(malformed)?;
        Ok(record)
    }

    /// Reads a record from a file.
    ///
    /// # Errors
    /// As [`FlightRecord::from_json`], and [`RecordError::Io`] and [`RecordError::TooLarge`]; each names the file.
    pub fn from_file(path: &Path) -> Result<Self, RecordError> {
        let io = |source| RecordError::Io {
            path: path.to_path_buf(),
            source,
        };
        let mut json = Vec::new();
        // A device or a pipe has no length: what is read is bounded, not what the file says of itself.
        File::open(path)
            .map_err(io)?
            .take(RECORD_BYTES_MAX + 1)
            .read_to_end(&mut json)
            .map_err(io)?;
        if json.len() as u64 > RECORD_BYTES_MAX {
            return Err(RecordError::TooLarge {
                path: path.to_path_buf(),
            });
        }
        Self::from_json(&json).map_err(|error| RecordError::InFile {
            path: path.to_path_buf(),
            source: Box::new(error),
        })
    }

    /// Returns the record as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is made of numbers, texts and lists")
    }

    /// Whether what it says of ranks and processes can be.
    fn check(&self) -> Result<(), String> {
        let (processes, ranks) = (self.processes.len(), self.process_of.len());
        if processes == 0 || ranks == 0 || processes > RANKS_MAX || ranks > RANKS_MAX {
            return Err(format!("{processes} processes and {ranks} ranks cannot be"));
        }
        let is_process = |process: &u32| (*process as usize) < processes;
        if !is_process(&self.process) || !self.process_of.iter().all(is_process) {
            return Err(format!(
                "it names a process that is none of its {processes}"
            ));
        }
        let is_rank = |rank: &u32| (*rank as usize) < ranks;
        let calls = self
            .ranks
            .iter()
            .flat_map(|rank| &rank.calls)
            .chain(&self.fault.call);
        let mut named = calls
            .flat_map(|call| call.group.iter().chain(&call.awaited).chain([&call.rank]))
            .chain(self.ranks.iter().map(|rank| &rank.rank))
            .chain(&self.fault.missing_ranks)
            .chain(&self.fault.rank);
        let mut processes = self
            .fault
            .missing_processes
            .iter()
            .chain(&self.fault.process);
        match named.all(is_rank) && processes.all(is_process) {
            true => Ok(()),
            false => Err(format!(
                "it names a rank that is none of its {ranks}, or a process that is none of its {}",
                self.processes.len()
            )),
        }
    }
}

/// Returns where records go if nobody says: a folder that `BURN_DIST_FLIGHT` names, none if it says `off`, else the
/// system's temporary folder if the ranks have `several_processes`.
///
/// A single process has nothing to compare, and its error says everything; so it writes records only where it is told
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
