//! Records of real faults on simulated processes, what the doctor says of them, and files that are no records.

use super::{Cause, DiagnosisError, LateHost, RankState, diagnose, parse, read};
use burn_dist_comm::flight::{CallRecord, FaultKind, FlightRecord};
use burn_dist_comm::{
    Block, Call, CommError, Communicator, FlightOptions, Group, LocalComm, LocalHub, LocalOptions,
    World,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A folder of its own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("burn-dist-tests-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Reads all records, in order of their processes.
    fn num_files(&self) -> usize {
        let files = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        // Until it is whole, a file has another extension.
        let is_whole = |file: &std::fs::DirEntry| file.path().extension() == Some("json".as_ref());
        files.filter(is_whole).count()
    }

    fn records(&self) -> Vec<FlightRecord> {
        let files = std::fs::read_dir(&self.0).expect("records were written");
        let mut records: Vec<FlightRecord> = files
            .map(|file| read(&file.unwrap().path()).expect("a record"))
            .collect();
        records.sort_by_key(|record| record.process);
        records
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(folder: &Folder, timeout: Duration) -> LocalOptions {
    LocalOptions {
        timeout,
        flight: Some(FlightOptions {
            folder: folder.0.clone(),
            mesh: "fsdp=4".into(),
            mesh_number: 0,
        }),
        ..LocalOptions::default()
    }
}

const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_millis(400);

fn sum(group: &Group, num: usize, module: &str) -> Call {
    let block = Block::from(vec![1.0_f32; num]);
    Call::all_reduce(group, DType::F32, ReduceOp::Sum, block).labelled(module)
}

/// Runs `body` on four ranks of `processes` simulated processes and returns what they leave.
fn fault(
    processes: usize,
    timeout: Duration,
    body: impl Fn(LocalComm) -> Result<(), CommError> + Sync,
) -> Vec<FlightRecord> {
    let folder = Folder::new();
    let worlds = World::simulated(processes);
    let connect = |world: &World| world.connect(4, options(&folder, timeout)).unwrap();
    let ranks: Vec<LocalComm> = match processes {
        1 => LocalHub::connect(4, options(&folder, timeout)).unwrap(),
        _ => worlds.iter().flat_map(connect).collect(),
    };
    let body = &body;
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let _ = body(comm);
            });
        }
    });
    // A process writes its record beside the ranks that have seen the fault.
    let start = Instant::now();
    while folder.num_files() < processes && start.elapsed() < PATIENT {
        std::thread::sleep(Duration::from_millis(1));
    }
    folder.records()
}

/// The text of a diagnosis, with what differs from run to run taken out.
fn text_of(records: &[FlightRecord]) -> String {
    let pid = std::process::id().to_string();
    let host = records[0].processes[0].host.clone();
    let text = diagnose(records).expect("a diagnosis").to_string();
    let text = text
        .replace(&format!("host {host}"), "host H")
        .replace(&format!("pid {pid}"), "pid P");
    let text = text.replace(&format!("Ask {host} why"), "Ask H why");
    // Times.
    let mut words = Vec::new();
    for line in text.lines() {
        let mut out: Vec<String> = Vec::new();
        for word in line.split(' ') {
            let bare = word.trim_end_matches([',', '.', ':', ';']);
            let is_unit = ["us", "ms", "s"].contains(&bare);
            let is_clock =
                word.len() == 8 && word.bytes().filter(|byte| *byte == b':').count() == 2;
            match out.last_mut() {
                Some(last) if is_unit && last.starts_with(|c: char| c.is_ascii_digit()) => {
                    *last = "T".into()
                }
                _ => {}
            }
            out.push(if is_clock { "T".into() } else { word.into() });
        }
        words.push(out.join(" ").replace("T us", "T s").replace("T ms", "T s"));
    }
    words.join("\n")
}

/// Rank 2 does something else than the others after three calls that all make.
fn after_three(comm: &LocalComm, world: &Group) -> Result<(), CommError> {
    for layer in 0..3 {
        comm.run(sum(world, 8, &format!("layers.{layer}.wo")))?;
    }
    Ok(())
}

