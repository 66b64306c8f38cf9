//! A diagnosis from the flight records of a run.
//!
//! [`diagnose`] puts the [records](burn_dist_comm::flight) of all processes side by side, and `burn-dist doctor FILES`
//! prints what it finds.
//!
//! | file | idea |
//! | --- | --- |
//! | `reading` | records from files, with bounds |
//! | `evidence` | records side by side: the ranks that made a call, and the others |
//! | `clocks` | how much later each host starts its calls, by its own clock |
//! | `diagnosis` | the cause, as data |
//! | `report` | the same in words |
//!
//! ```
//! use burn_dist_launch::doctor::{diagnose, parse};
//!
//! let error = parse(b"{}").unwrap_err();
//! assert!(error.to_string().contains("no flight record"));
//! assert!(diagnose(&[]).is_err());
//! ```
//!
//! # What is not here
//! Collecting the files of several hosts: each error names its file.

mod clocks;
mod diagnosis;
mod evidence;
mod reading;
mod report;
#[cfg(test)]
mod tests;

pub use diagnosis::{Cause, Diagnosis, DiagnosisError, diagnose};
pub use evidence::{LateHost, RankState, Straggler, Whereabouts};
pub use reading::{RECORD_BYTES_MAX, RecordError, parse, read};
