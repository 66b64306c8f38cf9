//! Faults between processes: every process learns of one; each may tell of its own call.

use super::*;
use crate::WindowPrint;
use crate::transport::{Matcher, Message};
use crate::{Block, Call, Communicator, Exchange, Lane, SharedBuffer, elements};
use burn_dist_mesh::{BoolStore, DType, Rank, ReduceOp};
use conformance::{PATIENT, on_ranks};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::thread::ThreadId;
use std::time::Instant;

fn connect(num_processes: usize, num_ranks: usize, timeout: Duration) -> Vec<LocalComm> {
    World::simulated(num_processes)
        .iter()
        .flat_map(|world| {
            let options = LocalOptions {
                timeout,
                ..LocalOptions::default()
            };
            world.connect(num_ranks, options).expect("an even share")
        })
        .collect()
}

fn sum(group: &Group, num: usize) -> Call {
    let block = Block::from(vec![1.0_f32; num]);
    Call::all_reduce(group, DType::F32, ReduceOp::Sum, block)
}

#[test]
fn programs_that_diverge_see_both_calls() {
    let world = Group::world(4).unwrap();
    let errors = on_ranks(connect(2, 4, PATIENT), |comm| {
        comm.run(Call::barrier(&world)).unwrap();
        let call = match comm.rank().0 {
            0 | 1 => sum(&world, 8).labelled("layers.3.wo"),
            _ => sum(&world, 9).labelled("layers.3.w1"),
        };
        comm.run(call).unwrap_err().to_string()
    });
    let host = crate::Peer::this().to_string();
    for error in &errors {
        for part in [
            "f32 x 8 ",
            "f32 x 9 ",
            "layers.3.wo",
            "layers.3.w1",
            "same calls",
            &format!("process 0 (ranks [0, 1], {host})"),
            &format!("process 1 (ranks [2, 3], {host})"),
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_late_rank_of_another_process_is_named() {
    let world = Group::world(4).unwrap();
    let errors = on_ranks(connect(2, 4, Duration::from_millis(100)), |comm| {
        if comm.rank() == Rank(3) {
            // Alive, until the others have stopped waiting.
            while comm.fault().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        comm.run(sum(&world, 4)).unwrap_err().to_string()
    });
    // The process of rank 3 has not sent anything: to the other one, both of its ranks are late.
    for error in errors {
        let named = ["ranks [3] have not", "ranks [2, 3] have not"];
        assert!(named.iter().any(|ranks| error.contains(ranks)), "{error}");
        // Who is in the same process needs no place, and who is notified knows from whom.
        let placed =
            error.contains("process 1 (ranks [2, 3], host") || error.contains("ranks [3] have not");
        assert!(placed, "{error}");
    }
}

#[test]
fn a_rank_that_leaves_is_named_to_all_processes() {
    for num_before in [0, 3] {
        let world = Group::world(3).unwrap();
        on_ranks(connect(3, 3, PATIENT), |comm| {
            let barrier = || comm.run(Call::barrier(&world)).map(drop);
            (1..num_before).for_each(|_| barrier().unwrap());
            let before = if num_before > 0 { barrier() } else { Ok(()) };
            if comm.rank() == Rank(1) {
                before.unwrap();
            } else {
                // Whoever is still in its last barrier when another process finds the fault is stopped there.
                let error = before.and_then(|()| comm.run(sum(&world, 4)).map(drop));
                let error = error.unwrap_err();
                assert_eq!(error.exit_code(), 75);
                let error = error.to_string();
                assert!(
                    error.contains("rank 1 has left with process 1 (ranks [1], host "),
                    "{error}"
                );
            }
        });
    }
    // Leaving after the last call hurts nobody, also with a call in flight, in one round or two.
    for num in [100, 100_000] {
        let world = Group::world(2).unwrap();
        on_ranks(connect(2, 2, PATIENT), |comm| {
            let pending = comm.start(sum(&world, num)).unwrap();
            drop(comm);
            assert_eq!(pending.wait().unwrap().len(), 4 * num);
        });
    }
}

#[test]
fn a_block_travels_to_another_process_once() {
    // Ranks 0, 1 | 2, 3: what is sent is what the algorithm needs, and every rank of a process reads the same output.
    let sent = Arc::<AtomicUsize>::default();
    let transports = Channels::connect(2, None).into_iter().map(|channels| Odd {
        sent: Arc::clone(&sent),
        ..Odd::new(channels)
    });
    let worlds = World::simulated_over(transports.collect());
    let connect = |world: &World| world.connect(4, LocalOptions::default()).unwrap();
    let world = Group::world(4).unwrap();
    let outputs = on_ranks(worlds.iter().flat_map(connect).collect(), |comm| {
        comm.run(sum(&world, 100_000)).unwrap()
    });
    // Of the inputs of two ranks the half that the others reduce; then the half that they reduced.
    let of_each = 2 * 200_000 + 200_000;
    assert_eq!(sent.load(Ordering::Relaxed), 2 * of_each);
    assert!(Arc::ptr_eq(&outputs[0], &outputs[1]) && Arc::ptr_eq(&outputs[2], &outputs[3]));
    assert!(outputs[0][..] == outputs[2][..]);
}

#[test]
fn a_shift_sends_each_block_only_to_its_receiver() {
    // Ranks 0, 1 | 2, 3.
    let sizes = [1_000, 20, 300_000, 4];
    for (by, crossing) in [
        (1, [1, 3].to_vec()),
        (-1, [0, 2].to_vec()),
        (2, [0, 1, 2, 3].to_vec()),
    ] {
        let sent = Arc::<AtomicUsize>::default();
        let transports = Channels::connect(2, None).into_iter().map(|channels| Odd {
            sent: Arc::clone(&sent),
            ..Odd::new(channels)
        });
        let worlds = World::simulated_over(transports.collect());
        let connect = |world: &World| world.connect(4, LocalOptions::default()).unwrap();
        let ring = Group::world(4).unwrap();
        let mine: [SharedBuffer; 4] = sizes.map(|bytes| elements(vec![1_u8; bytes]));
        let outputs = on_ranks(worlds.iter().flat_map(connect).collect(), |comm| {
            let mine = Arc::clone(&mine[comm.rank().0 as usize]);
            let call = Call::shift(&ring, DType::Bool(BoolStore::U8), by, sizes, mine);
            comm.run(call).unwrap()
        });
        let bytes: usize = crossing.iter().map(|member| sizes[*member]).sum();
        assert_eq!(sent.load(Ordering::Relaxed), bytes, "by {by}");
        for (from, input) in mine.iter().enumerate() {
            let output = &outputs[(from as isize + by).rem_euclid(4) as usize];
            assert_eq!(output.len(), sizes[from]);
            // What stays in a process is the sender's buffer.
            assert!(
                crossing.contains(&from) || Arc::ptr_eq(output, input),
                "by {by}"
            );
        }
    }
}

#[test]
fn values_stay_in_their_process() {
    let all = Group::world(4).unwrap();
    let [first, second] = [[0, 1], [2, 3]].map(|pair| Group::new(pair.map(Rank).to_vec()).unwrap());
    on_ranks(connect(2, 4, PATIENT), |comm| {
        let pair = if comm.rank().0 < 2 { &first } else { &second };
        let mine = Arc::new(comm.rank().0);
        let values = comm
            .exchange(Exchange::new(pair, "ranks"), mine.clone())
            .unwrap();
        let values = values.wait().unwrap();
        let ranks: Vec<u32> = values
            .iter()
            .filter_map(|value| value.downcast_ref::<u32>().copied())
            .collect();
        assert_eq!(
            ranks,
            pair.ranks().iter().map(|rank| rank.0).collect::<Vec<_>>()
        );
        // The other rank here may be on already, and stop this one in the barrier.
        let exchange = || comm.exchange(Exchange::new(&all, "ranks"), mine);
        let error = match comm.run(Call::barrier(&all)) {
            Ok(_) => exchange().err().unwrap(),
            Err(error) => error,
        };
        let expected = matches!(
            error,
            CommError::NoSharedMemory { .. } | CommError::Stopped { .. }
        );
        assert!(expected, "{error}");
    });
}

#[test]
fn ranks_are_shared_out_evenly_or_not_at_all() {
    let worlds = World::simulated(2);
    let error = worlds[0].connect(3, LocalOptions::default()).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("3 ranks") && text.contains("2 processes"),
        "{text}"
    );
}

#[test]
fn meshes_may_be_made_at_different_times() {
    let mut ranks: Vec<Vec<LocalComm>> = vec![Vec::new(), Vec::new()];
    let worlds = World::simulated(2);
    let group = Group::world(2).unwrap();
    std::thread::scope(|scope| {
        for (world, ranks) in worlds.iter().zip(&mut ranks) {
            let group = &group;
            scope.spawn(move || {
                for mesh in 0..3 {
                    std::thread::sleep(Duration::from_millis(20 * world.process() as u64));
                    let comm = world.connect(2, LocalOptions::default()).unwrap().remove(0);
                    let num = 10 * (mesh + 1);
                    assert_eq!(comm.run(sum(group, num)).unwrap().len(), 4 * num);
                    ranks.push(comm);
                }
            });
        }
    });
}

#[test]
fn who_waits_for_another_process_learns_of_its_fault_at_once() {
    let world = Group::world(2).unwrap();
    for round in 0..40 {
        let start = Instant::now();
        let errors = on_ranks(connect(2, 2, PATIENT), |comm| {
            if comm.rank() == Rank(1) {
                std::thread::sleep(Duration::from_micros(50 * round));
                comm.abort(CommError::EmptyGroup);
            }
            comm.run(Call::barrier(&world)).unwrap_err().to_string()
        });
        assert!(errors[0].ends_with(&errors[1]), "{}", errors[0]);
        assert!(errors[0].starts_with("process 1 ("), "{}", errors[0]);
        assert!(start.elapsed() < PATIENT / 2, "slept through it");
    }
}

/// Channels with a fault of their own.
struct Odd {
    channels: Channels,
    /// The only thread that may use them.
    thread: Option<ThreadId>,
    /// How many messages arrive before the connection breaks.
    messages_left: usize,
    /// Set while bytes that are being sent stay.
    is_stuck: Arc<AtomicBool>,
    /// Bytes of bodies.
    sent: Arc<AtomicUsize>,
    /// The longest of them.
    longest: Arc<AtomicUsize>,
}

impl Odd {
    fn new(channels: Channels) -> Self {
        Self {
            channels,
            thread: None,
            messages_left: usize::MAX,
            is_stuck: Arc::default(),
            sent: Arc::default(),
            longest: Arc::default(),
        }
    }

    fn check_thread(&self) {
        if let Some(thread) = self.thread {
            assert_eq!(std::thread::current().id(), thread, "another thread");
        }
    }
}

impl Transport for Odd {
    fn is_for_all_threads(&self) -> bool {
        self.thread.is_none()
    }

    fn process(&self) -> u32 {
        self.channels.process()
    }

    fn num_processes(&self) -> usize {
        self.channels.num_processes()
    }

    fn send(&mut self, message: Message) {
        self.check_thread();
        let bytes = message.body.len();
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.longest.fetch_max(bytes, Ordering::Relaxed);
        self.channels.send(message);
    }

    fn receive(&mut self, matcher: Matcher) -> Result<Option<Message>, String> {
        self.check_thread();
        if self.messages_left == 0 {
            return Err("the cable was pulled".into());
        }
        let message = self.channels.receive(matcher)?;
        self.messages_left -= usize::from(message.is_some());
        Ok(message)
    }

    fn unsent_bytes(&mut self) -> usize {
        self.check_thread();
        match self.is_stuck.load(Ordering::Relaxed) {
            true => 1 + self.sent.load(Ordering::Relaxed),
            false => self.channels.unsent_bytes(),
        }
    }

    fn is_receiving(&self) -> bool {
        self.channels.is_receiving()
    }
}

#[test]
fn a_transport_for_one_thread_is_left_to_it() {
    let engines: Vec<_> = Channels::connect(2, None)
        .into_iter()
        .map(|channels| {
            let transport = || {
                let mut odd = Odd::new(channels);
                odd.thread = Some(std::thread::current().id());
                Ok(odd)
            };
            Engine::start(transport, LIMITS).unwrap()
        })
        .collect();
    let worlds = engines
        .into_iter()
        .map(|engine| World::new(engine, true).unwrap());
    let ranks = worlds.flat_map(|world| world.connect(4, LocalOptions::default()).unwrap());
    let group = Group::world(4).unwrap();
    on_ranks(ranks.collect(), |comm| {
        for num in [1, 100_000] {
            let sum = comm.run(sum(&group, num)).unwrap();
            assert_eq!(sum[..4], 4.0_f32.to_ne_bytes());
        }
    });
}

#[test]
fn a_process_that_leaves_is_named_to_who_waits_for_its_windows() {
    let mut ranks = connect(2, 2, PATIENT).into_iter();
    let (stays, leaves) = (ranks.next().unwrap(), ranks.next().unwrap());
    let print = |number| WindowPrint {
        number,
        hash: 1,
        values: 1,
        digest: None,
        parts: Vec::new(),
    };
    // Before it leaves, it runs one.
    let agreed = [
        stays.hub().window(print(0)).unwrap(),
        leaves.hub().window(print(0)).unwrap(),
    ];
    for agreed in agreed {
        agreed.wait().unwrap();
    }
    let waits = stays.hub().window(print(1)).unwrap();
    drop(leaves);
    let start = Instant::now();
    let error = waits.wait().unwrap_err();
    assert!(start.elapsed() < PATIENT / 2, "waited for the time-out");
    assert_eq!(error.exit_code(), 75);
    let error = error.to_string();
    let named = error.contains("window 1 cannot finish: process 1 (ranks [1], host")
        && error.contains("has left");
    assert!(named, "{error}");
}

#[test]
fn a_window_that_a_process_does_not_run_names_it() {
    let ranks = connect(3, 3, Duration::from_millis(50));
    let print = WindowPrint {
        number: 5,
        hash: 1,
        values: 1,
        digest: None,
        parts: Vec::new(),
    };
    let _other = ranks[2].hub().window(print.clone());
    let error = ranks[0]
        .hub()
        .window(print)
        .unwrap()
        .wait()
        .unwrap_err()
        .to_string();
    // How long it was is measured.
    assert!(error.contains("window 5 gave up after "), "{error}");
    assert!(error.contains(" s: process 1 (ranks [1], host"), "{error}");
    assert!(!error.contains("process 2"), "{error}");
}

#[test]
fn a_mesh_of_processes_that_cannot_talk_ends_at_once() {
    // What one process receives breaks off; the others hear of it.
    let transports = Channels::connect(3, None).into_iter().map(|channels| {
        let mut odd = Odd::new(channels);
        if odd.process() == 0 {
            odd.messages_left = 20;
        }
        odd
    });
    let worlds = World::simulated_over(transports.collect());
    let connect = |world: &World| world.connect(3, LocalOptions::default()).unwrap().remove(0);
    let group = Group::world(3).unwrap();
    let start = Instant::now();
    on_ranks(worlds.iter().map(connect).collect(), |comm| {
        let error = loop {
            if let Err(error) = comm.run(Call::barrier(&group)) {
                break error;
            }
        };
        assert_eq!(error.exit_code(), 75);
        let error = error.to_string();
        assert!(error.contains("the cable was pulled"), "{error}");
    });
    // A mesh that is made later ends as soon.
    let late = connect(&worlds[0]);
    let error = late.run(Call::barrier(&group)).unwrap_err().to_string();
    assert!(error.contains("the cable was pulled"), "{error}");
    assert!(start.elapsed() < PATIENT / 2);
}

#[test]
fn bytes_that_never_arrive_end_with_the_time_out() {
    let is_stuck = Arc::new(AtomicBool::new(true));
    let transports = Channels::connect(2, None).into_iter().map(|channels| Odd {
        is_stuck: Arc::clone(&is_stuck),
        ..Odd::new(channels)
    });
    let options = LocalOptions {
        timeout: Duration::from_millis(100),
        ..LocalOptions::default()
    };
    let worlds = World::simulated_over(transports.collect());
    let ranks: Vec<LocalComm> = worlds
        .iter()
        .map(|world| world.connect(2, options.clone()).unwrap().remove(0))
        .collect();
    let start = Instant::now();
    let error = ranks[0].run(sum(&Group::world(2).unwrap(), 100_000));
    // The engines end when all is sent.
    is_stuck.store(false, Ordering::Relaxed);
    let late = matches!(&error, Err(CommError::Timeout { missing, .. }) if *missing == [Rank(1)]);
    assert!(late, "{error:?}");
    assert!(start.elapsed() < PATIENT / 2);
}

#[test]
fn all_who_wait_for_a_rank_that_has_left_are_woken() {
    let mut ranks = connect(2, 4, PATIENT);
    ranks.truncate(2); // Process 1 has left.
    let world = Group::world(4).unwrap();
    let start = Instant::now();
    on_ranks(ranks, |comm| {
        // The other one sleeps when this one calls.
        std::thread::sleep(Duration::from_millis(50 * u64::from(comm.rank().0)));
        let error = comm.run(sum(&world, 4)).unwrap_err();
        assert!(matches!(error, CommError::RankLeft { .. }), "{error}");
    });
    assert!(start.elapsed() < PATIENT / 2, "slept through it");
}

#[test]
fn calls_that_another_process_does_not_answer_are_bounded() {
    let options = LocalOptions {
        open_calls_max: 4,
        ..LocalOptions::default()
    };
    let worlds = World::simulated(2);
    let ranks: Vec<LocalComm> = worlds
        .iter()
        .map(|world| world.connect(2, options.clone()).unwrap().remove(0))
        .collect();
    let group = Group::world(2).unwrap();
    let calls: Vec<_> = (0..4)
        .map(|_| ranks[0].start(sum(&group, 4)).unwrap())
        .collect();
    for _ in 0..4 {
        ranks[1].run(sum(&group, 4)).unwrap();
    }
    for call in calls {
        call.wait().unwrap();
    }
    let calls: Vec<_> = (0..5).map(|_| ranks[0].start(sum(&group, 4))).collect();
    let error = calls.into_iter().find_map(Result::err).expect("a limit");
    assert!(
        matches!(error, CommError::TooManyOpen { limit: 4, .. }),
        "{error}"
    );
}

#[test]
fn programs_end_together() {
    // Whoever ended alone would leave the others with messages that nobody takes.
    let engines = Channels::connect(3, None)
        .into_iter()
        .map(|channels| Engine::start(move || Ok(channels), LIMITS).unwrap());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (engine, process) in engines.zip(0..) {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100 * process));
                engine.finish(PATIENT).unwrap();
                let took = start.elapsed();
                assert!(
                    took >= Duration::from_millis(200),
                    "before the others: {took:?}"
                );
                assert!(took < PATIENT / 2, "waited in vain");
            });
        }
    });
}

