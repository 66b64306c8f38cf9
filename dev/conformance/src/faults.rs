//! Promises about errors: nobody hangs, and everybody learns the same cause.

use super::{Connect, PATIENT, barrier, block, on_ranks};
use burn_dist_comm::{AllToAll, Call, Collective, CommError, Exchange, Group, Lane, Strided};
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::{BoolStore, DType};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Short: the tests that use it wait until it is over.
const IMPATIENT: Duration = Duration::from_millis(100);

fn sum(group: &Group, num: usize) -> Call {
    Call::all_reduce(group, DType::F32, ReduceOp::Sum, block(&vec![0; num * 4]))
}

/// All ranks of this process, if it has any, return the same text, which contains all of `parts`.
fn assert_same(errors: &[String], parts: &[&str]) {
    if errors.is_empty() {
        return;
    }
    // Who is notified by another process says so first.
    let own = |error: &'_ String| {
        error
            .split(" stopped all others: ")
            .last()
            .map(str::to_string)
    };
    for error in errors {
        assert_eq!(own(error), own(&errors[0]), "every rank tells the same");
    }
    for part in parts {
        assert!(
            errors[0].contains(part),
            "`{}` does not say `{part}`",
            errors[0]
        );
    }
}

pub(super) fn a_mismatch_names_both_calls_to_every_member(connect: Connect) {
    type Make = fn(&Group) -> Call;
    let pairs: [(Make, Make, &[&str]); 11] = [
        (
            |g| sum(g, 1024).labelled("layers.3.wo"),
            |g| {
                Call::all_gather(
                    g,
                    DType::F32,
                    Strided::flat(vec![4; g.len()]),
                    block(&[0; 4]),
                )
            },
            &[
                "called all_reduce sum f32 x 1024 (call 1 on group [0, 1, 2] lane 0, layers.3.wo)",
                "called all_gather f32",
            ],
        ),
        (|g| sum(g, 8), |g| sum(g, 9), &["f32 x 8 ", "f32 x 9 "]),
        (
            |g| sum(g, 8),
            |g| Call::all_reduce(g, DType::I32, ReduceOp::Sum, block(&[0; 32])),
            &["sum f32 x 8", "sum i32 x 8"],
        ),
        (
            |g| sum(g, 8),
            |g| Call::all_reduce(g, DType::F32, ReduceOp::Max, block(&[0; 32])),
            &["sum f32", "max f32"],
        ),
        (
            |g| sum(g, 8).labelled("a.b"),
            |g| sum(g, 8).labelled("a.c"),
            &["lane 0, a.b)", "lane 0, a.c)"],
        ),
        (
            |g| {
                Call::broadcast(
                    g,
                    DType::U8,
                    Rank(0),
                    4,
                    (g.len() == 9).then(|| block(&[0; 4])),
                )
            },
            |g| Call::broadcast(g, DType::U8, Rank(2), 4, None),
            &["from rank 0", "from rank 2"],
        ),
        (
            |g| Call::all_gather(g, DType::U8, Strided::flat(vec![1, 1, 2]), block(&[0; 1])),
            |g| Call::all_gather(g, DType::U8, Strided::flat(vec![1, 1, 3]), block(&[0; 1])),
            &["[1, 1, 2]", "[1, 1, 3]"],
        ),
        (
            |g| Call::shift(g, DType::U8, 1, vec![2; 3], block(&[0; 2])),
            |g| Call::shift(g, DType::U8, -1, vec![2; 3], block(&[0; 2])),
            &[
                "shift u8 by 1 of [2, 2, 2] B",
                "shift u8 by -1 of [2, 2, 2] B",
            ],
        ),
        (
            // Member 1 expects another size than member 0 sends.
            |g| Call::shift(g, DType::U8, 1, vec![3, 2, 2], block(&[0; 2])),
            |g| Call::shift(g, DType::U8, 1, vec![2, 2, 2], block(&[0; 2])),
            &["by 1 of [3, 2, 2] B", "by 1 of [2, 2, 2] B"],
        ),
        (
            |g| Call::shift(g, DType::U8, 1, vec![2; 3], block(&[0; 2])),
            |g| Call::shift(g, DType::I8, 1, vec![2; 3], block(&[0; 2])),
            &["shift u8 by 1", "shift i8 by 1"],
        ),
        (barrier, |g| sum(g, 1), &["all_gather u8", "all_reduce"]),
    ];
    for (first, second, parts) in pairs {
        let world = Group::world(3).unwrap();
        let errors = on_ranks(connect(3, PATIENT), |comm| {
            // Rank 2 never makes the call, but waits elsewhere: the first two find the mismatch, and it is notified as
            // well, maybe before it has seen the end of the barrier.
            let call = match comm.rank().0 {
                0 => second(&world),
                1 => first(&world),
                _ => barrier(&world).on_lane(Lane(7)),
            };
            let error = match comm.run(barrier(&world)) {
                Err(error) if comm.rank() == Rank(2) => error,
                met => {
                    met.unwrap();
                    comm.run(call).unwrap_err()
                }
            };
            assert!(matches!(error, CommError::Mismatch { .. }), "{error}");
            error.to_string()
        });
        assert_same(&errors, parts);
        assert_same(
            &errors,
            &[
                "rank 0 called",
                "rank 1 called",
                "same calls in the same order",
            ],
        );
    }
    // A collective where others exchange, and exchanges of different things.
    let world = Group::world(2).unwrap();
    for other in ["handles", "numbers"] {
        let errors = on_ranks(connect(2, PATIENT), |comm| {
            let what = if comm.rank() == Rank(0) {
                "handles"
            } else {
                other
            };
            let error = if comm.rank() == Rank(0) || other == "numbers" {
                comm.exchange(Exchange::new(&world, what), Arc::new(1))
                    .and_then(|pending| pending.wait().map(|_| ()))
                    .unwrap_err()
            } else {
                comm.run(barrier(&world)).unwrap_err()
            };
            error.to_string()
        });
        assert_same(&errors, &["exchange of handles", "same calls"]);
    }
    // The halves of a transfer.
    let pair = Group::world(2).unwrap();
    let errors = on_ranks(connect(2, PATIENT), |comm| {
        if comm.rank() == Rank(0) {
            let sent = comm.run(Call::send(&pair, DType::U8, block(&[1; 3])));
            let after = comm.run(barrier(&pair));
            sent.and(after).unwrap_err().to_string()
        } else {
            comm.run(Call::recv(&pair, DType::U8, 4))
                .unwrap_err()
                .to_string()
        }
    });
    assert_same(&errors, &["send u8 x 3", "recv u8 x 4"]);
}

