//! Bytes that come in any pieces.

use super::frame::PREFIX_BYTES;
use super::*;
use crate::buffer::Gathered;
use crate::transport::Destination;
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::net::UnixStream;

fn outgoing(messages: &[(Vec<u8>, Vec<u8>)], sealing: Option<Box<dyn Sealing>>) -> Vec<u8> {
    let mut outgoing = Outgoing::new(sealing, None);
    for (head, body) in messages {
        outgoing.push(head, Block::from(body.clone()));
    }
    let mut bytes = Vec::new();
    while outgoing.bytes() > 0 {
        outgoing.flush(&mut bytes).expect("a vector takes all");
    }
    bytes
}

/// Heads and bodies.
type Messages = Vec<(Vec<u8>, Vec<u8>)>;

/// Writes `bytes` in pieces of `cut`, and returns the messages that come, or why none do any more.
fn incoming(
    bytes: &[u8],
    cut: usize,
    opening: Option<Box<dyn Opening>>,
) -> Result<Messages, Broken> {
    let pool = Pool::new(1 << 20);
    let (mut to, from) = UnixStream::pair().expect("a pair");
    from.set_nonblocking(true).expect("a socket");
    let mut incoming = Incoming::new(opening);
    let mut found = Vec::new();
    for piece in bytes.chunks(cut) {
        to.write_all(piece).expect("it is read at once");
        let mut matcher = |_: &[u8], _| Destination::Buffer;
        while let Some((head, body)) = incoming.receive(&from, &mut matcher, &pool)? {
            found.push((head, body.as_slice().to_vec()));
        }
    }
    assert!(!incoming.is_inside());
    Ok(found)
}

/// Turns bytes around, under a length of two bytes.
struct Turned;

impl Sealing for Turned {
    fn append(&mut self, content: &[u8], records: &mut Vec<u8>) -> std::io::Result<()> {
        for content in content.chunks(1000) {
            records.extend((content.len() as u16).to_le_bytes());
            records.extend(content.iter().map(|byte| !byte));
        }
        Ok(())
    }
}

impl Opening for Turned {
    fn take(&mut self, records: &mut Vec<u8>, content: &mut Vec<u8>) -> std::io::Result<()> {
        while let Some(([a, b], rest)) = records.split_first_chunk::<2>() {
            let len = usize::from(u16::from_le_bytes([*a, *b]));
            let Some(record) = rest.get(..len) else {
                break;
            };
            content.extend(record.iter().map(|byte| !byte));
            records.drain(..2 + len);
        }
        Ok(())
    }
}

/// Content that tells places apart.
fn body(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8)) as u8).collect()
}

proptest! {
    #[test]
    fn messages_come_whole_however_they_are_cut(
        lens in proptest::collection::vec((0_usize..50, prop_oneof![0_usize..100, 0_usize..40_000]), 0..6),
        cut in prop_oneof![1_usize..40, 1000_usize..100_000],
        is_sealed: bool,
    ) {
        let messages: Vec<_> = lens.iter().map(|(head, len)| (body(*head), body(*len))).collect();
        // One byte after the other would take long.
        let bytes = messages.iter().map(|(_, body)| body.len()).sum::<usize>();
        let cut = cut.max(bytes / 2000);
        let seal = || is_sealed.then_some(Turned);
        let bytes = outgoing(&messages, seal().map(|seal| Box::new(seal) as Box<dyn Sealing>));
        let found = incoming(&bytes, cut, seal().map(|seal| Box::new(seal) as Box<dyn Opening>));
        prop_assert_eq!(found.expect("they are messages"), messages);
    }

    #[test]
    fn anything_may_come(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 1_usize..64) {
        let mut prefixed = vec![0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
        let few = PREFIX_BYTES.min(bytes.len());
        // Lengths of a GiB would be waited for.
        let is_short = |bytes: &[u8]| bytes[few.saturating_sub(6)..few].iter().all(|byte| *byte == 0);
        prop_assume!(bytes.len() < PREFIX_BYTES || !is_short(&bytes));
        prefixed.extend(&bytes);
        let (mut to, from) = UnixStream::pair().expect("a pair");
        from.set_nonblocking(true).expect("a socket");
        let (pool, mut incoming) = (Pool::new(1 << 20), Incoming::new(None));
        let mut found = 0;
        for piece in prefixed.chunks(cut) {
            to.write_all(piece).expect("little");
            let mut matcher = |_: &[u8], _| Destination::Later;
            match incoming.receive(&from, &mut matcher, &pool) {
                Ok(message) => found += usize::from(message.is_some()),
                Err(Broken::Malformed(what)) => {
                    let starts = ["a frame", "a message with", "a card", "a loan", "words of a ring"];
                    prop_assert!(starts.iter().any(|start| what.starts_with(start)));
                    break;
                }
                Err(broken) => panic!("{broken:?}"),
            }
        }
        prop_assert_eq!(found, 1);
    }
}

#[test]
fn a_body_waits_for_its_call_and_goes_to_its_place() {
    let bytes = outgoing(&[(vec![7], body(300_000)), (vec![8], body(3))], None);
    let (pool, mut incoming) = (Pool::new(1 << 20), Incoming::new(None));
    let (mut to, from) = UnixStream::pair().expect("a pair");
    from.set_nonblocking(true).expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            to.write_all(&bytes).expect("it is read");
            to
        });
        let mut output = Some(Gathered::whole(300_000, &pool));
        let mut asked = 0;
        let mut next = || {
            loop {
                let mut matcher = |head: &[u8], len: usize| {
                    asked += 1;
                    match (head, asked) {
                        (_, 1) => Destination::Later,
                        ([7], _) => {
                            let region = output.as_mut().and_then(|output| output.region(0, len));
                            Destination::Region(region.expect("asked for once"))
                        }
                        _ => Destination::Buffer,
                    }
                };
                let found = incoming.receive(&from, &mut matcher, &pool);
                if let Some(message) = found.expect("both are messages") {
                    return message;
                }
            }
        };
        let (head, nothing) = next();
        assert!(head == [7] && nothing.is_empty());
        let (head, short) = next();
        assert!(head == [8] && short.as_slice() == body(3));
        let whole = output.take().and_then(Gathered::finish).expect("filled");
        assert!(whole.as_slice() == body(300_000));
    });
}

