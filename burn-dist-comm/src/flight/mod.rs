//! Flight records: one file of each process of a mesh that has stopped.
//!
//! The first fault of a mesh makes each of its processes write one file: its own name, the fault, and the last calls of
//! its ranks. Nobody waits for anybody to write it, so a process that is killed or hangs writes none, which is evidence
//! too. The doctor of `burn-dist-launch` reads the records of a run.
//!
//! | file | idea |
//! | --- | --- |
//! | `format` | the fields of a record |
//! | `file` | writing it |

mod file;
mod format;

pub use file::{default_folder, name_run};
pub(crate) use file::{run, write};
pub use format::{CallRecord, FaultKind, FaultRecord, FlightRecord, PeerRecord, RankRecord};
