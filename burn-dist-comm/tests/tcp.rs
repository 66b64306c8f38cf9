//! Messages over TCP: what every transport promises, and links that are slow, stand still or are cut.
//!
//! ```text
//! cargo test -p burn-dist-comm --features tcp --test tcp
//! ```

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use burn_dist_comm::{
    Block, Call, Communicator, Connection, Destination, Group, LocalComm, LocalOptions, Message,
    Peer, Tcp, Transport, World,
};
use burn_dist_mesh::{DType, ReduceOp};
use conformance::{PATIENT, messages, on_ranks};

/// What a link between two processes does with bytes; changes while they run.
#[derive(Default)]
struct Link {
    /// Holds every piece up.
    is_slow: AtomicBool,
    /// Passes nothing on.
    stands: AtomicBool,
    /// Ends both directions.
    is_cut: AtomicBool,
}

fn stream_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let calls = TcpStream::connect(address).expect("it listens");
    (calls, listener.accept().expect("a call").0)
}

/// Passes on what comes, as the link says, until it is cut or the other end has ended.
fn pass(mut from: TcpStream, mut to: TcpStream, link: &Link) {
    let mut piece = vec![0; 64 << 10];
    from.set_read_timeout(Some(Duration::from_millis(5)))
        .expect("a socket");
    loop {
        if link.is_cut.load(Ordering::Relaxed) {
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            return;
        }
        if link.stands.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        match from.read(&mut piece) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(len) => {
                if link.is_slow.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(3));
                }
                if to.write_all(&piece[..len]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Two ends of a link.
fn linked(link: &Arc<Link>) -> (TcpStream, TcpStream) {
    let ((one, its_end), (other, other_end)) = (stream_pair(), stream_pair());
    let copy = |stream: &TcpStream| stream.try_clone().expect("a socket");
    for (from, to) in [(copy(&its_end), copy(&other_end)), (other_end, its_end)] {
        let link = Arc::clone(link);
        std::thread::spawn(move || pass(from, to, &link));
    }
    (one, other)
}

/// Makes a connection of a stream to a process.
type Make = fn(TcpStream, String) -> std::io::Result<Connection>;

const PLAIN: Make = |stream, name| Connection::plain(stream, name);
const WITHIN: Make = |stream, name| Connection::within_machine(stream, name);

/// Processes that are connected to each other; the first two by a link.
fn connect(num: usize, make: Make, link: Option<&Arc<Link>>) -> Vec<Tcp> {
    let mut ends: Vec<Vec<Option<Connection>>> =
        (0..num).map(|_| (0..num).map(|_| None).collect()).collect();
    let pairs = (0..num).flat_map(|one| (one + 1..num).map(move |other| (one, other)));
    for (one, other) in pairs {
        let streams = match link {
            Some(link) if (one, other) == (0, 1) => linked(link),
            _ => stream_pair(),
        };
        let connection = |stream, process: usize| {
            Some(make(stream, format!("process {process}")).expect("a socket"))
        };
        ends[one][other] = connection(streams.0, other);
        ends[other][one] = connection(streams.1, one);
    }
    let transport = |(process, ends)| Tcp::new(process, ends, || None);
    (0..).zip(ends).map(transport).collect()
}

/// Ranks of three processes, one each, of which the first two are connected by a link.
fn ranks(link: &Arc<Link>, make: Make, timeout: Duration) -> Vec<LocalComm> {
    let options = LocalOptions {
        timeout,
        ..LocalOptions::default()
    };
    let worlds = World::simulated_over(connect(3, make, Some(link)));
    let ranks = |world: &World| world.connect(3, options.clone()).expect("a rank each");
    worlds.iter().flat_map(ranks).collect()
}

fn sum(elements: usize) -> Call {
    let group = Group::world(3).expect("three ranks");
    let ones = vec![1.0_f32; elements];
    Call::all_reduce(&group, DType::F32, ReduceOp::Sum, ones)
}

/// What each rank sees: it sums until something ends it, and after the first call `then` happens to the link.
fn ends(
    link: &Arc<Link>,
    make: Make,
    timeout: Duration,
    then: impl Fn(&Link) + Sync,
) -> Vec<String> {
    let ended = on_ranks(ranks(link, make, timeout), |comm| {
        comm.run(sum(1000)).expect("nothing has happened yet");
        if comm.rank().0 == 0 {
            then(link);
        }
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENT, "nothing ends it");
            if let Err(error) = comm.run(sum(300_000)) {
                return (error.to_string(), comm);
            }
        }
    });
    // An engine ends once all has left.
    link.stands.store(false, Ordering::Relaxed);
    ended.into_iter().map(|(error, _)| error).collect()
}

