//! Real sockets, awkward guests.

use super::message::{
    Answer, Greeted, Greeting, Hello, Message, Reply, Request, read_frame, write_frame,
};
use super::secure::{Opened, Sealed};
use super::state::{State, WAITING_MAX};
use super::*;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);
const NOW: Duration = Duration::from_millis(100);

fn member(rank: u32, world_size: u32) -> Member {
    Member {
        role: Role::Process,
        rank,
        world_size,
        host: format!("host{rank}"),
        pid: 100 + rank,
        restarts: 0,
    }
}

fn launcher(machine: u32, machines: u32) -> Member {
    Member {
        role: Role::Launcher,
        ..member(machine, machines)
    }
}

fn token(text: &str) -> Token {
    Token::new(&format!("{text}-0123456789abcdef"), "the test").expect("long enough")
}

fn server(world_size: u32) -> Server {
    Server::listen("127.0.0.1:0", token("right"), Options::new(world_size)).expect("a free port")
}

fn connect(server: &Server, member: Member) -> Result<Client, RendezvousError> {
    Client::connect(&server.address().to_string(), &token("right"), member, SOON)
}

fn all(server: &Server, world_size: u32) -> Vec<Client> {
    let clients = (0..world_size).map(|rank| connect(server, member(rank, world_size)));
    clients
        .map(|client| client.expect("it may come in"))
        .collect()
}

fn text<T: std::fmt::Debug>(result: Result<T, RendezvousError>) -> String {
    result.expect_err("it should fail").to_string()
}

/// Waits for something that comes soon.
fn soon<T>(what: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    while start.elapsed() < SOON {
        if let Some(here) = what() {
            return here;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it has not come");
}

/// Waits until a client has seen a loss.
fn lost(client: &Client) -> Lost {
    soon(|| client.lost())
}

#[test]
fn keys_are_set_once_and_waited_for() {
    let server = server(2);
    let clients = all(&server, 2);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| clients[1].get("id", SOON));
        std::thread::sleep(Duration::from_millis(20));
        clients[0].set("id", b"value").expect("a new key");
        assert_eq!(waiting.join().expect("no panic").expect("set"), b"value");
    });
    assert_eq!(clients[0].get("id", SOON).expect("set"), b"value");
    clients[1].set("id", b"value").expect("the same value");
    let error = text(clients[1].set("id", b"other"));
    assert!(
        error.contains("cannot set `id`: it is set to something else already"),
        "{error}"
    );
    let error = text(clients[1].set("", b""));
    assert!(
        error.contains("a key has 1 to 256 bytes, this one 0"),
        "{error}"
    );
    let error = text(clients[1].set("large", &vec![0; FRAME_BYTES_MAX]));
    assert!(error.contains("a value has at most"), "{error}");
    let error = text(clients[0].get("never", NOW));
    assert!(
        error.contains("waited 0.1 s for the key `never`: nobody has set it"),
        "{error}"
    );
}

#[test]
fn barriers_wait_for_all_and_name_who_is_missing() {
    let server = server(3);
    let first = connect(&server, member(0, 3)).expect("it may come in");
    let error = text(first.barrier("start", NOW));
    assert!(
        error.contains(
            "all 3 processes at `start`: rank 1 has not said hello, rank 2 has not said hello"
        ),
        "{error}"
    );
    let second = connect(&server, member(1, 3)).expect("it may come in");
    let third = connect(&server, member(2, 3)).expect("it may come in");
    let error = text(first.barrier("start", NOW));
    assert!(
        error.contains("rank 1 (host1, pid 101) is there, but has not come so far"),
        "{error}"
    );
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for client in [&first, &second, &third] {
                scope.spawn(|| client.barrier("start", SOON).expect("all come"));
            }
        });
    }
    // Whoever has ended will not come.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.barrier("end", SOON));
        std::thread::sleep(Duration::from_millis(20));
        second.goodbye();
        let error = text(waiting.join().expect("no panic"));
        assert!(
            error.contains("rank 1 (host1, pid 101) has ended before it came there"),
            "{error}"
        );
    });
    assert!(first.lost().is_none() && third.lost().is_none());
    assert!(!server.wait(NOW));
    drop((first, third));
    assert!(server.wait(SOON));
}

#[test]
fn a_process_that_vanishes_is_named_to_all() {
    let server = server(3);
    let (first, third) = (
        connect(&server, member(0, 3)).expect("in"),
        connect(&server, member(2, 3)).expect("in"),
    );
    let mut vanishing = stranger(&server, &token("right"), &member(1, 3));
    assert!(matches!(answer(&mut vanishing), Answer::Welcome { .. }));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.get("never", SOON));
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        drop(vanishing);
        let error = text(waiting.join().expect("no panic"));
        assert_eq!(
            error,
            "rank 1 (host1, pid 101) has vanished: its connection ended without a goodbye"
        );
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    });
    assert_eq!(lost(&third).member.map(|member| member.rank), Some(1));
}

