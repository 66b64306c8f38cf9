//! Promises about workspaces, against simulated GPUs: descriptors, sockets and pages are real.

use super::os::{self, Mailbox, NOTE, Page, Sender};
use super::segment::{Offer, Segment};
use crate::device::Address;
use crate::nccl::fake::Fake;
use crate::nccl::op::Op;
use crate::streams::machine::Machine;
use crate::streams::tests::{
    How, Made, Ranked, SOON, What, assert_nothing_is_open, await_fault, on_ranks, open, ranks,
    run_all,
};
use burn_dist_comm::{CommError, Communicator, Group, Lane, lock};
use burn_dist_mesh::Rank;
use conformance::PATIENT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn group(ranks: &[u32]) -> Group {
    Group::new(ranks.iter().copied().map(Rank).collect()).expect("ranks")
}

#[test]
fn workspaces_give_the_bits_of_the_definition_and_sums_stay_with_nccl() {
    for seed in 0..6 {
        for (num, in_process) in [(2, 1), (3, 1), (4, 2)] {
            // Calls of one round and of many, whose pieces end where slots do and elsewhere.
            for slot in [1, 7, 16, 1000] {
                let fake = Fake::on(Machine::new(seed));
                run_all(&fake, num, How::Workspace { in_process, slot });
                let calls = fake.calls_of(0);
                let issued: Vec<_> = calls
                    .iter()
                    .filter(|call| call.starts_with("nccl"))
                    .collect();
                assert_eq!(issued, ["ncclAllReduce U8 x 9"], "seed {seed}, {num} ranks");
            }
        }
    }
}

/// Groups of a lane share a workspace: who reads a slot may be in another group than who read it before.
#[test]
fn groups_take_turns_with_the_slots_of_a_lane() {
    let groups = [[0, 1].as_slice(), &[0, 2], &[2, 1], &[1, 0, 2]].map(group);
    for seed in 0..20 {
        let fake = Fake::on(Machine::new(seed));
        let how = How::Workspace {
            in_process: 1,
            slot: 10,
        };
        on_ranks(ranks(&fake, 3, PATIENT, how), |rank| {
            let (held, mut found) = (Arc::<AtomicUsize>::default(), Vec::new());
            for number in 0..24 {
                let group = &groups[(number * 7 + number / 4 + seed) as usize % groups.len()];
                let Some(member) = group.member(rank.comm.rank()) else {
                    continue;
                };
                let sizes = (0..group.len()).map(|of| (of * 5 + number as usize * 3) % 31);
                let what = match number % 3 {
                    0 => What::Gather(sizes.collect()),
                    _ => What::Shift(1, sizes.collect()),
                };
                let made = rank.launch(group, (&what, number), &open(), true);
                let read = made.and_then(|made| rank.exit(made, &held));
                let read = read.unwrap_or_else(|error| panic!("{what:?}: {error}"));
                found.push((group, member, what, number, read));
            }
            rank.land().expect("all are there");
            for (group, member, what, number, found) in found {
                let expected = what.expected(group.len(), member, number);
                assert_eq!(*lock(&found), expected, "seed {seed}: {what:?}");
            }
        });
        assert_nothing_is_open(&fake);
    }
}

fn shift(rank: &Ranked, world: &Group, number: u64) -> Result<Made, CommError> {
    let what = What::Shift(1, vec![40; world.len()]);
    rank.launch(world, (&what, number), &open(), true)
}

/// The segment of the ranks' first lane.
fn segment(rank: &Ranked, world: &Group) -> Arc<Segment> {
    let channels = lock(&rank.channels);
    let links = channels.channels[&(world.clone(), Lane(0))].links.as_ref();
    Arc::clone(&links.expect("a call has linked them").segment)
}

/// Bytes that a process lets through which has abandoned the group are not handed out, also where its fault comes late.
#[test]
fn a_process_that_gives_up_is_seen_before_its_fault_is() {
    for is_notified in [true, false] {
        let fake = Fake::on(Machine::new(1));
        let world = group(&[0, 1]);
        let timeout = Duration::from_millis(300);
        let (held, has_abandoned) = (Arc::default(), AtomicBool::new(false));
        let have_landed = std::sync::Barrier::new(2);
        on_ranks(ranks(&fake, 2, timeout, How::APART), |rank| {
            let made = shift(rank, &world, 0).expect("both are there");
            rank.exit(made, &held).expect("nothing has failed");
            rank.land().expect("both are there");
            have_landed.wait();
            if rank.comm.rank() == Rank(1) {
                // The other one may be notified later.
                segment(rank, &world).give_up();
                has_abandoned.store(true, Ordering::SeqCst);
                if is_notified {
                    std::thread::sleep(timeout / 3);
                    rank.comm.abort(CommError::EmptyGroup);
                }
                return;
            }
            while !has_abandoned.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let error = rank.land().expect_err("a process has given up").to_string();
            match is_notified {
                true => assert!(error.contains("process 1 (ranks [1], "), "{error}"),
                false => assert!(error.contains("another process has given it up"), "{error}"),
            }
        });
        assert_nothing_is_open(&fake);
    }
}

