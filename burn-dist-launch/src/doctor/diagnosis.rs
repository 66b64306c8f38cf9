//! The cause of a fault, as data.

use super::evidence::{CallId, Evidence, LateHost, RankState, Straggler, Whereabouts};
use burn_dist_comm::flight::{CallRecord, FaultKind, FlightRecord, PeerRecord};

/// Why records give no diagnosis.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiagnosisError {
    /// No records.
    #[error(
        "there are no flight records to look at: name the files that errors end with, one per process"
    )]
    NoRecords,
    /// Records that do not belong together.
    #[error(
        "these records are not of one run: one is of {first}, another of {second}; give those of one run only"
    )]
    Mixed {
        /// The run of one.
        first: String,
        /// The run of another.
        second: String,
    },
    /// Two records of one process.
    #[error("process {process} has two records: give those of one run only")]
    Twice {
        /// Which.
        process: u32,
    },
}

burn_dist_mesh::debug_by_message!(DiagnosisError);

/// The cause that stopped a mesh.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// A rank failed by itself.
    Failed {
        /// Which, if that is known.
        rank: Option<u32>,
    },
    /// The program asked for something that cannot be.
    Program,
    /// Two ranks made different calls at the same place.
    Mismatch {
        /// One of them.
        first: Box<CallRecord>,
        /// The other, if a record has it.
        second: Option<Box<CallRecord>>,
        /// The other, as text.
        second_text: String,
    },
    /// Processes recorded different operations.
    ProgramsDiffer,
    /// Ranks that others waited for in vain.
    Missing {
        /// The call that they had not made, if it was one.
        call: Option<Box<CallRecord>>,
        /// The window that they had not run, if it was one.
        window: Option<u64>,
        /// Which.
        ranks: Vec<u32>,
        /// Calls of ranks that wait for each other.
        circle: Option<Vec<CallRecord>>,
    },
    /// Ranks that others waited for in vain had made the call: what they sent has not arrived.
    Undelivered {
        /// The call.
        call: Box<CallRecord>,
        /// Which.
        ranks: Vec<u32>,
    },
    /// A process ended without a word.
    Lost {
        /// Which.
        process: u32,
    },
    /// A rank left while others waited for it.
    Left {
        /// Which, if it was one.
        rank: Option<u32>,
        /// Its process, if that is known.
        process: Option<u32>,
    },
    /// Messages between processes failed.
    Connection,
    /// A process was notified by another, whose record is not here.
    Relayed {
        /// By which, if that is known.
        by: Option<u32>,
    },
    /// Something else.
    Other,
}

/// The diagnosis of a run; its text is a report in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// Text form of the mesh.
    pub mesh: String,
    /// When the record of the first process to stop was written, in microseconds since 1970.
    pub stopped_us: u64,
    /// Where processes live.
    pub processes: Vec<PeerRecord>,
    /// Processes without a record.
    pub absent: Vec<u32>,
    /// The cause that stopped the mesh.
    pub cause: Cause,
    /// The process that says so.
    pub witness: u32,
    /// In its words.
    pub text: String,
    /// The texts of the other processes, if they are something of their own.
    pub others: Vec<(u32, String)>,
    /// Where every rank was.
    pub ranks: Vec<Whereabouts>,
    /// Ranks that keep others waiting, whatever the clocks of their hosts say.
    pub stragglers: Vec<Straggler>,
    /// Hosts that do, or whose clocks are ahead.
    pub late_hosts: Vec<LateHost>,
}

/// How near to the beginning of the trouble a kind of fault is.
fn order(kind: FaultKind) -> u8 {
    match kind {
        FaultKind::Injected | FaultKind::Operation | FaultKind::Program => 0,
        FaultKind::Invalid | FaultKind::Mismatch | FaultKind::ProgramsDiffer => 1,
        FaultKind::Lost => 2,
        FaultKind::Left => 3,
        FaultKind::Connection => 4,
        FaultKind::Timeout | FaultKind::Stalled => 5,
        // A window waits for calls, and not the reverse.
        FaultKind::WindowTimeout => 6,
        FaultKind::Relayed => 8,
        // Other faults, and those of later versions.
        _ => 7,
    }
}

fn run_of(record: &FlightRecord) -> String {
    let run = match record.run.is_empty() {
        true => "a run without a number".to_string(),
        false => format!("run {}", record.run),
    };
    format!(
        "{run} (as process {} says), mesh {} (number {}) in {} processes, the first with pid {} on {}",
        record.process,
        record.mesh,
        record.mesh_number,
        record.processes.len(),
        record.processes[0].pid,
        record.processes[0].host
    )
}