#[test]
fn a_process_that_says_nothing_is_lost_in_the_end() {
    let options = Options::new(2).silence(Duration::from_secs(2));
    let server = Server::listen("127.0.0.1:0", token("right"), options).expect("a free port");
    let first = connect(&server, member(0, 2)).expect("in");
    let mut silent = stranger(&server, &token("right"), &member(1, 2));
    assert!(matches!(answer(&mut silent), Answer::Welcome { .. }));
    let lost = lost(&first);
    assert_eq!(
        lost.to_string(),
        "rank 1 (host1, pid 101) has vanished: nothing was heard of it for 2.0 s"
    );
}

#[test]
fn trouble_is_heard_of_piece_by_piece() {
    let options = Options::new(3).launchers(2);
    let server = Server::listen("127.0.0.1:0", token("right"), options).expect("a free port");
    let zero = connect(&server, launcher(0, 2)).expect("in");
    let one = connect(&server, launcher(1, 2)).expect("in");
    for (number, rank) in [2, 1].into_iter().enumerate() {
        let mut leaving = stranger(&server, &token("right"), &member(rank, 3));
        assert!(matches!(answer(&mut leaving), Answer::Welcome { .. }));
        drop(leaving);
        assert_eq!(one.wait_for_more_trouble(number), Some(number + 1));
    }
    zero.fail_with("rank 0 has failed", 7);
    assert_eq!(one.wait_for_more_trouble(2), Some(3));
    // What came later, and what is not asked for, hides nothing.
    assert_eq!(one.failure().map(|failure| failure.exit_code), Some(7));
    let rank = |lost: &Lost| lost.member.as_ref().map(|member| member.rank);
    let other = one.lost_among(|lost| rank(lost) != Some(2));
    assert_eq!(other.as_ref().and_then(rank), Some(1));
    drop(server);
    assert_eq!(one.wait_for_more_trouble(3), None);
}

#[test]
fn the_end_of_the_server_is_a_loss_unless_it_says_so() {
    let keeper = Member {
        host: "box".into(),
        ..member(0, 2)
    };
    let kept = Server::listen(
        "127.0.0.1:0",
        token("right"),
        Options::new(2).keeper(keeper),
    )
    .expect("a free port");
    let client = connect(&kept, member(1, 2)).expect("in");
    drop(kept);
    let error = text(client.get("never", SOON));
    assert!(error.contains("is over: its process has ended"), "{error}");
    assert!(client.lost().is_none());
    // A server that is killed: its side of the connection just ends.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let killed = std::thread::spawn(move || {
        let mut stream = listener.accept().expect("a client").0;
        let nonce = [7; 32];
        let version = env!("CARGO_PKG_VERSION").to_string();
        write_frame(&mut stream, &Greeting { version, nonce }.to_bytes()).expect("it listens");
        let frame = read_frame(&mut stream, 1024).expect("a hello");
        let hello = Hello::read(&frame[..frame.len() - 32]).expect("a hello of this version");
        let greeted = Greeted {
            run: 7,
            keeper: Some(member(0, 2)),
        };
        let context = Hello::context(&nonce, &hello.nonce);
        let answer = super::answer(
            &token("right"),
            &context,
            &hello.handshake,
            &greeted.to_bytes(),
        );
        let (handshake, _) = answer.expect("a handshake");
        write_frame(&mut stream, &Answer::Welcome { handshake }.to_bytes()).expect("it listens");
    });
    let client = Client::connect(&address, &token("right"), member(1, 2), SOON).expect("in");
    killed.join().expect("no panic");
    assert_eq!(client.run(), 7);
    assert_eq!(
        lost(&client).to_string(),
        "rank 0 (host0, pid 100) has vanished: its connection ended without a goodbye"
    );
}

/// Someone who has sent a hello, and then does as the test likes.
struct Guest {
    stream: TcpStream,
    calling: Option<Calling>,
    line: Option<(Sealed<TcpStream>, Opened<TcpStream>)>,
}

impl Guest {
    fn say(&mut self, message: &[u8]) {
        let (sealed, _) = self.line.as_mut().expect("it is in");
        write_frame(sealed, message).expect("it listens");
    }

    fn hear(&mut self) -> Reply {
        let (_, opened) = self.line.as_mut().expect("it is in");
        Reply::read(&read_frame(opened, FRAME_BYTES_MAX).expect("a reply")).expect("a reply")
    }
}

fn stranger(server: &Server, token: &Token, member: &Member) -> Guest {
    stranger_who(server, token, member, None)
}