pub(super) fn a_late_rank_is_named(connect: Connect) {
    type Make = fn(&Group) -> Call;
    let calls: [(Make, &str); 2] = [
        (|g| sum(g, 4), "all_reduce sum f32 x 4"),
        (
            // Whoever sends to the late one waits for it too.
            |g| Call::shift(g, DType::F32, 1, vec![4; 3], block(&[0; 4])),
            "shift f32 by 1 of [4, 4, 4] B",
        ),
    ];
    for (make, what) in calls {
        let world = Group::world(3).unwrap();
        let (started, given_up) = (Barrier::new(2), Barrier::new(3));
        let errors = on_ranks(connect(3, IMPATIENT), |comm| {
            if comm.rank() == Rank(1) {
                // Alive, but busy elsewhere until the others have stopped waiting.
                given_up.wait();
                return comm.run(barrier(&world)).unwrap_err().to_string();
            }
            let pending = comm.start(make(&world).labelled("head")).unwrap();
            started.wait();
            let error = pending.wait().unwrap_err();
            assert!(
                matches!(&error, CommError::Timeout { missing, .. } if *missing == [Rank(1)]),
                "{error}"
            );
            given_up.wait();
            error.to_string()
        });
        assert_same(
            &errors,
            &[
                &format!("called {what} (call 0 on group [0, 1, 2] lane 0, head)"),
                "ranks [1] have not made this call",
            ],
        );
    }
}

