//! The promises of every [`Transport`] about messages.
//!
//! Each promise is kept by all processes at once. They know each other only by the transport.

use super::PATIENT;
use burn_dist_comm::{Block, Destination, Gathered, Message, Pool, Transport};
use std::collections::VecDeque;
use std::time::Instant;

/// Lengths of bodies: none, some that fit into a packet, and the longest that every transport carries.
const SIZES: [usize; 7] = [0, 1, 1000, 4096, 4097, 300_000, 1 << 20];

/// A promise: what each process does with its end of the transport.
pub type Promise = fn(&mut End);

/// Every promise, by name.
pub const PROMISES: &[(&str, Promise)] = &[
    ("processes_are_numbered", processes_are_numbered),
    (
        "messages_of_one_sender_arrive_whole_and_in_order",
        messages_of_one_sender_arrive_whole_and_in_order,
    ),
    ("sending_does_not_wait", sending_does_not_wait),
    (
        "a_body_goes_to_its_slot_or_comes_with_its_message",
        a_body_goes_to_its_slot_or_comes_with_its_message,
    ),
    (
        "a_body_whose_slot_never_comes_arrives_all_the_same",
        a_body_whose_slot_never_comes_arrives_all_the_same,
    ),
    (
        "what_was_sent_has_left_in_the_end",
        what_was_sent_has_left_in_the_end,
    ),
];

/// Keeps all promises with the transports of some processes, each in a thread of its own.
///
/// # Panics
/// If one is broken.
pub fn keep<T: Transport>(transports: Vec<T>) {
    std::thread::scope(|scope| {
        for transport in transports {
            scope.spawn(move || keep_with(transport));
        }
    });
}

/// Keeps all promises with the transport of this process.
///
/// # Panics
/// If one is broken.
pub fn keep_with(transport: impl Transport) {
    let mut end = End::new(Box::new(transport));
    for (_, promise) in PROMISES {
        promise(&mut end);
        end.barrier();
    }
}

/// One process, and what has arrived there of each other.
pub struct End<'a> {
    transport: Box<dyn Transport + 'a>,
    arrived: Vec<VecDeque<Message>>,
}

impl<'a> End<'a> {
    fn new(transport: Box<dyn Transport + 'a>) -> Self {
        let arrived = (0..transport.num_processes()).map(|_| VecDeque::new());
        Self {
            arrived: arrived.collect(),
            transport,
        }
    }

    fn this(&self) -> u32 {
        self.transport.process()
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let this = self.this();
        (0..self.arrived.len() as u32).filter(move |process| *process != this)
    }

    fn send(&mut self, process: u32, head: Vec<u8>, body: Block) {
        self.transport.send(Message {
            process,
            head,
            body,
        });
    }

    /// Waits for the next message of a process; `matcher` says where bodies go.
    fn next(&mut self, from: u32, mut matcher: impl FnMut(&[u8], usize) -> Destination) -> Message {
        let start = Instant::now();
        loop {
            if let Some(message) = self.arrived[from as usize].pop_front() {
                return message;
            }
            let received = self.transport.receive(&mut matcher);
            match received.expect("nothing ends the transport") {
                Some(message) => self.arrived[message.process as usize].push_back(message),
                None => {
                    self.transport.unsent_bytes();
                    std::thread::yield_now();
                }
            }
            assert!(start.elapsed() < PATIENT, "nothing comes of {from}");
        }
    }

    fn next_anywhere(&mut self, from: u32) -> Message {
        self.next(from, |_, _| Destination::Buffer)
    }

    /// Waits until all processes are here.
    fn barrier(&mut self) {
        for other in self.others() {
            self.send(other, b"barrier".to_vec(), Block::empty());
        }
        for other in self.others() {
            assert_eq!(self.next_anywhere(other).head, b"barrier");
        }
    }
}

/// Content that tells sender, receiver and number apart.
fn bytes(from: u32, to: u32, num: usize, len: usize) -> Vec<u8> {
    let start = (from as usize * 7 + to as usize) * 31 + num * 13;
    (0..len).map(|at| (start + at + (at >> 8)) as u8).collect()
}