/// The same, by whose environment it may be silent for so long.
fn stranger_who(
    server: &Server,
    token: &Token,
    member: &Member,
    silence: Option<Duration>,
) -> Guest {
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a time");
    let greeting =
        Greeting::read(&read_frame(&mut stream, 1024).expect("a greeting")).expect("a greeting");
    let nonce = [0; 32];
    let context = Hello::context(&greeting.nonce, &nonce);
    let (calling, handshake) = Calling::begin(token, &context).expect("a handshake");
    let said = Hello {
        version: env!("CARGO_PKG_VERSION").to_string(),
        nonce,
        member: member.clone(),
        silence,
        handshake,
    }
    .to_bytes();
    let proof = token.prove("client", &[&greeting.nonce, &said]);
    write_frame(&mut stream, &[&said[..], &proof].concat()).expect("it listens");
    Guest {
        stream,
        calling: Some(calling),
        line: None,
    }
}

fn answer(guest: &mut Guest) -> Answer {
    let answer = read_frame(&mut guest.stream, FRAME_BYTES_MAX).expect("an answer");
    let answer = Answer::read(&answer).expect("an answer");
    if let (Answer::Welcome { handshake }, Some(calling)) = (&answer, guest.calling.take()) {
        let (_, keys) = calling.finish(handshake).expect("the same token");
        let (seal, open) = keys.split();
        let clone = || guest.stream.try_clone().expect("a connection");
        guest.line = Some((Sealed { to: clone(), seal }, Opened::new(clone(), open)));
    }
    answer
}

#[test]
fn a_wrong_token_is_refused_and_reported_to_who_waits() {
    let server = server(2);
    let first = connect(&server, member(0, 2)).expect("in");
    let address = server.address().to_string();
    let error = text(Client::connect(
        &address,
        &token("wrong"),
        member(1, 2),
        SOON,
    ));
    assert!(error.contains("refuses this process: rank 1 (host1, pid 101) has another token: give all processes the \
        same BURN_DIST_TOKEN"), "{error}");
    // It does not end those who have the right one, and is named when they have waited.
    let error = text(first.barrier("start", NOW));
    assert!(
        error.contains("rank 1 has not said hello; turned away: 127.0.0.1:"),
        "{error}"
    );
    assert!(
        error.contains("rank 1 (host1, pid 101), with another token"),
        "{error}"
    );
    let second = connect(&server, member(1, 2)).expect("in");
    second.set("key", b"").expect("in");
}

#[test]
fn a_server_without_the_token_is_an_impostor() {
    let other =
        Server::listen("127.0.0.1:0", token("wrong"), Options::new(2)).expect("a free port");
    let address = other.address().to_string();
    let error = text(Client::connect(
        &address,
        &token("right"),
        member(0, 2),
        SOON,
    ));
    assert!(error.contains("another token"), "{error}");
    // One that lets everyone in, and cannot prove that it may.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        let mut stream = listener.accept().expect("a client").0;
        let version = env!("CARGO_PKG_VERSION").to_string();
        write_frame(
            &mut stream,
            &Greeting {
                version,
                nonce: [1; 32],
            }
            .to_bytes(),
        )
        .expect("it listens");
        read_frame(&mut stream, 1024).expect("a hello");
        let handshake = vec![2; 60];
        let welcome = Answer::Welcome { handshake };
        write_frame(&mut stream, &welcome.to_bytes()).expect("it listens");
        let _ = stream.read(&mut [0]);
    });
    let error = text(Client::connect(
        &address,
        &token("right"),
        member(0, 2),
        SOON,
    ));
    assert!(
        error.contains("is not the rendezvous of this program: it does not know the token"),
        "{error}"
    );
}

#[test]
fn wrong_guests_end_the_gathering_by_name_on_both_sides() {
    let wrong = [
        (
            member(0, 2),
            "two processes are rank 0: host0 (pid 100) and host0 (pid 100)",
        ),
        (
            member(1, 4),
            "rank 1 (host1, pid 101) was started as one of 4 processes, and the rendezvous is for 2",
        ),
        (
            member(7, 2),
            "rank 7 (host7, pid 107) is outside the world of 2 processes",
        ),
    ];
    for (guest, expected) in wrong {
        let server = server(2);
        let first = connect(&server, member(0, 2)).expect("in");
        let theirs = text(connect(&server, guest));
        assert!(theirs.contains(expected), "{theirs}");
        let ours = text(first.barrier("start", SOON));
        assert!(ours.contains(expected), "{ours}");
        // And whoever comes later.
        let later = text(connect(&server, member(1, 2)));
        assert!(later.contains(expected), "{later}");
    }
    let server = Server::listen(
        "127.0.0.1:0",
        token("right"),
        Options::new(2).version("9.9.9"),
    )
    .expect("a free port");
    let error = text(connect(&server, member(0, 2)));
    let expected = format!(
        "rank 0 (host0, pid 100) runs version {} of burn-dist, and the others 9.9.9",
        env!("CARGO_PKG_VERSION")
    );
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_process_that_cannot_go_on_ends_the_wait_of_all() {
    let server = server(3);
    let (first, second) = (
        connect(&server, member(0, 3)).expect("in"),
        connect(&server, member(1, 3)).expect("in"),
    );
    assert_eq!(second.trouble(), None);
    let expected = "rank 0 (host0, pid 100) cannot go on: no GPU here";
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| second.get("never", SOON));
        first.fail("no GPU here");
        assert_eq!(text(waiting.join().expect("no panic")), expected);
    });
    assert_eq!(second.trouble().as_deref(), Some(expected));
    let failure = second.failure().expect("it was told");
    assert_eq!((failure.reason.as_str(), failure.exit_code), (expected, 78));
    assert!(second.lost().is_none() && first.trouble().is_none());
    let late = text(connect(&server, member(2, 3)));
    assert!(late.contains(expected), "{late}");
}

