//! Messages over TCP, with no library beside the system.
//!
//! Each two processes have one connection, since messages of one process to another keep their order. Connecting is
//! somebody else's business (`burn_dist_launch`): what comes in here are streams between processes that know each
//! other.
//!
//! A body is sent from the memory that it lies in, and received into its place in an output, or into a pooled buffer:
//! neither is copied here, but for the first bytes, which came with the head, and for short ones, which travel with
//! their heads. Inside a machine, where the system allows that, the other process reads a body from the memory of this
//! one (`loans`), and heads go through memory that both have (`ring`), so that no call of the system is needed for
//! them: the connection then only tells that the other process is still there. Where a connection is sealed
//! ([`Sealing`]), all goes as records of the seal: a copy at each end, and the time of the cipher.
//!
//! A connection that ends is not the end of the transport: [`Transport::ended`] says whose it was.
//!
//! | file | idea |
//! | --- | --- |
//! | `frame` | the bytes of a connection |
//! | `outgoing` | what has not left yet, and sending of it what the system takes |
//! | `incoming` | bytes as they come, messages as they are whole |
//! | `pacing` | how fast the system sends |
//! | `turn` | how much of a connection is moved at once, and why it ends |
//! | `seal` | records that only the other end can read |
//! | `loans` | bodies that a process of the same machine reads where they lie |
//! | `ring` | memory through which two processes of a machine stream bytes |

mod frame;
mod incoming;
mod loans;
mod outgoing;
mod pacing;
mod ring;
mod seal;
#[cfg(test)]
mod tests;
mod turn;

pub use seal::{Opening, Sealing};

use super::{Matcher, Message, Transport};
use crate::Block;
use crate::buffer::Pool;
use frame::Kind;
use incoming::Incoming;
use loans::Loans;
use outgoing::Outgoing;
use std::net::TcpStream;
use std::sync::Arc;
use turn::Broken;

/// Freed buffers kept for later bodies.
const POOL_BYTES_MAX: usize = 512 << 20;

/// A connection to another process.
pub struct Connection {
    stream: TcpStream,
    /// The other process, for people.
    name: String,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Connection {
    /// Returns a connection to the process that people know by `name`, over which bytes go as they are.
    ///
    /// # Errors
    /// The system's, about the stream.
    pub fn plain(stream: TcpStream, name: impl Into<String>) -> std::io::Result<Self> {
        Self::new(stream, name.into(), Outgoing::new(None, None), None)
    }

    /// Returns a connection to a process of this machine, as [`Connection::plain`]: where the system allows it, bodies
    /// are read from the memory of their sender.
    ///
    /// # Errors
    /// The system's, about the stream.
    pub fn within_machine(stream: TcpStream, name: impl Into<String>) -> std::io::Result<Self> {
        let outgoing = Outgoing::new(None, Some(Loans::new()));
        Self::new(stream, name.into(), outgoing, None)
    }

    /// Returns a connection as [`Connection::plain`], over which all goes sealed.
    ///
    /// # Errors
    /// The system's, about the stream.
    pub fn sealed(
        stream: TcpStream,
        name: impl Into<String>,
        sealing: Box<dyn Sealing>,
        opening: Box<dyn Opening>,
    ) -> std::io::Result<Self> {
        let outgoing = Outgoing::new(Some(sealing), None);
        Self::new(stream, name.into(), outgoing, Some(opening))
    }

    fn new(
        stream: TcpStream,
        name: String,
        outgoing: Outgoing,
        opening: Option<Box<dyn Opening>>,
    ) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            name,
            outgoing,
            incoming: Incoming::new(opening),
        })
    }

    /// Returns the next message, if all of it has come, and answers frames that are none.
    fn receive(
        &mut self,
        matcher: Matcher,
        pool: &Arc<Pool>,
    ) -> Result<Option<(Vec<u8>, Block)>, Broken> {
        let received = self.incoming.receive(&self.stream, matcher, pool)?;
        let notes = self.incoming.notes();
        if notes.reads {
            self.outgoing.push_frame(Kind::Reads, &[]);
        }
        if notes.maps {
            self.outgoing.push_frame(Kind::Maps, &[]);
        }
        for _ in 0..notes.done {
            self.outgoing.push_frame(Kind::Returned, &[]);
        }
        if notes.is_mapped && !self.outgoing.move_to_ring() {
            return Err(Broken::Malformed(
                "words about a ring that was not made".into(),
            ));
        }
        let Some(loans) = self.outgoing.loans() else {
            return match notes.is_read || notes.returned > 0 {
                true => Err(Broken::Malformed(
                    "words about loans that were not made".into(),
                )),
                false => Ok(received),
            };
        };
        if notes.is_read {
            loans.open();
        }
        if !(0..notes.returned).all(|_| loans.end()) {
            return Err(Broken::Malformed("a loan back that was not made".into()));
        }
        Ok(received)
    }
}

