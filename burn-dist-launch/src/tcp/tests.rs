//! Several processes of one machine, as threads.

use super::*;
use crate::rendezvous::{Member, Options, Server};
use burn_dist_comm::{Call, Communicator, Group, LocalComm, LocalOptions, World};
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use conformance::{BETWEEN_PROCESSES, messages};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to a rendezvous that lives as long.
struct Joined {
    client: Client,
    _server: Arc<Server>,
}

impl Deref for Joined {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Returns the connections of `size` processes to each other.
fn connect(size: u32) -> Vec<Tcp<Joined>> {
    let token = Token::random().unwrap();
    let server = Server::listen("127.0.0.1:0", token.clone(), Options::new(size)).unwrap();
    let (address, server) = (server.address().to_string(), Arc::new(server));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (token, address, server) = (&token, &address, &server);
                scope.spawn(move || {
                    let me = Member::process(rank, size, 0);
                    let joined = Joined {
                        client: Client::connect(address, token, me, PATIENCE).unwrap(),
                        _server: Arc::clone(server),
                    };
                    Tcp::connect(joined, token, PATIENCE).unwrap()
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

/// Returns the ranks of processes that have connections to each other.
fn ranks(num_processes: u32, num_ranks: usize, options: &LocalOptions) -> Vec<LocalComm> {
    let worlds = World::simulated_over(connect(num_processes));
    let connect = |world: &World| world.connect(num_ranks, options.clone()).unwrap();
    worlds.iter().flat_map(connect).collect()
}

/// Runs `body` for the rank of each of `size` processes that have connections to each other.
fn on_processes<T: Send>(size: u32, body: impl Fn(LocalComm) -> T + Sync) -> Vec<T> {
    let ranks = ranks(size, size as usize, &LocalOptions::default());
    std::thread::scope(|scope| {
        let body = &body;
        let threads = ranks
            .into_iter()
            .map(|comm| scope.spawn(move || body(comm)));
        let threads: Vec<_> = threads.collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

#[test]
fn messages_are_as_promised() {
    for size in [2, 3] {
        messages::keep(connect(size));
    }
}

#[test]
fn ranks_are_as_promised() {
    for (name, promise) in BETWEEN_PROCESSES {
        // More bytes than TCP takes at once.
        let large = [
            "large_blocks_are_moved_and_reduced_alike",
            "opposite_orders_on_different_groups_do_not_block",
        ];
        if large.contains(name) {
            continue;
        }
        promise(|num_ranks, timeout| {
            let divides = |num: &u32| num_ranks.is_multiple_of(*num as usize);
            let num_processes = (1..=3).rev().find(divides).unwrap_or(1);
            let options = LocalOptions {
                timeout,
                ..LocalOptions::default()
            };
            let ranks = ranks(num_processes, num_ranks, &options).into_iter();
            ranks
                .map(|comm| Box::new(comm) as Box<dyn Communicator>)
                .collect()
        });
    }
}

fn sum(size: u32, num: usize) -> Call {
    let group = Group::world(size as usize).unwrap();
    let ones = vec![1.0_f32; num];
    Call::all_reduce(&group, DType::F32, ReduceOp::Sum, ones)
}

#[test]
fn processes_tell_each_other_little_things() {
    for size in [2, 3] {
        on_processes(size, |comm| {
            for num in [1, 1000, 200_000, 1, 0] {
                let sum = comm.run(sum(size, num)).unwrap();
                let expected = (size as f32).to_ne_bytes();
                assert_eq!(sum.len(), 4 * num);
                assert!(sum.chunks(4).all(|element| element == expected));
            }
        });
    }
}

#[test]
fn tensors_are_refused_with_the_way_out() {
    let errors = on_processes(2, |comm| comm.run(sum(2, 2 << 20)).unwrap_err().to_string());
    for error in errors {
        assert!(
            error.contains("feature `mpi`") && error.contains("NCCL"),
            "{error}"
        );
    }
}

#[test]
fn only_who_knows_the_token_has_a_line() {
    let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for (theirs, is_let_in) in [(&token, true), (&other, false)] {
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| call(address, theirs, 5, PATIENCE).is_ok());
            let answered = answer(listener.accept().unwrap().0, &token, PATIENCE);
            assert_eq!(answered.ok().map(|(rank, _)| rank), is_let_in.then_some(5));
            assert_eq!(caller.join().unwrap(), is_let_in);
        });
    }
}

/// Says one byte after the other, slowly, until it is not listened to any more.
fn drip(mut stream: TcpStream) {
    while stream.write_all(&[0]).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_slow_stranger_has_no_more_time_than_a_silent_one() {
    let token = Token::random().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drip(TcpStream::connect(address).unwrap()));
        // All that it has to say would take it more than a second.
        let patience = Duration::from_millis(300);
        let error = answer(listener.accept().unwrap().0, &token, patience).err();
        let kind = error.expect("it knows no token").kind();
        let is_late = matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock);
        assert!(is_late, "{kind}");
    });
}

#[test]
fn a_stranger_keeps_nobody_waiting() {
    let token = Token::random().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // They come first, and stay silent for longer than the others wait.
    let strangers = [(); 8].map(|()| TcpStream::connect(address).unwrap());
    let acceptor = Acceptor {
        listener,
        token: &token,
        rank: 0,
        patience: PATIENCE,
        stranger_patience: 3 * PATIENCE,
    };
    std::thread::scope(|scope| {
        for rank in [1, 2] {
            let token = &token;
            scope.spawn(move || call(address, token, rank, PATIENCE).unwrap());
        }
        let mut connections = [None, None, None];
        acceptor.answer_all(&mut connections, || None).unwrap();
        assert!(connections[0].is_none() && connections[1].is_some() && connections[2].is_some());
        // Whoever waits for someone who does not come hears of trouble.
        let mut connections = [None, None];
        let trouble = acceptor.answer_all(&mut connections, || {
            Some(StartError::relayed("the end", 70))
        });
        assert_eq!(trouble.unwrap_err(), StartError::relayed("the end", 70));
    });
    drop(strangers);
}

proptest! {
    #[test]
    fn anything_may_come(bytes in proptest::collection::vec(any::<u8>(), 0..4000), cut in 1_usize..64) {
        let mut into = Vec::new();
        for piece in bytes.chunks(cut) {
            into.extend_from_slice(piece);
            match take_message(&mut into) {
                Ok(Some((head, body))) => prop_assert!(head.len() <= HEAD_BYTES_MAX && body.len() <= BODY_BYTES_MAX),
                Ok(None) => {}
                Err(_) => return Ok(()),
            }
            prop_assert!(into.len() <= 8 + HEAD_BYTES_MAX + BODY_BYTES_MAX + cut);
        }
    }

    #[test]
    fn messages_come_whole_however_they_are_cut(
        messages in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..50), proptest::collection::vec(any::<u8>(), 0..50)), 0..6),
        cut in 1_usize..40,
    ) {
        let mut bytes = Vec::new();
        for (head, body) in &messages {
            bytes.extend((head.len() as u32).to_le_bytes());
            bytes.extend((body.len() as u32).to_le_bytes());
            bytes.extend(head);
            bytes.extend(body);
        }
        let (mut into, mut found) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(cut) {
            into.extend_from_slice(piece);
            while let Ok(Some(message)) = take_message(&mut into) {
                found.push(message);
            }
        }
        prop_assert_eq!(found, messages);
    }
}