#[test]
fn a_late_double_ends_nobody_else() {
    let server = server(2);
    let clients = all(&server, 2);
    let error = text(connect(&server, member(1, 2)));
    assert!(error.contains("two processes are rank 1"), "{error}");
    clients[0].set("still", b"there").expect("the others go on");
    assert_eq!(clients[1].get("still", SOON).expect("set"), b"there");
}

#[test]
fn launchers_hear_of_each_others_failures() {
    let options = Options::new(2).launchers(2);
    let server = Server::listen("127.0.0.1:0", token("right"), options).expect("a free port");
    let processes = all(&server, 2);
    let zero = connect(&server, launcher(0, 2)).expect("in");
    let one = connect(&server, launcher(1, 2)).expect("in");
    // The number of the run is the same for all.
    assert!(one.run() == zero.run() && one.run() == processes[0].run());
    // Keys are for them too, and barriers are not: these do not wait for launchers.
    zero.set("machine", b"0").expect("a new key");
    assert_eq!(one.get("machine", SOON).expect("set"), b"0");
    let error = text(one.barrier("start", SOON));
    assert!(
        error.contains("only processes wait for each other there"),
        "{error}"
    );
    std::thread::scope(|scope| {
        for process in &processes {
            scope.spawn(|| process.barrier("start", SOON).expect("both come"));
        }
    });
    let expected = "rank 1 of 2 (host1, pid 101) failed first, with exit code 3";
    std::thread::scope(|scope| {
        let hearing = scope.spawn(|| zero.wait_for_trouble());
        one.fail_with(expected, 3);
        let heard = hearing.join().expect("no panic");
        assert_eq!(heard.as_deref(), Some(expected));
    });
    for client in [&zero, &processes[0], &processes[1]] {
        assert_eq!(client.wait_for_trouble().as_deref(), Some(expected));
        let failure = client.failure().expect("it was told");
        assert_eq!((failure.reason.as_str(), failure.exit_code), (expected, 3));
        assert!(client.lost().is_none());
    }
    assert_eq!(one.trouble(), None);
    // The server stays until both have gone, whatever the processes do.
    zero.goodbye();
    assert!(!server.wait_for_launchers(NOW));
    one.goodbye();
    assert!(server.wait_for_launchers(SOON) && !server.wait(NOW));
    assert_eq!(one.wait_for_trouble(), None);
    drop(processes);
    assert!(server.wait_empty(SOON));
}

#[test]
fn launchers_are_counted_apart() {
    let options = Options::new(2).launchers(2);
    let server = Server::listen("127.0.0.1:0", token("right"), options).expect("a free port");
    let zero = connect(&server, launcher(0, 2)).expect("in");
    // Two launchers are no two processes.
    let process = connect(&server, member(1, 2)).expect("in");
    let error = text(process.barrier("start", NOW));
    assert!(error.contains("rank 0 has not said hello"), "{error}");
    let mut vanishing = stranger(&server, &token("right"), &launcher(1, 2));
    assert!(matches!(answer(&mut vanishing), Answer::Welcome { .. }));
    drop(vanishing);
    assert_eq!(
        zero.wait_for_trouble().as_deref(),
        Some(
            "the launcher of machine 1 (host1, pid 101) has vanished: its connection ended without a goodbye"
        )
    );
    assert_eq!(lost(&process).member, Some(launcher(1, 2)));
    // Those who hear of a loss first name that, whatever fails because of it.
    process.fail("the launcher is gone");
    let failure = soon(|| zero.failure()).reason;
    assert_eq!(
        failure,
        "rank 1 (host1, pid 101) cannot go on: the launcher is gone"
    );
    assert!(zero.trouble().expect("both").contains("has vanished"));
    drop(zero);
    assert!(server.wait_for_launchers(SOON));
    // Wrong ones are named as such.
    for (guest, expected) in [
        (
            launcher(0, 3),
            "the launcher of machine 0 (host0, pid 100) was started as one of 3 launchers, and the rendezvous is for \
             2: start all of them with the same --nnodes",
        ),
        (
            launcher(2, 2),
            "the launcher of machine 2 (host2, pid 102) is outside the world of 2 launchers",
        ),
        (
            launcher(0, 2),
            "two launchers are the launcher of machine 0: host0 (pid 100) and host0 (pid 100)",
        ),
    ] {
        let options = Options::new(2).launchers(2);
        let server = Server::listen("127.0.0.1:0", token("right"), options).expect("a free port");
        let first = connect(&server, launcher(0, 2)).expect("in");
        let theirs = text(connect(&server, guest));
        assert!(theirs.contains(expected), "{theirs}");
        let ours = first.wait_for_trouble().expect("they cannot come together");
        assert!(ours.contains(expected), "{ours}");
    }
}