#[test]
fn a_body_is_sent_from_where_it_lies() {
    let block = Block::from(body(1 << 20));
    let mut outgoing = Outgoing::new(None, None);
    outgoing.push(&[1], block.clone());
    /// Notes where bytes come from.
    #[derive(Default)]
    struct Seen(Vec<(usize, usize)>);
    impl Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push((bytes.as_ptr().addr(), bytes.len()));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut seen = Seen::default();
    while outgoing.bytes() > 0 {
        outgoing.flush(&mut seen).expect("it takes all");
    }
    let start = block.as_slice().as_ptr().addr();
    let here = |(at, len): &&(usize, usize)| (start..start + (1 << 20)).contains(at) && *len > 0;
    let moved: usize = seen.0.iter().filter(here).map(|(_, len)| len).sum();
    assert_eq!(moved, 1 << 20);
}

/// Longer than a call within a machine takes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(9);

/// Both ends of a stream: that which called, and that which answered.
fn streams() -> [TcpStream; 2] {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    Connection::prepare(&listener);
    let address = listener.local_addr().expect("bound");
    let calls = Connection::stream_to(address, PATIENCE).expect("it listens");
    let (answers, _) = listener.accept().expect("a call");
    [calls, answers]
}

/// Two processes of this machine, which are this one.
fn neighbours() -> [Connection; 2] {
    streams().map(|stream| Connection::within_machine(stream, "other").expect("a socket"))
}

