//! Flight records: what every process writes when a mesh stops, and what can be read from them.
//!
//! The first fault of a mesh makes each of its processes write one file: who it is, what stopped it, and the last calls
//! of its ranks. Nobody waits for anybody to write it, so a process that is killed or hangs writes none, which tells
//! something too. [`diagnose`] puts the records of a run side by side, and `burn-dist doctor FILES` prints what it
//! finds.
//!
//! | file | idea |
//! | --- | --- |
//! | `format` | what a record holds |
//! | `file` | reading and writing, with bounds |
//! | `evidence` | records side by side: who made which call, and who did not |
//! | `clocks` | how much later each host starts its calls, by its own clock |
//! | `diagnosis` | what went wrong, as data |
//! | `report` | the same in words |
//!
//! ```
//! use burn_dist_comm::flight::{FlightRecord, diagnose};
//!
//! let error = FlightRecord::from_json(b"{}").unwrap_err();
//! assert!(error.to_string().contains("no flight record"));
//! assert!(diagnose(&[]).is_err());
//! ```
//!
//! # What is not here
//! Collecting the files of several hosts: each error names its file.

mod clocks;
mod diagnosis;
mod evidence;
mod file;
mod format;
mod report;
#[cfg(test)]
mod tests;

pub use diagnosis::{Cause, Diagnosis, DiagnosisError, LateHost, Straggler, diagnose};
pub use evidence::{RankState, Whereabouts};
pub use file::{RECORD_BYTES_MAX, RecordError, default_folder, name_run};
pub(crate) use file::{run, write};
pub use format::{CallRecord, FaultKind, FaultRecord, FlightRecord, PeerRecord, RankRecord};