#[test]
fn launchers_start_anew_at_different_moments() {
    let options = Options::new(1);
    let old = Server::listen("127.0.0.1:0", token("right"), options.clone()).expect("a free port");
    let address = old.address().to_string();
    let next = Member {
        restarts: 1,
        ..member(0, 1)
    };
    std::thread::scope(|scope| {
        // The next start comes while the old rendezvous is still there, and waits for its own.
        let waiting = scope.spawn(|| {
            Client::connect(&address, &token("right"), next, SOON)
                .map(|client| client.me().restarts)
        });
        std::thread::sleep(Duration::from_millis(100));
        drop(old);
        let new = loop {
            match Server::listen(&address, token("right"), options.clone().restarts(1)) {
                Ok(server) => break server,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        assert_eq!(waiting.join().expect("no panic").expect("in"), 1);
        let error = text(connect(&new, member(0, 1)));
        assert!(
            error.contains("is of start 0, and the rendezvous of start 1"),
            "{error}"
        );
    });
}

#[test]
fn a_port_in_use_and_an_unreachable_master_are_named() {
    let server = server(1);
    let address = server.address().to_string();
    let error = text(Server::listen(&address, token("right"), Options::new(1)));
    assert!(
        error.contains(&format!("cannot listen at {address}"))
            && error.contains("another program listens at this port"),
        "{error}"
    );
    let error = text(Server::listen(
        "192.0.2.1:4000",
        token("right"),
        Options::new(1),
    ));
    assert!(
        error.contains("this is not an address of this machine"),
        "{error}"
    );
    drop(server);
    // Once it has ended nobody listens there.
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a free port")
        .local_addr()
        .expect("bound");
    let error = text(Client::connect(
        &unused.to_string(),
        &token("right"),
        member(0, 1),
        NOW,
    ));
    assert!(
        // How long it was is measured.
        error.contains(&format!("found no rendezvous at {unused} within ")),
        "{error}"
    );
    assert!(
        error.contains("is the process of rank 0 (or its launcher) running there"),
        "{error}"
    );
}

#[test]
fn what_is_open_is_bounded() {
    let server = server(2);
    let first = connect(&server, member(0, 2)).expect("in");
    // Its request is answered once it is no stranger any more.
    first.set("in", &[1]).expect("there is room");
    // Strangers who say nothing are no more than so many: a process that comes after them waits, and is let in when
    // they are gone.
    let strangers = (0..STRANGERS_MAX + 8).map(|_| TcpStream::connect(server.address()));
    let silent: Vec<TcpStream> = strangers
        .map(|stream| stream.expect("it listens"))
        .collect();
    let second = std::thread::scope(|scope| {
        let coming = scope.spawn(|| connect(&server, member(1, 2)));
        std::thread::sleep(Duration::from_millis(300));
        if coming.is_finished() {
            panic!("it did not wait: {:?}", coming.join());
        }
        drop(silent);
        coming.join().expect("no panic").expect("in, at last")
    });
    std::thread::scope(|scope| {
        let first = &first;
        let waits: Vec<_> = (0..70)
            .map(|at| {
                scope.spawn(move || {
                    text(first.get(&format!("key {at}"), Duration::from_millis(500)))
                })
            })
            .collect();
        let texts: Vec<String> = waits
            .into_iter()
            .map(|wait| wait.join().expect("no panic"))
            .collect();
        assert!(
            texts
                .iter()
                .any(|text| text.contains("64 other things already")),
            "{texts:?}"
        );
    });
    let value = vec![1; 60 << 10];
    let full = (0..300)
        .find_map(|at| second.set(&format!("{at}"), &value).err())
        .expect("values are bounded");
    assert!(
        full.to_string()
            .contains("bytes in all values are the most"),
        "{full}"
    );
}

#[test]
fn slow_strangers_hold_the_door_no_longer_than_silent_ones() {
    let options = Options::new(2).stranger_patience(Duration::from_millis(300));
    let server = Server::listen("127.0.0.1:0", token("right"), options).expect("a free port");
    let first = connect(&server, member(0, 2)).expect("in");
    let strangers = (0..STRANGERS_MAX + 8).map(|_| TcpStream::connect(server.address()));
    let mut slow: Vec<TcpStream> = strangers
        .map(|stream| stream.expect("it listens"))
        .collect();
    // The length of a message that may be as long, and then one byte after the other: that would go on for 50 s.
    for stream in &mut slow {
        let _ = stream.write_all(&1000_u32.to_le_bytes());
    }
    let is_over = AtomicBool::new(false);
    let second = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for stream in &mut slow {
                    let _ = stream.write_all(&[1]);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let second = connect(&server, member(1, 2));
        is_over.store(true, Ordering::Relaxed);
        second
    });
    let second = second.expect("in, as the slow ones are out");
    let error = text(first.barrier("start", NOW));
    assert!(error.contains("which did not say who it is"), "{error}");
    drop(second);
}

#[test]
fn a_process_is_silent_for_as_long_as_its_environment_allows() {
    let options = Options::new(2).silence(Duration::from_millis(300));
    let server = Server::listen("127.0.0.1:0", token("right"), options).expect("a free port");
    let minute = Some(Duration::from_secs(60));
    let mut patient = stranger_who(&server, &token("right"), &member(0, 2), minute);
    assert!(matches!(answer(&mut patient), Answer::Welcome { .. }));
    let mut other = stranger(&server, &token("right"), &member(1, 2));
    assert!(matches!(answer(&mut other), Answer::Welcome { .. }));
    assert_eq!(
        patient.hear(),
        Reply::Lost {
            member: member(1, 2),
            reason: "nothing was heard of it for 0.3 s".into()
        }
    );
    // It has said nothing for longer than that, and is still in.
    let set = Request::Set {
        id: 5,
        key: "key".into(),
        value: Vec::new(),
    };
    patient.say(&set.to_bytes());
    let value = Vec::new();
    assert_eq!(patient.hear(), Reply::Done { id: 5, value });
}

#[test]
fn a_name_that_only_this_machine_knows_is_no_place_to_meet() {
    let listen = |address: &str, several_machines| {
        let options = Options::new(2).several_machines(several_machines);
        Server::listen(address, token("right"), options)
    };
    // What a line of /etc/hosts does to a name, an old way to write an address does everywhere: it has to be looked up.
    let error = text(listen("127.1:0", true));
    assert!(
        error.contains("127.1 is 127.0.0.1 on this machine (/etc/hosts), which no other machine reaches: write its \
            address"),
        "{error}"
    );
    listen("127.1:0", false).expect("one machine");
    for meant in ["127.0.0.1:0", "localhost:0"] {
        listen(meant, true).expect("whoever writes this means it");
    }
    let options = Options::new(2).launchers(2);
    let error = text(Server::listen("127.1:0", token("right"), options));
    assert!(error.contains("no other machine reaches"), "{error}");
}

#[test]
fn noise_is_turned_away_and_the_rest_goes_on() {
    let server = server(2);
    let clients = all(&server, 2);
    let noise: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &[0, 0, 0, 0],
        &[32, 0, 0, 0, 1, 2],
        &[],
    ];
    for bytes in noise {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.write_all(bytes).expect("it listens");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 4096, "{} bytes", said.len());
    }
    clients[0].set("still", b"there").expect("the others go on");
    assert_eq!(clients[1].get("still", SOON).expect("set"), b"there");
    assert!(clients[0].lost().is_none());
}