/// Finds out what stopped a mesh, from the records of its processes, in any order; some may be missing.
///
/// # Errors
/// [`DiagnosisError`] if there are none, or if they are not of one run.
pub fn diagnose(records: &[FlightRecord]) -> Result<Diagnosis, DiagnosisError> {
    let mut sorted: Vec<&FlightRecord> = records.iter().collect();
    sorted.sort_by_key(|record| (order(record.fault.kind), record.written_us, record.process));
    let Some(&first) = sorted.first() else {
        return Err(DiagnosisError::NoRecords);
    };
    let belongs = |record: &&FlightRecord| {
        (
            &record.run,
            &record.mesh,
            record.mesh_number,
            &record.processes,
            &record.process_of,
        ) == (
            &first.run,
            &first.mesh,
            first.mesh_number,
            &first.processes,
            &first.process_of,
        )
    };
    if let Some(other) = records.iter().find(|record| !belongs(record)) {
        let (first, second) = (run_of(first), run_of(other));
        return Err(DiagnosisError::Mixed { first, second });
    }
    let mut has_record = vec![false; first.processes.len()];
    for record in records {
        if std::mem::replace(&mut has_record[record.process as usize], true) {
            return Err(DiagnosisError::Twice {
                process: record.process,
            });
        }
    }
    let evidence = Evidence::new(records);
    let absent = has_record.iter().zip(0..).filter(|(has, _)| !**has);
    let (stragglers, late_hosts) = evidence.late();
    Ok(Diagnosis {
        mesh: first.mesh.clone(),
        stopped_us: first.written_us,
        processes: first.processes.clone(),
        absent: absent.map(|(_, process)| process).collect(),
        cause: cause(first, &evidence),
        witness: first.process,
        text: first.fault.text.clone(),
        others: sorted[1..]
            .iter()
            .filter(|record| {
                record.fault.kind != FaultKind::Relayed && record.fault.text != first.fault.text
            })
            .map(|record| (record.process, record.fault.text.clone()))
            .collect(),
        ranks: evidence.whereabouts(),
        stragglers,
        late_hosts,
    })
}

fn cause(record: &FlightRecord, evidence: &Evidence<'_>) -> Cause {
    let fault = &record.fault;
    let mismatch = || {
        let (first, second) = evidence.mismatch()?;
        Some(Cause::Mismatch {
            first: Box::new(first.clone()),
            second: Some(Box::new(second.clone())),
            second_text: format!("rank {} called {second}", second.rank),
        })
    };
    match fault.kind {
        FaultKind::Operation | FaultKind::Injected => Cause::Failed { rank: fault.rank },
        FaultKind::Program | FaultKind::Invalid => Cause::Program,
        FaultKind::ProgramsDiffer => Cause::ProgramsDiffer,
        FaultKind::Mismatch => mismatch().unwrap_or_else(|| match &fault.call {
            None => Cause::Program,
            Some(call) => Cause::Mismatch {
                first: Box::new(call.clone()),
                second: None,
                second_text: fault.other_call.clone().unwrap_or_default(),
            },
        }),
        FaultKind::Lost => match fault.process {
            Some(process) => Cause::Lost { process },
            None => Cause::Other,
        },
        FaultKind::Left => Cause::Left {
            rank: fault.rank,
            process: fault.process,
        },
        FaultKind::Connection => Cause::Connection,
        FaultKind::Relayed => Cause::Relayed { by: fault.process },
        FaultKind::Timeout | FaultKind::Stalled | FaultKind::WindowTimeout => {
            let in_missing = |process: &u32| fault.missing_processes.contains(process);
            let of_processes = record
                .process_of
                .iter()
                .zip(0..)
                .filter(|(process, _)| in_missing(process));
            let mut ranks = fault.missing_ranks.clone();
            let mut undelivered = None;
            match &fault.call {
                // Of ranks in other processes only their processes are known to be late: records tell who had made the
                // call.
                Some(call) => {
                    let id = CallId::of(call);
                    ranks.retain(|rank| evidence.made(*rank, &id).is_none());
                    if ranks.is_empty() && !fault.missing_ranks.is_empty() {
                        undelivered = Some(Cause::Undelivered {
                            call: Box::new(call.clone()),
                            ranks: fault.missing_ranks.clone(),
                        });
                    }
                }
                None => ranks.extend(of_processes.map(|(_, rank)| rank)),
            }
            // What ran into a time-out may be that they wait for each other, or for different things.
            mismatch()
                .or(undelivered)
                .unwrap_or_else(|| Cause::Missing {
                    call: fault.call.clone().map(Box::new),
                    window: fault.window,
                    ranks,
                    circle: evidence.circle(),
                })
        }
        _ => Cause::Other,
    }
}

impl Diagnosis {
    /// Returns what is known of a rank.
    pub(super) fn rank(&self, rank: u32) -> Option<&Whereabouts> {
        self.ranks.get(rank as usize)
    }

    /// Returns whether a rank belongs to a process that wrote no record.
    pub(super) fn has_no_record(&self, rank: u32) -> bool {
        self.rank(rank)
            .is_some_and(|rank| matches!(rank.state, RankState::NoRecord(_)))
    }
}