/// A process is gone, and with it the streams of its rank: words that they would have set stay as they are. It goes
/// while others wait for it on their hosts, or on their devices.
#[test]
fn streams_that_wait_for_a_process_which_is_gone_come_to_their_end() {
    conformance::side_by_side(0..4, |at| {
        let fake = Fake::on(Machine::new(at));
        let world = group(&[0, 1, 2]);
        let timeout = Duration::from_millis(500);
        let start = Instant::now();
        let found = on_ranks(ranks(&fake, 3, timeout, How::APART), |rank| {
            let held = Arc::default();
            for number in 0..=at {
                if rank.comm.rank() == Rank(2) && number == at {
                    let streams = rank.gpu.streams();
                    lock(&fake.machine().stuck).extend(streams);
                }
                let made = shift(rank, &world, number);
                let exits = made.and_then(|made| rank.exit(made, &held));
                if exits.is_err() {
                    break;
                }
            }
            let fault = await_fault(rank);
            let is_free = lock(&rank.channels).abort();
            assert_eq!(is_free, rank.comm.rank() != Rank(2), "{fault}");
            fault.to_string()
        });
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        for fault in found {
            assert!(fault.contains("rank "), "{fault}");
        }
    });
}

#[test]
fn members_that_do_not_come_are_named_across_processes() {
    let fake = Fake::on(Machine::new(3));
    let world = group(&[0, 1, 2]);
    let found = on_ranks(
        ranks(&fake, 3, Duration::from_millis(500), How::APART),
        |rank| {
            let held = Arc::default();
            let calls = if rank.comm.rank() == Rank(1) { 2 } else { 6 };
            for number in 0..calls {
                let made = shift(rank, &world, number);
                if let Err(error) = made.and_then(|made| rank.exit(made, &held)) {
                    rank.comm.abort(error);
                    break;
                }
            }
            let fault = await_fault(rank);
            assert!(lock(&rank.channels).abort());
            fault.to_string()
        },
    );
    for fault in found {
        assert!(
            fault.contains("ranks [1] have not made this call"),
            "{fault}"
        );
    }
    assert_nothing_is_open(&fake);
}

#[test]
fn offers_arrive_as_they_were() {
    let (fake, group) = (Fake::new(), group(&[4, 9]));
    let gpu = fake.machine().gpu(0);
    crate::device::Gpu::attach(&*gpu).expect("a device");
    let memory = os::memory(Segment::bytes(2)).expect("memory");
    let views = [0, 1].map(|_| Segment::map(&memory, &group, &*gpu).expect("a page"));
    let recv = Address(0);
    let ops = vec![
        Op::AllGather {
            send: Address(1 << 40),
            recv,
            count: 5 << 33,
        },
        Op::Broadcast {
            send: Address(7),
            recv,
            count: 1,
            root: 1,
        },
        Op::Send {
            send: Address(0),
            count: 3,
            to: 1,
        },
        Op::Recv {
            recv,
            count: 2,
            from: 1,
        },
    ];
    let offer = Offer { slot: 3, ops };
    for (member, empty) in [(0, false), (1, true)] {
        let mut offer = offer.clone();
        if empty {
            offer.ops.clear();
        }
        views[0].offer(member, &offer).expect("room");
        assert_eq!(views[1].offer_of(member), Ok(offer));
    }
    let many = Offer {
        slot: 0,
        ops: vec![offer.ops[2]; 100],
    };
    let error = views[0].offer(0, &many).expect_err("no room");
    assert!(
        error.contains("100 operations where there is room for 8"),
        "{error}"
    );
    assert_eq!(views[1].offer_of(0), Ok(offer), "nothing was written");
    let sum = Op::AllReduce {
        send: Address(0),
        recv,
        count: 1,
        fold: crate::nccl::op::Fold::Sum,
    };
    let error = views[0].offer(
        0,
        &Offer {
            slot: 0,
            ops: vec![sum],
        },
    );
    assert_eq!(error, Err("ncclAllReduce is no copy".into()));
}

/// The variable that makes a test the other process, with its name there.
const OTHER: &str = "BURN_DIST_TEST_OTHER_PROCESS";