#[test]
fn noise_of_a_guest_is_its_end() {
    let server = server(2);
    let first = connect(&server, member(0, 2)).expect("in");
    let mut second = stranger(&server, &token("right"), &member(1, 2));
    assert!(matches!(answer(&mut second), Answer::Welcome { .. }));
    second.say(&[77, 1, 2]);
    let lost = lost(&first).to_string();
    assert!(lost.contains("it sent what is no request: "), "{lost}");
}

/// Returns an address before a server, and all that passes there between a client and the server, in each direction.
fn wiretap(server: &Server) -> (String, std::thread::JoinHandle<[Vec<u8>; 2]>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let to = server.address();
    let tap = std::thread::spawn(move || {
        let client = listener.accept().expect("a client").0;
        let server = TcpStream::connect(to).expect("it listens");
        std::thread::scope(|scope| {
            let pass = |mut from: TcpStream, mut to: TcpStream| {
                scope.spawn(move || {
                    let (mut passed, mut bytes) = (Vec::new(), [0; 4096]);
                    while let Ok(len @ 1..) = from.read(&mut bytes) {
                        passed.extend_from_slice(&bytes[..len]);
                        let _ = to.write_all(&bytes[..len]);
                    }
                    let _ = to.shutdown(std::net::Shutdown::Write);
                    passed
                })
            };
            let clone = |stream: &TcpStream| stream.try_clone().expect("a connection");
            let out = pass(clone(&client), clone(&server));
            let back = pass(server, client);
            [out, back].map(|way| way.join().expect("no panic"))
        })
    });
    (address, tap)
}

