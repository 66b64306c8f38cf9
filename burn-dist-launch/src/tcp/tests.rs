//! Several processes of one machine, as threads.

use super::*;
use crate::rendezvous::{Member, Options, Server};
use burn_dist_comm::{Communicator, LocalComm, LocalOptions, World};
use conformance::{BETWEEN_PROCESSES, messages};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

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

fn secret(token: &Token, seals: Seals) -> Secret {
    Secret {
        token: token.clone(),
        run: 7,
        seals,
    }
}

/// Returns the connections of `size` processes to each other.
fn connected(size: u32, seals: Seals) -> Vec<Tcp> {
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
                    connect(joined, token, seals, PATIENCE).unwrap()
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

/// Returns the ranks of processes that have connections to each other.
fn ranks(
    num_processes: u32,
    seals: Seals,
    num_ranks: usize,
    options: &LocalOptions,
) -> Vec<LocalComm> {
    let worlds = World::simulated_over(connected(num_processes, seals));
    let connect = |world: &World| world.connect(num_ranks, options.clone()).unwrap();
    worlds.iter().flat_map(connect).collect()
}

#[test]
fn messages_are_as_promised() {
    for seals in [Seals::BetweenMachines, Seals::All] {
        for size in [2, 3] {
            messages::keep(connected(size, seals));
        }
    }
}

/// Keeps all promises with ranks in up to three processes.
fn keep_promises(connect: fn(usize, Duration) -> Vec<Box<dyn Communicator>>) {
    for (_, promise) in BETWEEN_PROCESSES {
        promise(connect);
    }
}

fn in_processes(num_ranks: usize, seals: Seals, timeout: Duration) -> Vec<Box<dyn Communicator>> {
    let divides = |num: &u32| num_ranks.is_multiple_of(*num as usize);
    let num_processes = (1..=3).rev().find(divides).unwrap_or(1);
    let options = LocalOptions {
        timeout,
        ..LocalOptions::default()
    };
    let ranks = ranks(num_processes, seals, num_ranks, &options).into_iter();
    ranks
        .map(|comm| Box::new(comm) as Box<dyn Communicator>)
        .collect()
}

#[test]
fn ranks_are_as_promised() {
    keep_promises(|num_ranks, timeout| in_processes(num_ranks, Seals::BetweenMachines, timeout));
}

#[test]
fn ranks_over_sealed_connections_are_as_promised() {
    keep_promises(|num_ranks, timeout| in_processes(num_ranks, Seals::All, timeout));
}

/// A listener, and where it is.
fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn only_who_knows_the_token_and_the_run_has_a_line() {
    let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
    let (listener, address) = listening();
    let ours = secret(&token, Seals::BetweenMachines);
    let of_another = secret(&other, Seals::BetweenMachines);
    // A process that an earlier start has left behind.
    let stale = Secret {
        run: 6,
        ..ours.clone()
    };
    for (theirs, is_let_in) in [(&ours, true), (&of_another, false), (&stale, false)] {
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| call(address, theirs, 5, PATIENCE).map(drop));
            let answered = answer(listener.accept().unwrap().0, &ours, PATIENCE);
            assert_eq!(answered.ok().map(|(rank, _)| rank), is_let_in.then_some(5));
            assert_eq!(caller.join().unwrap().is_ok(), is_let_in);
        });
    }
}

#[test]
fn whoever_answers_without_the_token_is_named_as_such() {
    let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
    let (listener, address) = listening();
    let (ours, theirs) = (secret(&token, Seals::All), secret(&other, Seals::All));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            // Of the right form, and of nobody with the token.
            stream.write_all(&[1; NONCE_BYTES]).unwrap();
            let mut first = [0; HANDSHAKE_BYTES];
            let (_, own) = Calling::begin(&theirs.token, b"").unwrap();
            first.copy_from_slice(&own);
            stream.write_all(&[&first[..], &[0]].concat()).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
        let error = call(address, &ours, 5, PATIENCE).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("another token, or is of another run"),
            "{text}"
        );
    });
}