pub(super) fn an_abort_reaches_who_waits_and_who_comes_later(connect: Connect) {
    let world = Group::world(3).unwrap();
    let errors = on_ranks(connect(3, PATIENT), |comm| {
        if comm.rank() == Rank(2) {
            comm.abort(CommError::Aborted {
                rank: Rank(2),
                what: "matmul".into(),
                label: "layers.1.w2".into(),
                reason: "out of memory".into(),
            });
        }
        let first = comm.run(barrier(&world)).unwrap_err().to_string();
        let later = comm.run(sum(&world, 4)).unwrap_err().to_string();
        assert_eq!(first, later);
        assert_eq!(comm.fault().unwrap().to_string(), first);
        first
    });
    assert_same(
        &errors,
        &["rank 2 stopped all ranks: matmul failed (layers.1.w2): out of memory"],
    );
}

pub(super) fn a_rank_that_leaves_is_named_at_once(connect: Connect) {
    for num_before in [0, 1] {
        let world = Group::world(3).unwrap();
        let errors = on_ranks(connect(3, PATIENT), |comm| {
            let before = (0..num_before).try_for_each(|_| {
                let met = comm.run(barrier(&world));
                met.map(drop)
            });
            if comm.rank() == Rank(1) {
                before.unwrap();
                return None;
            }
            // The other one may find that it has left while this one still wakes up behind the barrier.
            let after = before.and_then(|()| comm.run(sum(&world, 4)).map(drop));
            let error = after.unwrap_err();
            assert!(
                matches!(error, CommError::RankLeft { rank: Rank(1), .. }),
                "{error}"
            );
            Some(error.to_string())
        });
        let errors: Vec<String> = errors.into_iter().flatten().collect();
        assert_eq!(errors.len(), 2);
        assert_same(&errors, &["rank 1 has left", "called all_reduce"]);
    }
    // Leaving after the last call hurts nobody, also with a call in flight.
    let world = Group::world(2).unwrap();
    on_ranks(connect(2, PATIENT), |comm| {
        let pending = comm.start(sum(&world, 100_000)).unwrap();
        drop(comm);
        assert_eq!(pending.wait().unwrap().len(), 400_000);
    });
}

pub(super) fn the_first_error_wins(connect: Connect) {
    let world = Group::world(2).unwrap();
    let abort = |reason: &str| CommError::Aborted {
        rank: Rank(0),
        what: "op".into(),
        label: "".into(),
        reason: reason.into(),
    };
    on_ranks(connect(2, PATIENT), |comm| {
        if comm.rank() == Rank(0) {
            comm.abort(abort("first"));
            comm.abort(abort("second"));
        }
        assert!(
            comm.run(barrier(&world))
                .unwrap_err()
                .to_string()
                .ends_with("first")
        );
    });
}