#[test]
fn what_is_sent_is_read_by_nobody_in_between() {
    let server = server(2);
    let (address, tap) = wiretap(&server);
    let first = Client::connect(&address, &token("right"), member(0, 2), SOON).expect("in");
    let second = connect(&server, member(1, 2)).expect("in");
    first
        .set("a secret key", b"a secret value")
        .expect("a new key");
    second
        .set("another secret", b"what is not said")
        .expect("a new key");
    assert_eq!(
        first.get("another secret", SOON).expect("set"),
        b"what is not said"
    );
    second.fail("a secret reason");
    assert!(soon(|| first.trouble()).contains("a secret reason"));
    first.goodbye();
    drop((first, second, server));
    for passed in tap.join().expect("no panic") {
        let text = String::from_utf8_lossy(&passed);
        assert!(
            passed.len() > 100 && !text.contains("secret") && !text.contains("not said"),
            "{text}"
        );
    }
}

#[test]
fn whoever_writes_into_a_connection_is_its_end() {
    let server = server(2);
    let first = connect(&server, member(0, 2)).expect("in");
    let mut second = stranger(&server, &token("right"), &member(1, 2));
    assert!(matches!(answer(&mut second), Answer::Welcome { .. }));
    second.say(&Request::Alive.to_bytes());
    // A request as it was written before connections were sealed, by someone who has taken it over.
    let fail = Request::Fail {
        reason: "the end".into(),
        exit_code: 1,
    };
    write_frame(&mut second.stream, &fail.to_bytes()).expect("it listens");
    let _ = second.stream.shutdown(std::net::Shutdown::Write);
    let lost = lost(&first).to_string();
    assert!(
        lost.starts_with("rank 1 (host1, pid 101) has vanished: "),
        "{lost}"
    );
    assert!(first.failure().is_none());
}

fn requests() -> impl Strategy<Value = Request> {
    let key = "[a-c]{0,2}|x{250,260}|.{0,3}";
    prop_oneof![
        (0..4u64, key, proptest::collection::vec(any::<u8>(), 0..64))
            .prop_map(|(id, key, value)| Request::Set { id, key, value }),
        (0..4u64, key).prop_map(|(id, key)| Request::Get { id, key }),
        (0..4u64, "[a-c]{0,2}").prop_map(|(id, name)| Request::Barrier { id, name }),
        (0..4u64, 0..4u64).prop_map(|(id, waiting)| Request::GiveUp { id, waiting }),
        Just(Request::Alive),
        Just(Request::Goodbye),
        (".{0,3}", any::<u8>()).prop_map(|(reason, exit_code)| Request::Fail { reason, exit_code }),
    ]
}