#[test]
fn a_connection_is_sealed_if_either_end_asks_for_it() {
    let token = Token::random().unwrap();
    let (listener, address) = listening();
    use Seals::{All, BetweenMachines, Nothing};
    for (caller, answerer, is_sealed) in [
        (BetweenMachines, BetweenMachines, false),
        (Nothing, Nothing, false),
        (All, Nothing, true),
        (BetweenMachines, All, true),
        (All, All, true),
    ] {
        std::thread::scope(|scope| {
            let ours = secret(&token, answerer);
            let theirs = secret(&token, caller);
            let calls = scope.spawn(move || call(address, &theirs, 5, PATIENCE).unwrap());
            let (_, answers) = answer(listener.accept().unwrap().0, &ours, PATIENCE).unwrap();
            let calls = calls.join().unwrap();
            let sealed = [&calls, &answers].map(|proven| proven.1.is_some());
            assert_eq!(sealed, [is_sealed; 2], "{caller:?}, {answerer:?}");
        });
    }
}

fn line(address: [u8; 4], pid: u32) -> Line {
    Line {
        address: (IpAddr::V4(Ipv4Addr::from(address)), 4711).into(),
        peer: Peer {
            host: format!("node {pid}"),
            pid,
        },
    }
}

#[test]
fn lines_are_read_as_they_are_written() {
    for line in [line([10, 0, 0, 7], 11), line([127, 0, 0, 1], 0)] {
        assert_eq!(Line::parse(&line.to_bytes()), Some(line));
    }
    for wrong in [&b""[..], b"10.0.0.7:4711", b"10.0.0.7:4711 x host", &[0xff]] {
        assert_eq!(Line::parse(wrong), None);
    }
}

#[test]
fn a_process_that_others_cannot_reach_is_named() {
    reach_each_other(&[line([127, 0, 0, 1], 1), line([127, 0, 1, 1], 2)]).unwrap();
    reach_each_other(&[line([10, 0, 0, 1], 1), line([10, 0, 0, 2], 2)]).unwrap();
    let error = reach_each_other(&[line([10, 0, 0, 1], 1), line([127, 0, 1, 1], 2)]);
    let error = error.unwrap_err();
    assert_eq!(error.exit_code(), 78);
    let text = error.to_string();
    for part in [
        "process 1 (host node 2, pid 2) listens at 127.0.1.1:4711",
        "process 0 (host node 1, pid 1) is at 10.0.0.1:4711",
        "/etc/hosts",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn who_does_not_call_is_named_with_its_host() {
    let token = Token::random().unwrap();
    let (listener, _) = listening();
    let lines = [line([127, 0, 0, 1], 1), line([127, 0, 0, 1], 2)];
    let acceptor = Acceptor {
        listener,
        secret: secret(&token, Seals::All),
        rank: 0,
        lines: &lines,
        patience: Duration::from_millis(50),
        stranger_patience: PATIENCE,
    };
    let error = acceptor.answer_all(&mut [None, None], || None).unwrap_err();
    let expected = "process 1 (host node 2, pid 2) has not called this one at 127.0.0.1:";
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(error.exit_code(), 75);
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
    let (listener, address) = listening();
    std::thread::scope(|scope| {
        scope.spawn(|| drip(TcpStream::connect(address).unwrap()));
        // All that it has to say would take it more than a second.
        let patience = Duration::from_millis(300);
        let secret = secret(&token, Seals::All);
        let error = answer(listener.accept().unwrap().0, &secret, patience).err();
        let kind = error.expect("it knows no token").kind();
        let is_late = matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock);
        assert!(is_late, "{kind}");
    });
}

#[test]
fn a_stranger_keeps_nobody_waiting() {
    let token = Token::random().unwrap();
    let (listener, address) = listening();
    // They come first, and stay silent for longer than the others wait.
    let strangers = [(); 8].map(|()| TcpStream::connect(address).unwrap());
    let lines = [1, 2, 3].map(|pid| line([127, 0, 0, 1], pid));
    let acceptor = Acceptor {
        listener,
        secret: secret(&token, Seals::All),
        rank: 0,
        lines: &lines,
        patience: PATIENCE,
        stranger_patience: 3 * PATIENCE,
    };
    std::thread::scope(|scope| {
        for rank in [1, 2] {
            let secret = acceptor.secret.clone();
            scope.spawn(move || call(address, &secret, rank, PATIENCE).unwrap());
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