/// Sends what there is, and returns what comes of it, until nothing does.
fn turn(connections: &mut [Connection; 2], pool: &Arc<Pool>) -> Vec<(Vec<u8>, Block)> {
    let mut found = Vec::new();
    for _ in 0..20 {
        for connection in &mut *connections {
            connection.outgoing.flush(&connection.stream).expect("open");
            let mut matcher = |_: &[u8], _| Destination::Buffer;
            found.extend(connection.receive(&mut matcher, pool).expect("open"));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    found
}

#[cfg(target_os = "linux")]
#[test]
fn a_neighbour_reads_a_body_where_it_lies_and_gives_it_back() {
    let (mut both, pool) = (neighbours(), Pool::new(1 << 20));
    assert!(turn(&mut both, &pool).is_empty());
    let lent = Arc::new(body(3 << 20));
    let weak = Arc::downgrade(&lent);
    for number in [1, 2] {
        both[0]
            .outgoing
            .push(&[number], Block::from(Arc::clone(&lent)));
    }
    drop(lent);
    // Heads go by the ring, and nothing over the connection; bodies have not left before they are read.
    let bytes = both[0].outgoing.bytes();
    assert_eq!(bytes, 2 * ((3 << 20) + PREFIX_BYTES + 1 + 8));
    let mut seen = Vec::new();
    both[0]
        .outgoing
        .flush(&mut seen)
        .expect("a vector takes all");
    assert!(seen.is_empty());
    assert_eq!(both[0].outgoing.bytes(), 2 * (3 << 20));
    let found = turn(&mut both, &pool);
    assert_eq!(found.len(), 2);
    for ((head, block), number) in found.iter().zip([1, 2]) {
        assert!(*head == [number] && block.as_slice() == body(3 << 20));
    }
    assert_eq!(both[0].outgoing.bytes(), 0);
    assert!(weak.upgrade().is_none(), "it was given back");
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_neighbour_has_written_is_read_after_its_end() {
    let (mut both, pool) = (neighbours(), Pool::new(1 << 20));
    assert!(turn(&mut both, &pool).is_empty());
    let [mut one, mut other] = both;
    // More than the ring has at once.
    let long = body(16 << 10);
    let send = |one: &mut Connection| {
        one.outgoing.flush(&one.stream).expect("open");
        one.outgoing.bytes()
    };
    for number in 0..9 {
        one.outgoing.push(&[number], Block::from(long.clone()));
    }
    let (mut found, mut one) = (Vec::new(), Some(one));
    let how = loop {
        // It ends once all of it is in the ring.
        one = one.and_then(|mut one| (send(&mut one) > 0).then_some(one));
        match other.receive(&mut |_, _| Destination::Buffer, &pool) {
            Ok(message) => found.extend(message),
            Err(broken) => break broken,
        }
    };
    assert!(matches!(how, Broken::Ended(_)), "{how:?}");
    assert_eq!(found.len(), 9);
    for ((head, block), number) in found.iter().zip(0..) {
        assert!(*head == [number] && block.as_slice() == long);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn both_ends_take_cubic_in_place_of_bbr_and_else_what_the_system_is_set_to() {
    use socket2::{Domain, SockRef, Socket, Type};
    let name = |of: SockRef<'_>| of.tcp_congestion().expect("Linux");
    let new = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let of_system = name(SockRef::from(&new));
    for stream in streams() {
        let found = name(SockRef::from(&stream));
        match of_system.starts_with(b"bbr") {
            true => assert!(found.starts_with(b"cubic"), "{found:?}"),
            false => assert_eq!(found, of_system),
        }
    }
}

#[test]
fn who_is_not_there_is_an_error_of_the_system() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let error = Connection::stream_to(address, PATIENCE).expect_err("nobody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_ring_that_nobody_made_ends_the_connection() {
    for (kind, what) in [(Kind::Maps, "about a ring"), (Kind::Moved, "of a ring")] {
        let [mut calls, stream] = streams();
        let mut outgoing = Outgoing::new(None, None);
        outgoing.push_frame(kind, &[]);
        outgoing.flush(&mut calls).expect("little");
        let (mut other, pool) = (
            Connection::plain(stream, "other").expect("a socket"),
            Pool::new(0),
        );
        let broken = loop {
            match other.receive(&mut |_, _| Destination::Buffer, &pool) {
                Ok(found) => assert!(found.is_none()),
                Err(broken) => break broken,
            }
        };
        let is_named = matches!(&broken, Broken::Malformed(text) if text.contains(what));
        assert!(is_named, "{broken:?}");
    }
}

#[test]
fn a_loan_that_nobody_made_ends_the_connection() {
    for (kind, what) in [(Kind::Returned, "a loan back"), (Kind::Lent, "cannot read")] {
        let [mut one, mut other] = neighbours();
        // Without the card of the other one, which would be read first.
        one.outgoing = Outgoing::new(None, None);
        one.outgoing.push_frame(kind, &[]);
        let mut bytes = Vec::new();
        one.outgoing.flush(&mut bytes).expect("a vector takes all");
        bytes.extend([0; 8]);
        (&one.stream).write_all(&bytes).expect("little");
        let pool = Pool::new(1 << 20);
        let broken = loop {
            let mut matcher = |_: &[u8], _| Destination::Buffer;
            match other.receive(&mut matcher, &pool) {
                Ok(found) => assert!(found.is_none()),
                Err(broken) => break broken,
            }
        };
        assert!(
            matches!(&broken, Broken::Malformed(text) if text.contains(what)),
            "{broken:?}"
        );
    }
}

#[test]
fn a_card_with_another_number_is_no_neighbours() {
    let loans = Loans::new();
    let card = loans.card(None);
    assert_eq!(card.is_readable(), cfg!(target_os = "linux"));
    for wrong in [
        frame::Card {
            number: !card.number,
            ..card
        },
        frame::Card { address: 8, ..card },
        frame::Card {
            pid: u32::MAX,
            ..card
        },
    ] {
        assert!(!wrong.is_readable(), "{wrong:?}");
    }
}
