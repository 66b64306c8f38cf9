//! Promises about copies between GPUs, against simulated ones.

use super::choice::{Card, Reason, Route, route};
use super::copies::{Piece, pieces, readers};
use crate::device::Address;
use crate::nccl::collectives;
use crate::nccl::fake::Fake;
use crate::nccl::op::{Element, Op};
use crate::streams::machine::Machine;
use crate::streams::tests::{How, What, assert_nothing_is_open, on_ranks, open, ranks, run_all};
use burn_dist_comm::{Group, lock};
use conformance::PATIENT;
use proptest::prelude::*;
use std::sync::Arc;

const AT: Address = Address(1000);
const INTO: Address = Address(5000);

fn card(process: u8, gpu: u8, reachable: Option<&[u8]>) -> Card {
    Card {
        group: [9; 16],
        process: [process; 16],
        gpu: [gpu; 16],
        reachable: reachable.map(|gpus| gpus.iter().map(|gpu| [*gpu; 16]).collect()),
        machine: None,
    }
}

#[test]
fn groups_copy_within_a_process_where_every_gpu_reads_every_other() {
    let all = [
        card(1, 1, Some(&[2, 3])),
        card(1, 2, Some(&[1, 3])),
        card(1, 3, Some(&[1, 2])),
    ];
    assert_eq!(route(&all), Route::Copies);
    for (changed, reason) in [
        (card(1, 3, None), Reason::Asked),
        (card(2, 3, Some(&[1, 2])), Reason::Processes),
        (card(1, 3, Some(&[1])), Reason::Unreachable),
        // It reads the others, which do not read it.
        (card(1, 4, Some(&[1, 2])), Reason::Unreachable),
    ] {
        for place in 0..3 {
            let mut cards = all[..2].to_vec();
            cards.insert(place, changed.clone());
            assert_eq!(route(&cards), Route::Nccl(reason), "{changed:?} at {place}");
        }
    }
    assert_eq!(Route::Copies.to_string(), "copies over peer access");
}

#[test]
fn groups_of_several_processes_copy_where_all_share_memory_on_one_machine() {
    let on = |machine: u8, process, gpu, reachable| Card {
        machine: Some([machine; 16]),
        ..card(process, gpu, reachable)
    };
    let all = [
        on(1, 1, 1, Some(&[2, 3][..])),
        on(1, 2, 2, Some(&[1, 3])),
        on(1, 2, 3, Some(&[1, 2])),
    ];
    assert_eq!(route(&all), Route::Workspace);
    // Within a process it takes no workspace.
    assert_eq!(route(&all[1..]), Route::Copies);
    for (changed, reason) in [
        (card(2, 3, Some(&[1, 2])), Reason::Processes),
        (on(2, 2, 3, Some(&[1, 2])), Reason::Machines),
        (on(1, 2, 3, Some(&[1])), Reason::Unreachable),
        (on(1, 2, 3, None), Reason::Asked),
    ] {
        for place in 0..3 {
            let mut cards = all[..2].to_vec();
            cards.insert(place, changed.clone());
            assert_eq!(route(&cards), Route::Nccl(reason), "{changed:?} at {place}");
        }
    }
}

proptest! {
    #[test]
    fn cards_arrive_as_they_were(
        ids in any::<[[u8; 16]; 3]>(),
        reachable in proptest::option::of(proptest::collection::vec(any::<[u8; 16]>(), 0..=32)),
        machine in proptest::option::of(any::<[u8; 16]>()),
    ) {
        let [group, process, gpu] = ids;
        let card = Card { group, process, gpu, reachable, machine };
        let bytes = card.to_bytes();
        prop_assert_eq!(bytes.len(), Card::BYTES);
        prop_assert_eq!(Card::of_bytes(&bytes), Some(card));
    }
}

#[test]
fn what_is_no_card_is_not_read() {
    assert_eq!(Card::of_bytes(&[0; 20]), None);
    let mut longer = card(1, 1, Some(&[])).to_bytes();
    longer[66] = u8::MAX;
    assert_eq!(Card::of_bytes(&longer), None);
}