/// Requests of some member: most wait for something.
fn asked() -> impl Strategy<Value = (Role, u32, Request)> {
    let waiting = ("[a-z]{1,2}", any::<u64>(), any::<bool>());
    let waiting = waiting.prop_map(|(name, id, is_key)| match is_key {
        true => Request::Get { id, key: name },
        false => Request::Barrier { id, name },
    });
    let request = prop_oneof![12 => waiting, 1 => requests()];
    let role = prop_oneof![6 => Just(Role::Process), 1 => Just(Role::Launcher)];
    (role, 0..3_u32, request)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (Greeting::read(&bytes), Hello::read(&bytes), Answer::read(&bytes), Request::read(&bytes), Reply::read(&bytes));
        let _ = read_frame(&mut &bytes[..], 100).map(|frame| assert!(frame.len() <= 100));
    }

    #[test]
    fn a_message_with_a_changed_byte_is_read_or_refused(request in requests(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = request.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(read) = Request::read(&bytes) {
            // What can be read is what is written, but for characters that are not shown.
            prop_assert_eq!(Request::read(&read.to_bytes()), Ok(read));
        }
    }

    #[test]
    fn messages_come_back(
        value in proptest::collection::vec(any::<u8>(), 0..64),
        text in "[ -~]{0,40}",
        numbers in any::<(u64, u32, u32, bool, u8)>(),
    ) {
        let (id, rank, pid, flag, exit_code) = numbers;
        let handshake = value.clone();
        let role = if flag { Role::Launcher } else { Role::Process };
        let member = Member { role, rank, world_size: pid, host: text.clone(), pid, restarts: rank };
        let fail = Request::Fail { reason: text.clone(), exit_code };
        prop_assert_eq!(Request::read(&fail.to_bytes()), Ok(fail));
        for reply in [
            Reply::Done { id, value },
            Reply::Failed { id, reason: text.clone() },
            Reply::Lost { member: member.clone(), reason: text.clone() },
            Reply::Broken { reason: text.clone(), exit_code },
            Reply::Closing,
        ] {
            prop_assert_eq!(Reply::read(&reply.to_bytes()), Ok(reply));
        }
        for answer in [
            Answer::Refused { reason: text.clone(), again: flag, exit_code },
            Answer::Welcome { handshake },
        ] {
            prop_assert_eq!(Answer::read(&answer.to_bytes()), Ok(answer));
        }
        let silence = flag.then(|| Duration::from_millis(id.max(1)));
        let greeted = Greeted { run: id, keeper: flag.then(|| member.clone()) };
        prop_assert_eq!(Greeted::read(&greeted.to_bytes()), Ok(greeted));
        let hello = Hello { version: text.clone(), nonce: [5; 32], member, silence, handshake: vec![6; 48] };
        prop_assert_eq!(Hello::version(&hello.to_bytes()), Ok(text));
        prop_assert_eq!(Hello::read(&hello.to_bytes()), Ok(hello));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_requests_leave_a_bounded_state(asked in proptest::collection::vec(asked(), 0..800)) {
        let mut state = three_of_each();
        let mut answered = 0;
        let num = asked.len();
        for (role, rank, request) in asked {
            let out = state.request((role, rank), request);
            answered += out.iter().filter(|(_, reply)| !matches!(reply, Reply::Broken { .. })).count();
            prop_assert!(state.num_waiting((role, rank)) <= WAITING_MAX);
        }
        // No request is answered twice.
        prop_assert!(answered <= num);
        prop_assert!(state.num_waiting_in_all() <= 6 * WAITING_MAX);
    }
}

/// Three processes and three launchers that have come.
fn three_of_each() -> State {
    let mut state = State::new(3, 3, 0, "1");
    for number in 0..3 {
        state.hello("1", Some(member(number, 3))).expect("in");
        state.hello("1", Some(launcher(number, 3))).expect("in");
    }
    state
}

#[test]
fn requests_that_wait_are_as_many_as_they_may_be_and_no_more() {
    let mut state = three_of_each();
    let mut num_refused = 0;
    for id in 0..100 {
        for rank in 0..3 {
            let name = format!("{rank}, {id}");
            let request = match id % 2 {
                0 => Request::Get { id, key: name },
                _ => Request::Barrier { id, name },
            };
            num_refused += state.request((Role::Process, rank), request).len();
        }
    }
    assert_eq!(state.num_waiting_in_all(), 3 * WAITING_MAX);
    assert_eq!(num_refused, 3 * (100 - WAITING_MAX));
    // Whoever goes takes along what it waits for.
    for rank in 0..3 {
        state.request((Role::Process, rank), Request::Goodbye);
    }
    assert_eq!(state.num_waiting_in_all(), 0);
}

#[test]
fn whoever_is_missing_of_very_many_is_counted() {
    let mut state = State::new(4_000_000_000, 0, 0, "1");
    for rank in [1, 3] {
        let member = Member {
            world_size: 4_000_000_000,
            ..member(rank, 0)
        };
        state.hello("1", Some(member)).expect("in");
    }
    let (who, name) = ((Role::Process, 3), "start".to_string());
    let out = state.request(who, Request::Barrier { id: 7, name });
    assert!(out.is_empty(), "{out:?}");
    let out = state.request(who, Request::GiveUp { id: 8, waiting: 7 });
    let [(_, Reply::Failed { id: 8, reason })] = &out[..] else {
        panic!("{out:?}");
    };
    assert!(
        reason.starts_with("rank 0 has not said hello, rank 1 (host1, pid 101) is there, but has not come so far, rank \
            2 has not"),
        "{reason}"
    );
    assert!(
        reason.ends_with("rank 8 has not said hello, and 3999999991 more"),
        "{reason}"
    );
}

#[test]
fn the_end_of_a_start_says_whether_another_may_go_better() {
    let code = |result: Result<Client, RendezvousError>| result.map(drop).unwrap_err().exit_code();
    // Nobody is there.
    let free = TcpStream::connect("127.0.0.1:1").is_err();
    assert!(free, "something listens at port 1");
    let nobody = Client::connect("127.0.0.1:1", &token("right"), member(0, 2), NOW);
    assert_eq!(code(nobody), 75);
    // Someone has not come in time, and then vanishes.
    let two = server(2);
    let first = connect(&two, member(0, 2)).expect("in");
    let late = first.barrier("start", NOW).unwrap_err();
    assert!(matches!(late, RendezvousError::Timeout { .. }), "{late}");
    assert_eq!(late.exit_code(), 75);
    let second = connect(&two, member(1, 2)).expect("in");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.barrier("start", SOON).unwrap_err());
        second.goodbye();
        assert_eq!(waiting.join().expect("no panic").exit_code(), 75);
    });
    // Who is wrong is so the next time too.
    assert_eq!(code(connect(&server(2), member(0, 3))), 78);
    let stranger = Client::connect(
        &two.address().to_string(),
        &token("wrong"),
        member(1, 2),
        SOON,
    );
    assert_eq!(code(stranger), 78);
    // What one of them fails of is what all end with, also those that come later.
    for failed in [70, 75, 78] {
        let three = server(3);
        let first = connect(&three, member(0, 3)).expect("in");
        let second = connect(&three, member(1, 3)).expect("in");
        first.fail_with("it is so", failed);
        assert_eq!(second.get("never", SOON).unwrap_err().exit_code(), failed);
        assert_eq!(code(connect(&three, member(2, 3))), failed);
        let told = second.start_trouble().expect("it was told");
        assert_eq!(told.exit_code(), failed);
    }
}