/// Memory and words are shared by processes, and stay when one of them is killed.
#[test]
fn processes_share_memory_that_outlives_either() {
    const BYTES: usize = 4096;
    let name: [u8; 16] = std::array::from_fn(|at| (std::process::id() >> (at % 4 * 8)) as u8);
    let mailbox = Mailbox::open(&name).expect("a name that nobody has");
    let taken = Mailbox::open(&name).err().expect("it is in use");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    assert!(mailbox.receive().expect("a mailbox").is_none());
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut other = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "symmetric::tests::other_process", "--ignored"])
        .env(OTHER, digits)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("another process");
    let start = Instant::now();
    let (note, mut descriptors) = loop {
        match mailbox.receive().expect("a mailbox") {
            Some(message) => break message,
            None => assert!(start.elapsed() < SOON, "the other one says nothing"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(note, [9; NOTE]);
    assert_eq!(descriptors.len(), 2);
    let pages = [(); 2].map(|()| {
        let memory = descriptors.remove(0);
        let error = Page::map(&memory, BYTES + 1).expect_err("less than that");
        assert!(
            error
                .to_string()
                .contains("4096 B where 4097 B are expected")
        );
        Page::map(&memory, BYTES).expect("as much as that")
    });
    assert_ne!(pages[0].number(), pages[1].number());
    assert_eq!(pages[1].words()[7].load(Ordering::Acquire), 77);
    // The other one waits for this, answers, and waits to be killed.
    pages[0].words()[0].store(5, Ordering::Release);
    while pages[0].words()[1].load(Ordering::Acquire) != 6 {
        assert!(
            start.elapsed() < SOON,
            "the other one does not see what is written"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    other.kill().expect("it runs");
    other.wait().expect("it has ended");
    assert_eq!(pages[1].words()[7].load(Ordering::Acquire), 77);
    drop(mailbox);
    let page = os::memory(BYTES).expect("memory");
    let is_open = os::send(&name, &[0; NOTE], &[&page]).expect("nobody is no error");
    assert!(!is_open);
}

#[test]
#[ignore = "the other process of the test above, which starts it"]
fn other_process() {
    let Ok(digits) = std::env::var(OTHER) else {
        return;
    };
    let name: [u8; 16] = std::array::from_fn(|at| {
        u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits")
    });
    let memory = [(); 2].map(|()| os::memory(4096).expect("memory"));
    let pages = [0, 1].map(|at| Page::map(&memory[at], 4096).expect("a page"));
    pages[1].words()[7].store(77, Ordering::Release);
    let is_open = os::send(&name, &[9; NOTE], &[&memory[0], &memory[1]]);
    assert!(is_open.expect("a mailbox"));
    while pages[0].words()[0].load(Ordering::Acquire) != 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    pages[0].words()[1].store(6, Ordering::Release);
    std::thread::sleep(Duration::from_secs(60));
}

/// A member gives up, or its process is killed, between two steps of a message.
#[test]
fn messages_whose_other_end_has_ended_are_none() {
    let name: [u8; 16] = std::array::from_fn(|at| !((std::process::id() >> (at % 4 * 8)) as u8));
    let page = os::memory(4096).expect("memory");
    let mailbox = Mailbox::open(&name).expect("a name that nobody has");
    drop(Sender::connect(&name).expect("a mailbox"));
    assert!(mailbox.receive().expect("nothing was sent").is_none());
    let sender = Sender::connect(&name).expect("a mailbox").expect("open");
    drop(mailbox);
    let is_open = sender.send(&[0; NOTE], &[&page]);
    assert!(!is_open.expect("the other end says why it ended"));
    assert!(Sender::connect(&name).expect("a mailbox").is_none());
}

/// A mailbox that waits for another user's messages takes none of ours, as ours takes none of theirs.
#[test]
fn what_another_user_sends_is_dropped() {
    let name: [u8; 16] =
        std::array::from_fn(|at| (std::process::id() >> (at % 3 * 8)) as u8 ^ 0x55);
    let page = os::memory(4096).expect("memory");
    let mailbox = Mailbox::open(&name).expect("a name that nobody has");
    for (user, is_taken) in [(os::user() + 1, false), (os::user(), true)] {
        assert!(os::send(&name, &[7; NOTE], &[&page]).expect("a mailbox"));
        let received = mailbox.receive_from(user).expect("a mailbox");
        assert_eq!(received.is_some(), is_taken, "{user}");
    }
}

#[test]
fn a_machine_is_itself() {
    let found = [(); 2].map(|()| os::machine().expect("/proc"));
    assert_eq!(found[0], found[1]);
    assert_ne!(found[0], [0; 16]);
}