#[test]
fn pieces_are_read_where_the_others_have_them() {
    let at = |member: usize| Address(AT.0 + 100 * member as u64);
    let of = |member: usize, sizes: &[usize]| {
        let sizes: Vec<usize> = sizes.to_vec();
        collectives::shift(at(member), INTO, &sizes, 1, member)
    };
    let sizes = [2, 0, 3];
    let all: Vec<Vec<Op>> = (0..3).map(|member| of(member, &sizes)).collect();
    let all: Vec<&[Op]> = all.iter().map(|ops| &ops[..]).collect();
    let piece = |from: usize, bytes| Piece {
        from,
        source: at(from),
        target: INTO,
        bytes,
    };
    let found = [0, 1, 2].map(|member| pieces(&all, member, 4).expect("they meet"));
    assert_eq!(found, [vec![piece(2, 12)], vec![piece(0, 8)], vec![]]);
    let found = [0, 1, 2].map(|member| readers(&all, member).expect("they meet"));
    assert_eq!(found, [vec![1], vec![], vec![0]]);
}

#[test]
fn uneven_gathers_are_read_from_each_member() {
    let ops = [0, 1].map(|member| collectives::gather(AT, INTO, &[1, 2], member, Element::U8));
    let all = [&ops[0][..], &ops[1][..]];
    let piece = |from, target, bytes| Piece {
        from,
        source: AT,
        target,
        bytes,
    };
    let expected = [piece(0, INTO, 1), piece(1, INTO.plus(1), 2)];
    for member in [0, 1] {
        assert_eq!(pieces(&all, member, 1).expect("they meet"), expected);
    }
    // What lies in its place already stays there.
    let whole = collectives::gather(INTO.plus(1), INTO, &[1, 2], 1, Element::U8);
    let found = pieces(&[&ops[0], &whole], 1, 1).expect("they meet");
    assert_eq!(found, [piece(0, INTO, 1)]);
}

#[test]
fn operations_that_do_not_meet_are_named() {
    let send = |count, to| Op::Send {
        send: AT,
        count,
        to,
    };
    let recv = |count, from| Op::Recv {
        recv: INTO,
        count,
        from,
    };
    for (mine, theirs, reason) in [
        (recv(2, 1), vec![], "member 1 sends nothing to it"),
        (recv(2, 1), vec![send(2, 1)], "member 1 sends nothing to it"),
        (
            recv(2, 1),
            vec![send(3, 0)],
            "member 1 gives 3 elements, and 2 are expected",
        ),
    ] {
        let error = pieces(&[&[mine], &theirs], 0, 1).expect_err("they do not meet");
        assert_eq!(error, reason);
    }
    let gather = Op::AllGather {
        send: AT,
        recv: INTO,
        count: 1,
    };
    let error = pieces(&[&[gather], &[]], 0, 1).expect_err("they do not meet");
    assert_eq!(error, "member 1 does not gather");
}

#[test]
fn copies_give_the_bits_of_the_definition_and_sums_stay_with_nccl() {
    for seed in 0..12 {
        for num in [2, 3, 4] {
            let fake = Fake::on(Machine::new(seed));
            run_all(&fake, num, How::Copies);
            let calls = fake.calls_of(0);
            let issued = calls.iter().filter(|call| call.starts_with("nccl"));
            let issued: Vec<&String> = issued.collect();
            assert_eq!(issued, ["ncclAllReduce U8 x 9"], "seed {seed}, {num} ranks");
        }
    }
}

/// One member has ended when the other one still gives its stream waits for events of the last call.
#[test]
fn events_outlive_a_member_that_ends_first() {
    for slow in [0, 1] {
        let fake = Fake::on(Machine::new(0));
        *lock(&fake.machine().slow) = Some(("cuStreamWaitEvent", slow));
        let world = Group::world(2).expect("two ranks");
        on_ranks(ranks(&fake, 2, PATIENT, How::Copies), |rank| {
            let what = What::Shift(1, vec![8; 2]);
            let made = rank.launch(&world, (&what, 0), &open(), true);
            let made = made.expect("both are there");
            rank.exit(made, &Arc::default())
                .expect("nothing has failed");
            rank.land().expect("nothing has failed");
        });
        assert_nothing_is_open(&fake);
    }
}

#[test]
fn gpus_without_access_to_each_other_go_through_nccl() {
    let fake = Fake::on(Machine::new(0));
    lock(&fake.machine().apart).push([0, 1]);
    run_all(&fake, 3, How::Copies);
    let log = lock(&fake.machine().log);
    assert!(!log.iter().any(|call| call.contains("cuMemcpyDtoDAsync")));
    assert!(
        fake.calls_of(0)
            .iter()
            .any(|call| call.starts_with("ncclSend"))
    );
}