pub(super) fn a_call_that_contradicts_itself_says_why(connect: Connect) {
    type Make = fn(&Group) -> Call;
    let calls: [(Make, &str); 17] = [
        (
            |g| Call::all_gather(g, DType::U8, Strided::flat(vec![4, 4]), block(&[0; 3])),
            "input has 3 bytes instead of 4",
        ),
        (
            |g| Call::all_gather(g, DType::U8, Strided::flat(vec![3]), block(&[0; 3])),
            "lists 1 sizes for 2 members",
        ),
        (
            |g| {
                Call::reduce_scatter(
                    g,
                    DType::F32,
                    ReduceOp::Sum,
                    Strided::flat(vec![4, 2]),
                    block(&[0; 6]),
                )
            },
            "a part of 2 bytes is no whole number of f32 elements",
        ),
        (
            |g| Call::all_reduce(g, DType::F64, ReduceOp::Sum, block(&[0; 12])),
            "12 bytes is no whole number of f64",
        ),
        (
            |g| {
                Call::new(
                    g,
                    DType::F32,
                    Collective::AllReduce {
                        op: ReduceOp::Sum,
                        bytes: 4,
                    },
                    None,
                )
            },
            "no input; this member gives 4",
        ),
        (
            |g| Call::broadcast(g, DType::F32, Rank(5), 4, None),
            "rank 5, is no member",
        ),
        (
            |g| Call::broadcast(g, DType::F32, Rank(1), 4, Some(block(&[0; 4]))),
            "this member gives none",
        ),
        (
            |g| Call::shift(g, DType::F32, -6, vec![4, 4], block(&[0; 4])),
            "shift f32 by -6 of [4, 4] B (call 0 on group [0, 1] lane 0) is not possible: by -6 places along 2 \
             members, a multiple of 2, every member would get its own block back; keep the block, or shift by a number \
             that is no multiple of 2",
        ),
        (
            |g| Call::shift(g, DType::F32, 0, vec![4, 4], block(&[0; 4])),
            "by 0 places along 2 members, a multiple of 2",
        ),
        (
            |_| {
                let alone = Group::new(vec![Rank(0)]).unwrap();
                Call::shift(&alone, DType::F32, 1, vec![4], block(&[0; 4]))
            },
            "the only member of a group would get its own block back; keep the block, or shift along a group of \
             several ranks",
        ),
        (
            |g| Call::shift(g, DType::F32, 1, vec![4, 4, 4], block(&[0; 4])),
            "the list of blocks lists 3 sizes for 2 members",
        ),
        (
            |g| Call::shift(g, DType::F32, 1, vec![4, 8], block(&[0; 8])),
            "input has 8 bytes instead of 4",
        ),
        (
            |g| {
                let sizes = vec![4, 8].into();
                Call::new(g, DType::F32, Collective::Shift { by: 1, sizes }, None)
            },
            "no input; this member gives 4",
        ),
        (
            |g| Call::recv(g, DType::F32, 4),
            "only the second rank of a pair receives",
        ),
        (
            |g| {
                let sizes: Arc<[usize]> = vec![1, 1].into();
                let pieces = AllToAll {
                    shape: vec![2, 3].into(),
                    split: (0, sizes.clone()),
                    concat: (1, sizes),
                    elem_bytes: 1,
                };
                Call::all_to_all(g, DType::U8, pieces, block(&[0; 2]))
            },
            "of dim 1 sum to 2, but the shape is [2, 3]",
        ),
        (
            |g| {
                let sizes: Arc<[usize]> = vec![1, 1].into();
                let pieces = AllToAll {
                    shape: vec![2].into(),
                    split: (0, sizes.clone()),
                    concat: (0, sizes),
                    elem_bytes: 1,
                };
                Call::all_to_all(g, DType::U8, pieces, block(&[0; 1]))
            },
            "dim 0 is both split and joined",
        ),
        (
            |_| barrier(&Group::new(vec![Rank(0), Rank(9)]).unwrap()),
            "rank 9 is not one of the 2 ranks",
        ),
    ];
    for (make, part) in calls {
        let world = Group::world(2).unwrap();
        let errors = on_ranks(connect(2, PATIENT), |comm| {
            // The other rank waits, and is notified what the caller did.
            let call = if comm.rank() == Rank(0) {
                make(&world)
            } else {
                barrier(&world).on_lane(Lane(1))
            };
            comm.run(call).unwrap_err().to_string()
        });
        assert_same(&errors, &[part]);
    }
    let calls: [(Make, &str); 2] = [
        (barrier, "all_gather u8 of [1, [1, 1], 1]"),
        (
            |g| Call::shift(g, DType::U8, 1, vec![1, 1], block(&[0])),
            "shift u8 by 1 of [1, 1] B",
        ),
    ];
    for (make, what) in calls {
        let stranger = Group::new(vec![Rank(1), Rank(2)]).unwrap();
        let errors = on_ranks(connect(3, PATIENT), |comm| {
            let call = if comm.rank() == Rank(0) {
                make(&stranger)
            } else {
                barrier(&Group::world(3).unwrap())
            };
            comm.run(call).unwrap_err().to_string()
        });
        let expected = format!("rank 0 called {what} on group [1, 2], of which it is no member");
        assert_same(&errors, &[&expected]);
    }
}

