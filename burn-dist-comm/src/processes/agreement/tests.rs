use super::super::window::{from_block, to_block};
use super::*;

fn kind_name(kind: u16) -> &'static str {
    [
        "zero", "one", "two", "add", "four", "mul", "six", "seven", "eight", "sum",
    ][kind as usize]
}

fn run(process: u32, hash: u64, values: u64) -> Run {
    Run {
        process,
        hash,
        values,
    }
}

fn part(row: u64, hash: u64) -> PartPrint {
    PartPrint {
        value: 3,
        row,
        hash,
    }
}

/// The agreement of processes with a rank each.
fn agreement(num_processes: u32) -> Agreement {
    let process_of = (0..num_processes).collect();
    Agreement::new(
        Arc::new(Placement::new(0, 0, process_of, Arc::new([]))),
        kind_name,
    )
}

/// The consequence of a window whose digest and parts go through a message.
fn ran(
    agreement: &mut Agreement,
    window: u64,
    run: Run,
    digest: Option<&[u64]>,
    parts: &[PartPrint],
) -> Found {
    let (parts, digest) = from_block(&to_block(digest, parts));
    match agreement.run(window, run, &parts, digest) {
        Ok(verdict) => found((window, verdict)),
        Err(CommError::ProgramsDiffer { window, reason }) => Found::Differ(window, reason),
        Err(CommError::TooFarAhead { process, .. }) => Found::TooFarAhead(process.number),
        Err(error) => panic!("{error}"),
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    Waiting(u64, Vec<u32>),
    Agreed(u64),
    /// Window, process, and whether it is lost.
    Missed(u64, u32, bool),
    Differ(u64, String),
    TooFarAhead(u32),
}

fn found((window, verdict): (u64, Verdict)) -> Found {
    match verdict {
        Verdict::Waiting(ran) => Found::Waiting(window, ran),
        Verdict::Agreed => Found::Agreed(window),
        Verdict::Missed(CommError::ProcessLeft { process, window: w }) if w == window => {
            Found::Missed(window, process.number, false)
        }
        Verdict::Missed(CommError::ProcessLost {
            process,
            window: w,
            call: None,
            connection: None,
        }) if w == Some(window) => Found::Missed(window, process.number, true),
        Verdict::Missed(error) => panic!("{error}"),
    }
}

/// How they differ.
fn reason(found: &Found) -> &str {
    match found {
        Found::Differ(_, reason) => reason,
        found => panic!("{found:?}"),
    }
}

/// The findings of two processes about two windows.
fn differ(a: &[u64], b: &[u64]) -> Found {
    let mut agreement = agreement(2);
    let hash = |digest: &[u64]| {
        digest
            .iter()
            .fold(7, |hash: u64, op| hash.rotate_left(5) ^ op)
    };
    ran(&mut agreement, 4, run(0, hash(a), 0), Some(a), &[]);
    ran(&mut agreement, 4, run(1, hash(b), 0), Some(b), &[])
}

#[test]
fn the_first_difference_is_named() {
    let op = |kind: u64, rest: u64| (kind << 48) | rest;
    let [add, mul, sum] = [3, 5, 9];
    let name = |kind: u64| kind_name(kind as u16);
    assert_eq!(
        differ(&[op(add, 1), op(mul, 2)], &[op(add, 1), op(mul, 2)]),
        Found::Agreed(4)
    );
    let actions = differ(&[op(add, 1), op(mul, 2)], &[op(add, 1), op(sum, 2)]);
    let text = reason(&actions);
    let expected = format!(
        "as operation 1 {} in process 0 and {} in process 1",
        name(mul),
        name(sum)
    );
    assert!(
        text.contains("window 4") && text.contains(&expected),
        "{text}"
    );
    let actions = differ(&[op(add, 1)], &[op(add, 2)]);
    let text = reason(&actions);
    assert!(
        text.contains("operation 0") && text.contains("other shapes"),
        "{text}"
    );
    let actions = differ(&[op(add, 1)], &[op(add, 1), op(sum, 1)]);
    let text = reason(&actions);
    assert!(text.contains("nothing more in process 0"), "{text}");
}

#[test]
fn a_window_known_by_its_hash_needs_no_digest_again() {
    let mut agreement = agreement(2);
    let digest = [1, 2];
    for number in 0..3 {
        let first = (number == 0).then_some(&digest[..]);
        ran(&mut agreement, number, run(1, 11, number), first, &[]);
        let actions = ran(&mut agreement, number, run(0, 11, number), first, &[]);
        assert_eq!(actions, Found::Agreed(number));
    }
    assert!(agreement.open.is_empty() && agreement.num_open == 0);
    ran(&mut agreement, 3, run(0, 11, 0), None, &[]);
    let actions = ran(&mut agreement, 3, run(1, 12, 0), Some(&[1, 3]), &[]);
    let text = reason(&actions);
    assert!(text.contains("operation 1"), "{text}");
    ran(&mut agreement, 4, run(0, 11, 5), None, &[]);
    let actions = ran(&mut agreement, 4, run(1, 11, 6), None, &[]);
    let text = reason(&actions);
    assert!(text.contains("other numbers, data or tensors"), "{text}");
}

#[test]
fn parts_that_two_processes_give_have_to_be_alike() {
    let mut agreement = agreement(4);
    let mut give =
        |process, parts: &[PartPrint]| ran(&mut agreement, 0, run(process, 7, 7), None, parts);
    give(0, &[part(0, 1)]);
    give(2, &[part(4, 2)]);
    assert_eq!(give(1, &[part(0, 1)]), Found::Waiting(0, vec![0, 2, 1]));
    let actions = give(3, &[part(4, 9)]);
    let text = reason(&actions);
    assert!(
        text.contains("processes 2 and 3") && text.contains("row 4"),
        "{text}"
    );
}

#[test]
fn who_waits_learns_who_has_run_the_window_and_who_never_will() {
    let mut agreement = agreement(3);
    ran(&mut agreement, 7, run(0, 1, 1), None, &[]);
    let here = ran(&mut agreement, 7, run(2, 1, 1), None, &[]);
    assert_eq!(here, Found::Waiting(7, vec![0, 2]));
    // Process 2 has run it, and may go; process 1 may not.
    let mut depart = |process, is_lost| -> Vec<Found> {
        let departure = match is_lost {
            true => Departure::Lost(End::Process),
            false => Departure::Left,
        };
        let verdicts = agreement.depart(process, departure);
        verdicts.into_iter().map(found).collect()
    };
    assert_eq!(depart(2, false), [Found::Waiting(7, vec![0, 2])]);
    assert_eq!(depart(1, true), [Found::Missed(7, 1, true)]);
    // Whoever asks later is notified at once.
    let later = ran(&mut agreement, 8, run(0, 2, 2), None, &[]);
    let missed = [Found::Missed(8, 1, true), Found::Missed(8, 2, false)];
    assert!(missed.contains(&later), "{later:?}");
}

#[test]
fn a_process_cannot_be_any_number_of_windows_ahead() {
    let mut agreement = agreement(2);
    agreement.open_max = 8;
    for window in 0..8 {
        let waits = ran(&mut agreement, window, run(1, 1, 1), None, &[]);
        assert_eq!(waits, Found::Waiting(window, vec![1]));
    }
    let too_far = ran(&mut agreement, 8, run(1, 1, 1), None, &[]);
    assert_eq!(too_far, Found::TooFarAhead(1));
    // The other one follows, and there is room again; parts of data count too.
    let follows = ran(&mut agreement, 0, run(0, 1, 1), None, &[]);
    assert_eq!(follows, Found::Agreed(0));
    let parts = [part(0, 0), part(1, 0)];
    let too_far = ran(&mut agreement, 9, run(1, 1, 1), None, &parts);
    assert_eq!(too_far, Found::TooFarAhead(1));
    for window in 1..4 {
        ran(&mut agreement, window, run(0, 1, 1), None, &[]);
    }
    let waits = ran(&mut agreement, 9, run(1, 1, 1), None, &parts);
    assert_eq!(waits, Found::Waiting(9, vec![1]));
    assert_eq!(agreement.num_open, 4 + 3);
}

/// Goes through every order in which three processes run their windows and depart; `plans` are the hashes of each.
fn interleave(
    plans: &[&[u64]],
    done: &mut Vec<usize>,
    order: &mut Vec<u32>,
    check: &mut impl FnMut(&[u32]),
) {
    let mut is_end = true;
    for process in 0..plans.len() {
        if done[process] <= plans[process].len() {
            is_end = false;
            done[process] += 1;
            order.push(process as u32);
            interleave(plans, done, order, check);
            order.pop();
            done[process] -= 1;
        }
    }
    if is_end {
        check(order);
    }
}

#[test]
fn in_every_order_windows_are_agreed_on_or_missed_or_differ() {
    // Each runs its windows, and departs. Process 2 runs one less; in the last case it runs another one.
    for (plans, agreed, differs) in [
        ([&[5, 6][..], &[5, 6], &[5]], vec![0], false),
        ([&[5, 6], &[5, 6], &[5, 6]], vec![0, 1], false),
        ([&[5, 6], &[5, 6], &[5, 7]], vec![0], true),
    ] {
        let mut num_orders = 0;
        interleave(&plans, &mut vec![0; 3], &mut Vec::new(), &mut |order| {
            num_orders += 1;
            let mut agreement = agreement(3);
            let (mut next, mut all) = ([0; 3], Vec::new());
            for &process in order {
                let plan = plans[process as usize];
                let at = next[process as usize];
                next[process as usize] += 1;
                match plan.get(at) {
                    Some(&hash) => {
                        let run = run(process, hash, 0);
                        all.push(ran(&mut agreement, at as u64, run, None, &[]));
                    }
                    None => {
                        let verdicts = agreement.depart(process, Departure::Left);
                        all.extend(verdicts.into_iter().map(found));
                    }
                }
            }
            let of = |kind: fn(&Found) -> Option<u64>| -> Vec<u64> {
                let mut windows: Vec<u64> = all.iter().filter_map(kind).collect();
                windows.sort_unstable();
                windows.dedup();
                windows
            };
            let found = of(|found| match found {
                Found::Agreed(window) => Some(*window),
                _ => None,
            });
            assert_eq!(found, agreed, "{order:?}");
            let found = of(|found| match found {
                Found::Differ(window, _) => Some(*window),
                _ => None,
            });
            assert_eq!(!found.is_empty(), differs, "{order:?}");
            // Whatever is not agreed on is missed by someone, or differs: nobody waits for ever.
            let missed = of(|found| match found {
                Found::Missed(window, ..) | Found::Differ(window, _) => Some(*window),
                _ => None,
            });
            assert!((0..2).all(|window| agreed.contains(&window) || missed.contains(&window)));
            assert!(
                agreed.iter().all(|window| !missed.contains(window)),
                "{order:?}"
            );
        });
        assert!(num_orders >= 560, "{num_orders}");
    }
}