#[test]
fn the_end_waits_for_who_works_and_names_who_does_not_answer() {
    let patience = Duration::from_millis(300);
    let engines = Channels::connect(3, None).into_iter();
    let mut engines: Vec<_> = engines
        .map(|channels| Engine::start(move || Ok(channels), LIMITS).unwrap())
        .collect();
    for engine in &engines {
        engine.peers(PATIENT).unwrap();
    }
    // Process 2 works for longer than anybody may be silent.
    std::thread::scope(|scope| {
        let [first, second, third] = &engines[..] else {
            panic!("three");
        };
        scope.spawn(|| first.finish(patience).unwrap());
        scope.spawn(|| second.finish(patience).unwrap());
        std::thread::sleep(5 * patience);
        third.finish(patience).unwrap();
    });
    engines.clear();

    // Process 1 is stopped once it is known.
    let receives = Arc::<AtomicU8>::default();
    let transports = Channels::connect(2, None)
        .into_iter()
        .zip([None, Some(&receives)]);
    let engines: Vec<_> = transports
        .map(|(channels, receives)| {
            let transport = Stoppable::new(channels, receives);
            Engine::start(move || Ok(transport), LIMITS).unwrap()
        })
        .collect();
    for engine in &engines {
        engine.peers(PATIENT).unwrap();
    }
    receives.store(NOTHING, Ordering::Relaxed);
    let error = engines[0].finish(patience).unwrap_err();
    assert_eq!(error.exit_code(), 75);
    let error = error.to_string();
    let named = format!("process 1 ({}) has not answered", Peer::this());
    assert!(error.contains(&named), "{error}");
    drop(engines);

    // Messages fail while it waits, as a launcher tells who is lost: a mesh that is still there stops, and the end says
    // why all the same.
    let receives = Arc::<AtomicU8>::default();
    let transports = Channels::connect(2, None)
        .into_iter()
        .zip([Some(&receives), None]);
    let transports = transports.map(|(channels, receives)| Stoppable::new(channels, receives));
    let worlds = World::simulated_over(transports.collect());
    let connect = |world: &World| world.connect(2, LocalOptions::default()).unwrap();
    let ranks: Vec<_> = worlds.iter().map(connect).collect();
    std::thread::scope(|scope| {
        let finishing = scope.spawn(|| worlds[0].finish(PATIENT));
        std::thread::sleep(patience);
        receives.store(ERRORS, Ordering::Relaxed);
        let error = finishing.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("process 1 has vanished"), "{error}");
    });
    drop(ranks);
}

