//! Records from files, with bounds.

use burn_dist_comm::flight::FlightRecord;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

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
        /// The words of the system.
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
        /// The expectation, and where it failed.
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
        /// The version that wrote it.
        crate_version: String,
    },
    /// A file with one of these errors.
    #[error("{}: {source}", path.display())]
    InFile {
        /// Which file.
        path: PathBuf,
        /// The reason why it is none.
        source: Box<RecordError>,
    },
}

burn_dist_mesh::debug_by_message!(RecordError);

/// The beginning of every version.
#[derive(serde::Deserialize)]
struct Head {
    format: String,
    version: u32,
    #[serde(default)]
    crate_version: String,
}

/// Reads a record from its JSON.
///
/// # Errors
/// [`RecordError::Malformed`] with the line and column of what is wrong, [`RecordError::Newer`].
pub fn parse(json: &[u8]) -> Result<FlightRecord, RecordError> {
    let malformed = |reason: String| RecordError::Malformed { reason };
    let head: Head = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
    if head.format != FlightRecord::FORMAT {
        return Err(malformed(format!(
            "it says that it is a {:?}, not a {:?}",
            head.format.chars().take(80).collect::<String>(),
            FlightRecord::FORMAT
        )));
    }
    if head.version > FlightRecord::VERSION {
        return Err(RecordError::Newer {
            found: head.version,
            crate_version: head.crate_version,
        });
    }
    let record: FlightRecord =
        serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
    check(&record).map_err(malformed)?;
    Ok(record)
}

/// Reads a record from a file.
///
/// # Errors
/// The errors of [`parse`], and [`RecordError::Io`] and [`RecordError::TooLarge`]; each names the file.
pub fn read(path: &Path) -> Result<FlightRecord, RecordError> {
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
    parse(&json).map_err(|error| RecordError::InFile {
        path: path.to_path_buf(),
        source: Box::new(error),
    })
}

/// Returns whether what it says of ranks and processes can be.
fn check(record: &FlightRecord) -> Result<(), String> {
    let (processes, ranks) = (record.processes.len(), record.process_of.len());
    if processes == 0 || ranks == 0 || processes > RANKS_MAX || ranks > RANKS_MAX {
        return Err(format!("{processes} processes and {ranks} ranks cannot be"));
    }
    let is_process = |process: &u32| (*process as usize) < processes;
    if !is_process(&record.process) || !record.process_of.iter().all(is_process) {
        return Err(format!(
            "it names a process that is none of its {processes}"
        ));
    }
    let is_rank = |rank: &u32| (*rank as usize) < ranks;
    let calls = record
        .ranks
        .iter()
        .flat_map(|rank| &rank.calls)
        .chain(&record.fault.call);
    let mut named = calls
        .flat_map(|call| call.group.iter().chain(&call.awaited).chain([&call.rank]))
        .chain(record.ranks.iter().map(|rank| &rank.rank))
        .chain(&record.fault.missing_ranks)
        .chain(&record.fault.rank);
    let mut processes = record
        .fault
        .missing_processes
        .iter()
        .chain(&record.fault.process);
    match named.all(is_rank) && processes.all(is_process) {
        true => Ok(()),
        false => Err(format!(
            "it names a rank that is none of its {ranks}, or a process that is none of its {}",
            record.processes.len()
        )),
    }
}