/// In one process or in several: where members live says who finds it, and what the error is.
pub(super) fn a_shift_that_members_describe_differently_stops_them(connect: Connect) {
    let world = Group::world(2).unwrap();
    let shift = |by, sizes: [usize; 2], member: usize| {
        let mine = block(&vec![0; sizes[member]]);
        Call::shift(&world, DType::U8, by, sizes.to_vec(), mine).labelled("ring")
    };
    for (by, sizes) in [(1, [4, 5]), (-1, [4, 4])] {
        let errors = on_ranks(connect(2, PATIENT), |comm| {
            let call = match comm.rank().0 {
                0 => shift(1, [4, 4], 0),
                _ => shift(by, sizes, 1),
            };
            let error = comm.run(call).unwrap_err();
            let is_named = matches!(
                error,
                CommError::Mismatch { .. } | CommError::Diverged { .. } | CommError::Stopped { .. }
            );
            assert!(is_named, "{error}");
            error.to_string()
        });
        let [one, other] = [
            "rank 0 called shift u8 by 1 of [4, 4] B (call 0 on group [0, 1] lane 0, ring)".into(),
            format!(
                "rank 1 called shift u8 by {by} of {sizes:?} B (call 0 on group [0, 1] lane 0, ring)"
            ),
        ];
        assert_same(&errors, &[&one, &other]);
    }
}

pub(super) fn an_unsupported_reduction_is_an_error(connect: Connect) {
    let world = Group::world(2).unwrap();
    for (dtype, op) in [
        (DType::Bool(BoolStore::Native), ReduceOp::Sum),
        (DType::Bool(BoolStore::U32), ReduceOp::Mean),
        (DType::Flex32, ReduceOp::Sum),
    ] {
        let errors = on_ranks(connect(2, PATIENT), |comm| {
            let error = comm
                .run(Call::all_reduce(&world, dtype, op, block(&[0; 8])))
                .unwrap_err();
            assert!(
                matches!(error, CommError::UnsupportedReduce { .. }),
                "{error}"
            );
            error.to_string()
        });
        assert_same(&errors, &[dtype.name(), "is not defined"]);
    }
}

pub(super) fn the_flight_record_shows_what_was_not_finished(connect: Connect) {
    let world = Group::world(2).unwrap();
    on_ranks(connect(2, PATIENT), |comm| {
        comm.run(sum(&world, 4).labelled("a")).unwrap();
        if comm.rank() == Rank(0) {
            // Fails because the other rank leaves.
            let shift = Call::shift(&world, DType::F32, 1, vec![4, 8], block(&[0; 4]));
            comm.run(shift.labelled("b")).unwrap_err();
        }
        let texts: Vec<_> = comm
            .recent_calls()
            .iter()
            .map(|call| (call.to_string(), call.elapsed().is_some()))
            .collect();
        assert!(
            texts[0]
                .0
                .contains("all_reduce sum f32 x 4 (call 0 on group [0, 1] lane 0, a)")
                && texts[0].1,
            "{texts:?}"
        );
        if comm.rank() == Rank(0) {
            assert!(
                texts[1]
                    .0
                    .contains("shift f32 by 1 of [4, 8] B (call 1 on group [0, 1] lane 0, b)")
                    && !texts[1].1,
                "{texts:?}"
            );
        } else {
            assert_eq!(texts.len(), 1);
        }
    });
}