const NOTHING: u8 = 1;
const ERRORS: u8 = 2;

/// A transport whose process can be stopped, so that it takes nothing, or hears that another one is lost.
struct Stoppable {
    channels: Channels,
    receives: Arc<AtomicU8>,
}

impl Stoppable {
    fn new(channels: Channels, receives: Option<&Arc<AtomicU8>>) -> Self {
        let receives = receives.cloned().unwrap_or_default();
        Self { channels, receives }
    }
}

impl Transport for Stoppable {
    fn send(&mut self, message: Message) {
        self.channels.send(message);
    }

    fn receive(&mut self, matcher: Matcher) -> Result<Option<Message>, String> {
        match self.receives.load(Ordering::Relaxed) {
            NOTHING => Ok(None),
            ERRORS => Err("process 1 has vanished".into()),
            _ => self.channels.receive(matcher),
        }
    }

    fn unsent_bytes(&mut self) -> usize {
        self.channels.unsent_bytes()
    }

    fn is_receiving(&self) -> bool {
        self.channels.is_receiving()
    }

    fn is_for_all_threads(&self) -> bool {
        self.channels.is_for_all_threads()
    }

    fn process(&self) -> u32 {
        self.channels.process()
    }

    fn num_processes(&self) -> usize {
        self.channels.num_processes()
    }
}