/// Messages over TCP, between processes that are connected already.
pub struct Tcp {
    process: u32,
    /// By process; `None` for this one, and where the connection has ended.
    connections: Vec<Option<Connection>>,
    /// The process whose connection is looked at first.
    next: usize,
    pool: Arc<Pool>,
    failed: Option<String>,
    /// Whose connections have ended, and how, that nobody has asked for yet.
    ended: Vec<(u32, String)>,
    /// Connections that have ended: what they have lent may still be read.
    over: Vec<Connection>,
    /// Asked for what ends it.
    trouble: Box<dyn Fn() -> Option<String> + Send>,
}

impl Tcp {
    /// Returns the transport of process number `process`, which has a connection to every other one, by number. What
    /// `trouble` returns, such as who has vanished, ends it.
    pub fn new(
        process: u32,
        connections: Vec<Option<Connection>>,
        trouble: impl Fn() -> Option<String> + Send + 'static,
    ) -> Self {
        Self {
            process,
            connections,
            next: 0,
            pool: Pool::new(POOL_BYTES_MAX),
            failed: None,
            ended: Vec::new(),
            over: Vec::new(),
            trouble: Box::new(trouble),
        }
    }

    /// Puts a connection away that is of no use any more.
    fn hang_up(&mut self, process: usize, broken: Broken) {
        let Some(connection) = self.connections[process].take() else {
            return;
        };
        match broken {
            Broken::Ended(how) => self.ended.push((process as u32, how)),
            Broken::Malformed(what) => {
                self.failed.get_or_insert(format!(
                    "{} sent {what}: do all processes run the same version?",
                    connection.name
                ));
            }
        }
        self.over.push(connection);
    }
}

impl Transport for Tcp {
    fn is_for_all_threads(&self) -> bool {
        true
    }

    fn process(&self) -> u32 {
        self.process
    }

    fn num_processes(&self) -> usize {
        self.connections.len()
    }

    fn send(&mut self, message: Message) {
        let process = message.process as usize;
        // One that has ended needs nothing any more.
        let Some(connection) = &mut self.connections[process] else {
            return;
        };
        connection.outgoing.push(&message.head, message.body);
        if let Err(broken) = connection.outgoing.flush(&connection.stream) {
            self.hang_up(process, broken);
        }
    }

    fn receive(&mut self, matcher: Matcher) -> Result<Option<Message>, String> {
        if let Some(trouble) = (self.trouble)() {
            self.failed.get_or_insert(trouble);
        }
        let processes = self.connections.len();
        for offset in 0..processes {
            let from = (self.next + offset) % processes;
            let Some(connection) = &mut self.connections[from] else {
                continue;
            };
            match connection.receive(matcher, &self.pool) {
                Ok(Some((head, body))) => {
                    self.next = (from + 1) % processes;
                    return Ok(Some(Message {
                        process: from as u32,
                        head,
                        body,
                    }));
                }
                Ok(None) => {}
                Err(broken) => self.hang_up(from, broken),
            }
        }
        match &self.failed {
            Some(reason) => Err(reason.clone()),
            None => Ok(None),
        }
    }

    fn unsent_bytes(&mut self) -> usize {
        let mut unsent = 0;
        for process in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[process] else {
                continue;
            };
            match connection.outgoing.flush(&connection.stream) {
                Ok(()) => unsent += connection.outgoing.bytes(),
                Err(broken) => self.hang_up(process, broken),
            }
        }
        unsent
    }

    fn lent_bytes(&self) -> usize {
        let connections = self.connections.iter().flatten();
        let lent = connections.map(|connection| connection.outgoing.lent_bytes());
        lent.sum()
    }

    fn is_receiving(&self) -> bool {
        let mut connections = self.connections.iter().flatten();
        connections.any(|connection| connection.incoming.is_inside())
    }

    fn ended(&mut self) -> Option<(u32, String)> {
        self.ended.pop()
    }
}