fn processes_are_numbered(end: &mut End) {
    assert!((end.this() as usize) < end.transport.num_processes());
    for other in end.others() {
        let this = end.this().to_le_bytes().to_vec();
        end.send(other, this, Block::empty());
    }
    for other in end.others() {
        let message = end.next_anywhere(other);
        assert_eq!(
            (message.process, message.head),
            (other, other.to_le_bytes().to_vec())
        );
        assert!(message.body.is_empty());
    }
}

/// Heads from a byte to kilobytes, with bodies of every size.
fn messages() -> impl Iterator<Item = (usize, usize, usize)> {
    let rounds = (0..3).flat_map(|round| SIZES.map(|len| (round, len)));
    let heads = [1, 50, 4000];
    rounds
        .enumerate()
        .map(move |(num, (round, len))| (num, heads[(num + round) % 3], len))
}

fn send_all(end: &mut End) {
    let this = end.this();
    for (num, head, len) in messages() {
        for other in end.others() {
            let body = Block::from(bytes(this, other, num, len));
            end.send(other, bytes(other, this, num, head), body);
        }
    }
}

fn receive_all(end: &mut End) {
    let this = end.this();
    for other in end.others() {
        for (num, head, len) in messages() {
            let message = end.next_anywhere(other);
            assert_eq!(
                message.head,
                bytes(this, other, num, head),
                "head {num} of {other}"
            );
            let body = message.body.as_slice();
            assert!(
                body == bytes(other, this, num, len),
                "body {num} of {other}"
            );
        }
    }
}

fn messages_of_one_sender_arrive_whole_and_in_order(end: &mut End) {
    send_all(end);
    receive_all(end);
}

fn sending_does_not_wait(end: &mut End) {
    // More than any system buffers, and nobody receives before all is sent.
    const LEN: usize = 1 << 20;
    let this = end.this();
    for num in 0..16 {
        for other in end.others() {
            let body = Block::from(bytes(this, other, num, LEN));
            end.send(other, vec![num as u8], body);
        }
    }
    for other in end.others() {
        for num in 0..16 {
            let message = end.next_anywhere(other);
            assert_eq!(message.head, [num as u8]);
            assert!(message.body.as_slice() == bytes(other, this, num, LEN));
        }
    }
}

fn a_body_goes_to_its_slot_or_comes_with_its_message(end: &mut End) {
    let (this, pool) = (end.this(), Pool::new(1 << 20));
    for (num, len) in SIZES.into_iter().enumerate() {
        for other in end.others() {
            let body = Block::from(bytes(this, other, num, len));
            end.send(other, this.to_le_bytes().to_vec(), body);
        }
        for other in end.others() {
            if len == 0 {
                // Without bytes, there is no part.
                assert!(end.next_anywhere(other).body.is_empty());
                continue;
            }
            // An output of one part, which comes from elsewhere.
            let mut gathered = Gathered::whole(len, &pool);
            let message = end.next(other, |head, bytes| {
                let region = match head == other.to_le_bytes() && bytes == len {
                    true => gathered.region(0, len),
                    // Another process is ahead.
                    false => None,
                };
                region.map_or(Destination::Buffer, Destination::Region)
            });
            gathered.put(0, &message.body);
            let whole = gathered.finish().expect("the part is there");
            assert_eq!(message.head, other.to_le_bytes());
            let expected = bytes(other, this, num, len);
            assert!(whole.as_slice() == expected, "{len} bytes of {other}");
        }
        end.barrier();
    }
}

fn a_body_whose_slot_never_comes_arrives_all_the_same(end: &mut End) {
    let this = end.this();
    for (num, len) in SIZES.into_iter().enumerate() {
        for other in end.others() {
            let body = Block::from(bytes(this, other, num, len));
            end.send(other, b"later".to_vec(), body);
        }
    }
    for other in end.others() {
        for (num, len) in SIZES.into_iter().enumerate() {
            let message = end.next(other, |_, _| Destination::Later);
            assert!(message.body.as_slice() == bytes(other, this, num, len));
        }
    }
}

fn what_was_sent_has_left_in_the_end(end: &mut End) {
    let this = end.this();
    for other in end.others() {
        end.send(other, vec![1], Block::from(bytes(this, other, 0, 1 << 20)));
    }
    for other in end.others() {
        end.next_anywhere(other);
    }
    end.barrier();
    let start = Instant::now();
    while end.transport.unsent_bytes() > 0 {
        assert!(start.elapsed() < PATIENT, "something stays");
        std::thread::yield_now();
    }
}