#[test]
fn texts_are_gathered_in_bodies_that_any_transport_carries() {
    const BODY_BYTES_MAX: usize = 512 << 10;
    let longest = Arc::<AtomicUsize>::default();
    let transports = Channels::connect(3, None).into_iter().map(|channels| Odd {
        longest: Arc::clone(&longest),
        ..Odd::new(channels)
    });
    let worlds = World::simulated_over(transports.collect());
    let lens = [3 * BODY_BYTES_MAX + 5, 0, BODY_BYTES_MAX];
    let text = |process: usize| -> Vec<u8> {
        let byte = |at: usize| (at * 7 + (at >> 16) + process) as u8;
        (0..lens[process]).map(byte).collect()
    };
    let expected: Vec<Vec<u8>> = (0..3).map(text).collect();
    std::thread::scope(|scope| {
        for world in &worlds {
            let expected = &expected;
            scope.spawn(move || {
                let votes = world.votes().unwrap();
                let all = votes.gather(&expected[world.process()]).unwrap();
                assert!(all == *expected, "process {}", world.process());
                let nothing = votes.gather(&[]).unwrap();
                assert!(nothing.len() == 3 && nothing.iter().all(Vec::is_empty));
            });
        }
    });
    let longest = longest.load(Ordering::Relaxed);
    assert!((1..=BODY_BYTES_MAX).contains(&longest), "{longest} bytes");
}