#[test]
fn messages_are_as_promised() {
    for make in [PLAIN, WITHIN] {
        for num in [1, 2, 3] {
            messages::keep(connect(num, make, None));
        }
    }
}

#[test]
fn messages_over_a_slow_link_are_as_promised() {
    let link = Arc::<Link>::default();
    link.is_slow.store(true, Ordering::Relaxed);
    for make in [PLAIN, WITHIN] {
        messages::keep(connect(2, make, Some(&link)));
    }
}

#[test]
fn a_slow_link_changes_no_value() {
    let link = Arc::<Link>::default();
    link.is_slow.store(true, Ordering::Relaxed);
    for make in [PLAIN, WITHIN] {
        on_ranks(ranks(&link, make, PATIENT), |comm| {
            for elements in [1, 1000, 1_000_000] {
                let sum = comm.run(sum(elements)).expect("it takes its time");
                let three = 3.0_f32.to_ne_bytes();
                assert!(sum.len() == 4 * elements && sum.chunks(4).all(|sum| sum == three));
            }
        });
    }
}

#[test]
fn a_link_that_is_cut_is_named_with_its_process() {
    for make in [PLAIN, WITHIN] {
        let link = Arc::<Link>::default();
        let start = Instant::now();
        let errors = ends(&link, make, PATIENT, |link| {
            link.is_cut.store(true, Ordering::Relaxed);
        });
        assert!(start.elapsed() < PATIENT / 2, "{:?}", start.elapsed());
        let named = |process: u32| {
            format!(
                "the connection with process {process} (ranks [{process}], {}) has ended without a word",
                Peer::this()
            )
        };
        // Whoever sees it first says so to all.
        let is_either = |error: &String| [0, 1].iter().any(|end| error.contains(&named(*end)));
        assert!(errors.iter().all(is_either), "{errors:#?}");
    }
}

/// Within a machine messages go through shared memory, and no link stands still.
#[test]
fn a_link_that_stands_still_is_named_by_the_time_out() {
    let link = Arc::<Link>::default();
    let errors = ends(&link, PLAIN, Duration::from_secs(1), |link| {
        link.stands.store(true, Ordering::Relaxed);
    });
    for error in &errors {
        assert!(error.contains("gave up after 1."), "{errors:#?}");
        assert!(error.contains(&Peer::this().to_string()), "{errors:#?}");
    }
}

#[test]
fn what_a_process_has_sent_before_its_end_is_read_whatever_becomes_of_answers() {
    let (mut other, stream) = stream_pair();
    let connection = Connection::plain(stream, "process 1").expect("a socket");
    let ends = vec![None, Some(connection)];
    let mut transport: Box<dyn Transport> = Box::new(Tcp::new(0, ends, || None));
    let send = |transport: &mut dyn Transport| {
        transport.send(Message {
            process: 1,
            head: vec![7; 100],
            body: Block::empty(),
        });
        std::thread::sleep(Duration::from_millis(20));
        transport.unsent_bytes()
    };
    // It has not read this when it ends, so that its system refuses what comes then.
    send(transport.as_mut());
    let frame = [0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'b', b'y', b'e'];
    other.write_all(&frame).expect("open");
    drop(other);
    assert_eq!((send(transport.as_mut()), send(transport.as_mut())), (0, 0));
    assert!(transport.ended().is_none(), "its words are not read yet");
    let mut matcher = |_: &[u8], _| Destination::Buffer;
    let message = transport.receive(&mut matcher).expect("no error");
    assert_eq!(message.expect("it is here").head, b"bye");
    assert!(transport.receive(&mut matcher).expect("no error").is_none());
    assert_eq!(transport.ended().expect("it has").0, 1);
    assert!(transport.ended().is_none());
}

#[test]
fn bytes_that_are_no_message_name_who_sent_them() {
    let (mut stranger, stream) = stream_pair();
    let connection = Connection::plain(stream, "process 1 (host node7, pid 11)");
    let ends = vec![None, Some(connection.expect("a socket"))];
    let mut transport: Box<dyn Transport> = Box::new(Tcp::new(0, ends, || None));
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("open");
    let start = Instant::now();
    let error = loop {
        let mut matcher = |_: &[u8], _| Destination::Buffer;
        match transport.receive(&mut matcher) {
            Ok(message) => assert!(message.is_none() && start.elapsed() < PATIENT),
            Err(error) => break error,
        }
    };
    for part in [
        "process 1 (host node7, pid 11) sent",
        "a frame of kind 71",
        "same version",
    ] {
        assert!(error.contains(part), "{error}");
    }
}