#[test]
fn a_failed_operation_is_named_first() {
    let world = Group::world(4).unwrap();
    let records = fault(2, PATIENT, |comm| {
        after_three(&comm, &world)?;
        if comm.rank() == Rank(2) {
            comm.abort(CommError::Aborted {
                rank: Rank(2),
                what: "select(f32 [8, 6], i32 [4])".into(),
                label: "embedding".into(),
                reason: "index 800 is out of range".into(),
            });
        }
        comm.run(sum(&world, 8, "layers.3.wo")).map(|_| ())
    });
    assert_eq!(records.len(), 2);
    let diagnosis = diagnose(&records).unwrap();
    assert_eq!(diagnosis.cause, Cause::Failed { rank: Some(2) });
    assert_eq!((diagnosis.witness, diagnosis.absent.len()), (1, 0));
    let text = text_of(&records);
    for part in [
        "T UTC: Rank 2 (process 1, host H, pid P) failed, which stopped all others.",
        "select(f32 [8, 6], i32 [4]) failed (embedding): index 800 is out of range",
        "rank 2 (process 1, host H, pid P): failed; its last call was all_reduce sum f32 x 8 (call 2 on group [0, 1, \
         2, 3] lane 0, layers.2.wo)",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn mismatched_calls_stand_side_by_side() {
    for processes in [1, 2, 4] {
        let world = Group::world(4).unwrap();
        let records = fault(processes, PATIENT, |comm| {
            after_three(&comm, &world)?;
            let (num, module) = match comm.rank().0 {
                3 => (9, "layers.3.w1"),
                _ => (8, "layers.3.wo"),
            };
            comm.run(sum(&world, num, module)).map(|_| ())
        });
        let diagnosis = diagnose(&records).unwrap();
        let Cause::Mismatch {
            first, second_text, ..
        } = &diagnosis.cause
        else {
            panic!("{processes}: {diagnosis:?}");
        };
        assert_eq!(first.sequence, 3);
        let both = format!("{first} {second_text}");
        assert!(
            both.contains("f32 x 8 ") && both.contains("f32 x 9 "),
            "{both}"
        );
        let text = text_of(&records);
        for part in [
            "two ranks made different calls",
            "layers.3.wo",
            "layers.3.w1",
            "What to do",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// Rank 3 has a process of its own, stays away, and leaves no record, as one that is killed.
fn without_rank_three() -> Vec<FlightRecord> {
    let world = Group::world(4).unwrap();
    let mut records = fault(4, IMPATIENT, |comm| {
        after_three(&comm, &world)?;
        if comm.rank() == Rank(3) {
            while comm.fault().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        comm.run(sum(&world, 8, "layers.3.wo")).map(|_| ())
    });
    records.retain(|record| record.process != 3);
    records
}

#[test]
fn who_is_missing_and_wrote_no_record_is_named() {
    let records = without_rank_three();
    let diagnosis = diagnose(&records).unwrap();
    assert_eq!(diagnosis.absent, [3]);
    let Cause::Missing { call, ranks, .. } = &diagnosis.cause else {
        panic!("{diagnosis:?}");
    };
    assert_eq!(
        (call.as_ref().map(|call| call.sequence), ranks.as_slice()),
        (Some(3), &[3][..])
    );
    let RankState::NoRecord(Some(last)) = &diagnosis.ranks[3].state else {
        panic!("{diagnosis:?}");
    };
    assert_eq!((last.sequence, last.module.as_str()), (2, "layers.2.wo"));
    let text = text_of(&records);
    for part in [
        "waited in vain in all_reduce sum f32 x 8 (call 3 on group [0, 1, 2, 3] lane 0, layers.3.wo)",
        "Rank 3 (process 3, host H, pid P) wrote no record: it was killed, hangs, or is cut off; its peers last saw it \
         at all_reduce sum f32 x 8 (call 2 on group",
        "No record of process 3, host H, pid P.",
        "rank 0 (process 0, host H, pid P): waited for T s in all_reduce sum f32 x 8 (call 3",
        "`ps -o pid,stat",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_slow_rank_is_no_dead_one() {
    for processes in [1, 2] {
        let world = Group::world(4).unwrap();
        let records = fault(processes, IMPATIENT, |comm| {
            after_three(&comm, &world)?;
            if comm.rank() == Rank(1) {
                while comm.fault().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            comm.run(sum(&world, 8, "layers.3.wo")).map(|_| ())
        });
        let diagnosis = diagnose(&records).unwrap();
        let text = text_of(&records);
        let Cause::Missing { ranks, .. } = &diagnosis.cause else {
            panic!("{processes}: {text}");
        };
        assert_eq!(ranks, &[1], "{processes}: {text}");
        for part in [
            "Rank 1 (process 0, host H, pid P) was alive and in no call for T s",
            "They were slow, not gone",
        ] {
            assert!(text.contains(part), "{processes}: {text}");
        }
    }
}

#[test]
fn what_was_sent_and_has_not_arrived_is_the_network() {
    let pair = Group::new([0, 2].map(Rank).to_vec()).unwrap();
    let mut records = fault(2, IMPATIENT, |comm| match comm.rank().0 {
        0 => comm.run(sum(&pair, 8, "layers.3.wo")).map(|_| ()),
        2 => {
            while comm.fault().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }
        _ => Ok(()),
    });
    let all = || records.iter().flat_map(|record| &record.ranks);
    let made = all().find(|record| record.rank == 0).unwrap().calls[0].clone();
    // As if rank 2 had made that call too, and gone on to the next, in which it waits for rank 0.
    let next = CallRecord {
        sequence: made.sequence + 1,
        rank: 2,
        awaited: vec![0],
        ..made.clone()
    };
    let done = CallRecord {
        rank: 2,
        elapsed_us: Some(1),
        awaited: Vec::new(),
        ..made
    };
    for record in records.iter_mut().flat_map(|record| &mut record.ranks) {
        if record.rank == 2 {
            record.calls = vec![done.clone(), next.clone()];
        }
    }
    let diagnosis = diagnose(&records).unwrap();
    let Cause::Undelivered { ranks, .. } = &diagnosis.cause else {
        panic!("{diagnosis:?}");
    };
    assert_eq!(ranks, &[2]);
    let text = text_of(&records);
    for part in [
        "Rank 2 (process 1, host H, pid P) had made that call: what was sent has not arrived.",
        "Look at the network between the hosts",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn ranks_that_wait_for_each_other_are_shown_as_a_circle() {
    let [left, right] = [[0, 1], [1, 0]].map(|pair| Group::new(pair.map(Rank).to_vec()).unwrap());
    let records = fault(1, IMPATIENT, |comm| {
        // Two groups of the same ranks, in two orders.
        let (first, second) = match comm.rank().0 {
            0 => (&left, &right),
            1 => (&right, &left),
            _ => return Ok(()),
        };
        comm.run(sum(first, 8, "a"))?;
        comm.run(sum(second, 8, "b")).map(|_| ())
    });
    let diagnosis = diagnose(&records).unwrap();
    let Cause::Missing {
        circle: Some(circle),
        ..
    } = &diagnosis.cause
    else {
        panic!("{diagnosis:?}");
    };
    assert_eq!(circle.len(), 2);
    let text = text_of(&records);
    assert!(text.contains("They wait for each other: rank "), "{text}");
}

#[test]
fn a_rank_that_leaves_is_named() {
    let world = Group::world(4).unwrap();
    let records = fault(2, PATIENT, |comm| {
        after_three(&comm, &world)?;
        if comm.rank() == Rank(1) {
            return Ok(());
        }
        comm.run(sum(&world, 8, "layers.3.wo")).map(|_| ())
    });
    let diagnosis = diagnose(&records).unwrap();
    assert!(
        matches!(diagnosis.cause, Cause::Left { rank: Some(1), .. }),
        "{diagnosis:?}"
    );
    let text = text_of(&records);
    assert!(
        text.contains("Rank 1 (process 0, host H, pid P) left while others waited for it."),
        "{text}"
    );
}

/// Rank 0 leaves after eight calls that all make.
fn eight_calls(comm: &LocalComm, world: &Group) -> Result<(), CommError> {
    for _ in 0..8 {
        comm.run(sum(world, 8, "layers.0.wo"))?;
    }
    if comm.rank() == Rank(0) {
        return Ok(());
    }
    comm.run(sum(world, 8, "layers.1.wo")).map(|_| ())
}

#[test]
fn stragglers_are_found() {
    let world = Group::world(4).unwrap();
    let mut records = fault(1, PATIENT, |comm| eight_calls(&comm, &world));
    // As if rank 2 had been late: the machine that runs this may be busy.
    for rank in &mut records[0].ranks {
        for call in &mut rank.calls {
            call.started_us = 1_000_000 * (call.sequence + 1) + 10 * u64::from(rank.rank);
            call.started_us += if rank.rank == 2 { 8_000 } else { 0 };
        }
    }
    let diagnosis = diagnose(&records).unwrap();
    let [straggler] = diagnosis.stragglers[..] else {
        panic!("{:?}", diagnosis.stragglers);
    };
    assert_eq!(
        (straggler.rank, straggler.late_us, straggler.num_calls),
        (2, 8_020, 8)
    );
    let text = text_of(&records);
    assert!(text.contains("Straggler: rank 2 (process 0"), "{text}");
}

/// Records of ranks 0 and 1 on host a, 2 and 3 on host b, each rank late in all its calls by so many microseconds.
fn on_two_hosts(late_us: [u64; 4]) -> Vec<FlightRecord> {
    let world = Group::world(4).unwrap();
    let mut records = fault(2, PATIENT, |comm| eight_calls(&comm, &world));
    for record in &mut records {
        record.processes[0].host = "a".into();
        record.processes[1].host = "b".into();
        for call in record.ranks.iter_mut().flat_map(|rank| &mut rank.calls) {
            call.started_us = 1_000_000 * (call.sequence + 1) + late_us[call.rank as usize];
        }
    }
    records
}

#[test]
fn a_clock_that_is_ahead_makes_nobody_a_straggler() {
    for (late_us, host) in [([0, 10, 5000, 5010], "b"), ([5000, 5010, 0, 10], "a")] {
        let records = on_two_hosts(late_us);
        let diagnosis = diagnose(&records).unwrap();
        assert!(diagnosis.stragglers.is_empty(), "{late_us:?}");
        let expected = LateHost {
            host: host.into(),
            late_us: 5000,
            num_calls: 8,
        };
        assert_eq!(diagnosis.late_hosts, [expected], "{late_us:?}");
        let text = diagnosis.to_string();
        let expected = format!(
            "All ranks of host {host} start their calls 5.0 ms later than those of others, over 8 calls: it is slow, \
             or its clock is ahead."
        );
        assert!(text.contains(&expected), "{text}");
    }
    // One that is late is found, whatever the clocks say.
    let diagnosis = diagnose(&on_two_hosts([0, 10, 5000, 13_000])).unwrap();
    let [straggler] = diagnosis.stragglers[..] else {
        panic!("{:?}", diagnosis.stragglers);
    };
    assert_eq!((straggler.rank, straggler.late_us), (3, 8000));
    // Clocks of one network differ by less than that.
    let diagnosis = diagnose(&on_two_hosts([0, 10, 900, 910])).unwrap();
    assert!(diagnosis.stragglers.is_empty() && diagnosis.late_hosts.is_empty());
}

#[test]
fn a_whole_report_reads_like_this() {
    let mut records = without_rank_three();
    // What differs from run to run: who gave up first, and how long others had waited then.
    for record in &mut records {
        record.written_us = 86_400_000_000 + u64::from(record.process);
        record.fault.kind = match record.process {
            0 => FaultKind::Timeout,
            _ => FaultKind::Relayed,
        };
        for call in record.ranks.iter_mut().flat_map(|rank| &mut rank.calls) {
            call.started_us = record.written_us - 400_000;
            if let Some(elapsed) = &mut call.elapsed_us {
                *elapsed = 1000 + call.sequence;
            }
            if call.elapsed_us.is_none() {
                call.awaited = vec![3];
                call.arrived = false;
            }
        }
    }
    let call = records[0].ranks[0].calls[3].clone();
    records[0].fault.text =
        format!("rank 0 called {call} gave up after 0.4 s: ranks [3] have not made this call");
    records[0].fault.call = Some(call);
    records[0].fault.missing_ranks = vec![3];
    insta::assert_snapshot!(text_of(&records));
}

#[test]
fn records_of_different_runs_are_refused() {
    let records = without_rank_three();
    let mut other = records[1].clone();
    other.mesh = "tp=4".into();
    let error = diagnose(&[records[0].clone(), other]).unwrap_err();
    assert!(
        error.to_string().contains("mesh fsdp=4") && error.to_string().contains("mesh tp=4"),
        "{error}"
    );
    // Hosts and process ids may be those of the run before: in a container they start alike.
    let mut stale = records[1].clone();
    stale.run = "0123456789abcdef".into();
    let error = diagnose(&[records[0].clone(), stale]).unwrap_err();
    let expected = format!(
        "run 0123456789abcdef (as process {} says)",
        records[1].process
    );
    assert!(error.to_string().contains(&expected), "{error}");
    let twice = diagnose(&[records[0].clone(), records[0].clone()]).unwrap_err();
    assert_eq!(twice, DiagnosisError::Twice { process: 0 });
}

#[test]
fn errors_of_files_say_what_is_wrong() {
    let folder = Folder::new();
    std::fs::create_dir_all(&folder.0).unwrap();
    let error_of = |content: &[u8]| {
        let path = folder.0.join("file.json");
        std::fs::write(&path, content).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("file.json"), "{error}");
        error
    };
    assert!(error_of(b"").contains("no flight record of burn-dist: EOF"));
    assert!(error_of(b"{\"format\": \"a cake\", \"version\": 1}").contains("\"a cake\""));
    assert!(
        error_of(b"{\"format\": \"burn-dist flight record\", \"version\": 7, \"crate_version\": \"9.0\"}")
            .contains("written by burn-dist 9.0")
    );
    let record = &without_rank_three()[0];
    assert_eq!(&parse(&record.to_json()).unwrap(), record);
    let mut wrong = record.clone();
    wrong.ranks[0].rank = 99;
    assert!(error_of(&wrong.to_json()).contains("none of its 4"));
    let json = record.to_json();
    assert!(error_of(&json[..json.len() / 2]).contains("EOF while parsing"));
    let missing = read(&folder.0.join("nothing.json")).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read "), "{missing}");
}

#[test]
fn no_record_is_no_second_fault() {
    // A folder that cannot be made: there is a file in its place.
    let folder = Folder::new();
    std::fs::write(&folder.0, b"in the way").unwrap();
    let ranks = LocalHub::connect(2, options(&folder, PATIENT)).unwrap();
    let fault = CommError::EmptyGroup;
    ranks[0].abort(fault.clone());
    assert_eq!(ranks[1].fault().unwrap().to_string(), fault.to_string());
    assert_eq!(ranks[1].hub().flight_record(), None);
    drop(ranks);
    std::fs::remove_file(&folder.0).unwrap();
}

#[test]
fn a_shift_that_a_rank_did_not_make_is_named() {
    for processes in [1, 2] {
        let records = fault(processes, IMPATIENT, |comm| {
            let ring = Group::world(4)?;
            let shift = |by| {
                let sizes = [40, 80, 120, 160];
                let mine = vec![0_u8; sizes[comm.rank().0 as usize]];
                let call = Call::shift(&ring, DType::U8, by, sizes, mine);
                comm.run(call.labelled("layers.2.attention"))
            };
            shift(-1)?;
            match comm.rank() {
                Rank(3) => loop {
                    if let Some(fault) = comm.fault() {
                        return Err(fault);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                },
                _ => shift(1).map(drop),
            }
        });
        let ranks: Vec<_> = records.iter().flat_map(|record| &record.ranks).collect();
        assert_eq!(ranks.len(), 4);
        for rank in ranks {
            // The block of the next one, and of the one before.
            let [next, before] = [[80, 120, 160, 40], [160, 40, 80, 120]];
            let [next, before] = [next, before].map(|bytes| bytes[rank.rank as usize]);
            let mut expected = vec![("shift", "shift u8 by -1 of [40, 80, 120, 160] B", next)];
            if rank.rank != 3 {
                expected.push(("shift", "shift u8 by 1 of [40, 80, 120, 160] B", before));
            }
            let calls = rank.calls.iter();
            let calls = calls.map(|call| (&call.kind[..], &call.what[..], call.bytes));
            assert_eq!(calls.collect::<Vec<_>>(), expected);
        }
        let text = text_of(&records);
        for part in [
            "shift u8 by 1 of [40, 80, 120, 160] B",
            "rank 3",
            "layers.2.attention",
        ] {
            assert!(text.contains(part), "{text} does not say {part}");
        }
    }
}

#[test]
fn the_record_keeps_the_last_calls_only() {
    let folder = Folder::new();
    let mut options = options(&folder, PATIENT);
    options.recorded_calls_max = 5;
    let comm = LocalHub::connect(1, options).unwrap().remove(0);
    let group = Group::world(1).unwrap();
    for _ in 0..12 {
        comm.run(sum(&group, 1, "")).unwrap();
    }
    comm.hub().begin_window(Rank(0), 41);
    comm.abort(CommError::EmptyGroup);
    assert!(comm.hub().flight_record().is_some());
    let record = folder.records().remove(0);
    let rank = &record.ranks[0];
    assert_eq!(
        (rank.num_calls, rank.calls.len(), rank.window),
        (12, 5, Some(41))
    );
    assert_eq!(rank.calls[4].sequence, 11);
    assert!(rank.calls.iter().all(|call| call.elapsed_us.is_some()));
}

/// A record, small enough to be damaged everywhere.
fn small() -> FlightRecord {
    let mut record = without_rank_three().remove(0);
    for rank in &mut record.ranks {
        rank.calls.truncate(2);
    }
    record
}

#[test]
fn a_cut_record_is_an_error_wherever_it_is_cut() {
    let json = small().to_json();
    for end in 0..json.len() {
        assert!(parse(&json[..end]).is_err(), "{end}");
    }
}

proptest! {
    #[test]
    fn anything_may_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn a_damaged_record_is_read_or_refused(at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..6)) {
        static JSON: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut json = JSON.get_or_init(|| small().to_json()).clone();
        let at = at.index(json.len());
        let end = (at + bytes.len()).min(json.len());
        json.splice(at..end, bytes);
        if let Ok(record) = parse(&json) {
            // Whatever it says now, a diagnosis of it can be printed.
            if let Ok(diagnosis) = diagnose(&[record]) {
                let _ = diagnosis.to_string();
            }
        }
    }

    #[test]
    fn wild_numbers_are_no_panic(times in proptest::collection::vec(any::<u64>(), 8), ranks in proptest::collection::vec(0_u32..4, 8)) {
        static RECORD: std::sync::OnceLock<FlightRecord> = std::sync::OnceLock::new();
        let mut record = RECORD.get_or_init(small).clone();
        record.written_us = times[0];
        record.fault.rank = Some(ranks[0]);
        record.fault.missing_ranks = ranks.clone();
        for (call, number) in record.ranks.iter_mut().flat_map(|rank| &mut rank.calls).zip(1..) {
            call.started_us = times[number % 8];
            call.elapsed_us = Some(times[(number + 1) % 8]).filter(|time| time % 3 > 0);
            call.group.clone_from(&ranks);
            call.awaited = ranks[..number % 8].to_vec();
            call.arrived = number % 2 == 0;
        }
        let _ = diagnose(&[record]).unwrap().to_string();
    }
}