/// Two processes with a rank each, that keep no more than `limits`.
fn two_within(limits: Limits, timeout: Duration) -> Vec<LocalComm> {
    let options = LocalOptions {
        timeout,
        ..LocalOptions::default()
    };
    let worlds = World::simulated_within(Channels::connect(2, None), limits);
    let connect = |world: &World| world.connect(2, options.clone()).unwrap().remove(0);
    worlds.iter().map(connect).collect()
}

#[test]
fn inputs_that_come_too_early_are_bounded_in_bytes() {
    let limits = Limits {
        early_bytes_max: 100_000,
        ..LIMITS
    };
    let ranks = two_within(limits, PATIENT);
    let group = Group::world(2).unwrap();
    // Rank 1 makes none of these calls until it is notified.
    let calls: Vec<_> = (0..3)
        .map(|_| ranks[0].start(sum(&group, 10_000)))
        .collect();
    let start = Instant::now();
    let error = loop {
        if let Some(error) = ranks[1].fault() {
            break error;
        }
        assert!(start.elapsed() < PATIENT / 2, "no bound");
        std::thread::yield_now();
    };
    assert!(matches!(error, CommError::TooFarAhead { .. }), "{error}");
    assert_eq!(error.exit_code(), 75);
    for part in [
        "process 0 (ranks [0]",
        "100000 bytes",
        "rank 0 called all_reduce",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // Whoever was ahead learns of it, too.
    let waited = calls
        .into_iter()
        .find_map(|call| call.and_then(|call| call.wait()).err());
    let text = waited.expect("a fault").to_string();
    assert!(text.contains("too far ahead"), "{text}");
}

#[test]
fn what_comes_for_meshes_that_are_never_made_is_bounded_in_bytes() {
    let limits = Limits {
        unknown_bytes_max: 100_000,
        ..LIMITS
    };
    let worlds = World::simulated_within(Channels::connect(2, None), limits);
    let connect = |world: &World| world.connect(2, LocalOptions::default()).unwrap().remove(0);
    let (first, behind) = (connect(&worlds[0]), connect(&worlds[1]));
    let second = connect(&worlds[0]);
    let group = Group::world(2).unwrap();
    let calls: Vec<_> = (0..3).map(|_| second.start(sum(&group, 10_000))).collect();
    let error = behind.run(Call::barrier(&group)).unwrap_err();
    assert!(matches!(error, CommError::Connection { .. }), "{error}");
    for part in [
        "process 0 has sent",
        "100000 bytes",
        "number 1",
        "same meshes",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let text = first.run(Call::barrier(&group)).unwrap_err().to_string();
    assert!(text.contains("same meshes"), "{text}");
    drop(calls);
}

#[test]
fn who_starts_calls_waits_while_too_much_is_unsent() {
    let limits = Limits {
        unsent_bytes_max: 100_000,
        // So that every call has been seen to before the next one starts.
        commands_max: 0,
        ..LIMITS
    };
    for is_released in [true, false] {
        let is_stuck = Arc::new(AtomicBool::new(true));
        let transports = Channels::connect(2, None).into_iter().map(|channels| Odd {
            is_stuck: Arc::clone(&is_stuck),
            ..Odd::new(channels)
        });
        let worlds = World::simulated_within(transports.collect(), limits);
        let timeout = match is_released {
            true => PATIENT,
            false => Duration::from_millis(200),
        };
        let options = LocalOptions {
            timeout,
            ..LocalOptions::default()
        };
        let connect = |world: &World| world.connect(2, options.clone()).unwrap().remove(0);
        let ranks: Vec<LocalComm> = worlds.iter().map(connect).collect();
        let group = Group::world(2).unwrap();
        let start = Instant::now();
        let delay = Duration::from_millis(100);
        let results = on_ranks(ranks, |comm| {
            if comm.rank() == Rank(1) {
                std::thread::sleep(delay);
                is_stuck.store(!is_released, Ordering::Relaxed);
            }
            let calls: Vec<_> = (0..4).map(|_| comm.start(sum(&group, 10_000))).collect();
            let started = start.elapsed();
            let results = calls
                .into_iter()
                .map(|call| call.and_then(|call| call.wait()));
            (started, results.collect::<Result<Vec<_>, _>>())
        });
        is_stuck.store(false, Ordering::Relaxed);
        let (started, result) = &results[0];
        match result {
            Ok(sums) => {
                assert!(
                    is_released && *started >= delay,
                    "did not wait: {started:?}"
                );
                assert!(sums.iter().all(|sum| sum[..4] == 2.0_f32.to_ne_bytes()));
            }
            Err(error) => {
                assert!(!is_released, "{error}");
                let text = error.to_string();
                let named = text.contains("bytes for other processes have not left this one");
                assert!(named && text.contains("called all_reduce"), "{text}");
            }
        }
        assert_eq!(results[1].1.is_ok(), is_released);
    }
}

#[test]
fn a_process_whose_calls_nobody_sees_to_waits() {
    let limits = Limits {
        commands_max: 8,
        ..LIMITS
    };
    let ranks = two_within(limits, PATIENT);
    let group = Group::world(2).unwrap();
    on_ranks(ranks, |comm| {
        let lanes = (0..20).map(|lane| {
            let calls = (0..20).map(move |num| (lane, num));
            calls.collect::<Vec<_>>()
        });
        let calls = lanes.flatten().map(|(lane, num)| {
            let call = sum(&group, 100 * num).on_lane(Lane(lane));
            comm.start(call).unwrap()
        });
        for call in calls.collect::<Vec<_>>() {
            call.wait().unwrap();
        }
    });
}
