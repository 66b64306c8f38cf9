//! Messages that have not left yet.

use super::frame::{Kind, Prefix};
use super::loans::Loans;
use super::ring::Writer;
use super::seal::Sealing;
use super::turn::{Broken, TURN_BYTES_MAX};
use crate::Block;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};

/// Bodies of at most this many bytes are copied behind their heads: that takes less time than a call of the system.
pub(super) const INLINE_BYTES_MAX: usize = 16 << 10;

/// Bytes that are sealed before they are sent: what is in flight of a body is there twice.
const SEALED_BYTES_MAX: usize = 256 << 10;

/// Something to send.
enum Piece {
    /// Prefixes and heads, with short bodies.
    Heads(Vec<u8>),
    Body(Block),
}

impl Piece {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Heads(bytes) => bytes,
            Self::Body(block) => block.as_slice(),
        }
    }
}

/// The messages that are still to be sent over a connection.
pub(super) struct Outgoing {
    pieces: Pieces,
    seal: Option<Seal>,
    /// Bodies that are lent, where the other process may be one of this machine.
    loans: Option<Loans>,
    /// The memory that both processes have, by which messages go in place of the connection, if they do.
    ring: Option<ByRing>,
    /// True if the other end takes nothing any more: what it has sent before may still be here, and is read.
    is_over: bool,
}

/// A ring, and what is still to be written to it.
struct ByRing {
    writer: Writer,
    pieces: Pieces,
    /// True once the other process has it: all goes there.
    is_used: bool,
}

struct Seal {
    sealing: Box<dyn Sealing>,
    /// Records that have not left.
    records: Vec<u8>,
    /// Bytes of them that have.
    sent: usize,
}

/// Bytes to be sent, in order.
#[derive(Default)]
struct Pieces {
    waiting: VecDeque<Piece>,
    /// Bytes of the first one that are done with.
    taken: usize,
    /// Bytes of all of them, without those.
    bytes: usize,
}

impl Pieces {
    /// Adds a frame but for its body, if that is not short; `extra` is what else follows the head.
    fn push(&mut self, prefix: Prefix, head: &[u8], extra: &[u8]) {
        let prefix = prefix.to_bytes();
        let parts = [&prefix, head, extra];
        self.bytes += parts.iter().map(|part| part.len()).sum::<usize>();
        match self.waiting.back_mut() {
            Some(Piece::Heads(bytes)) if bytes.len() < INLINE_BYTES_MAX => {
                parts.iter().for_each(|part| bytes.extend_from_slice(part));
            }
            _ => self.waiting.push_back(Piece::Heads(parts.concat())),
        }
    }

    fn push_body(&mut self, body: Block) {
        self.bytes += body.len();
        self.waiting.push_back(Piece::Body(body));
    }

    /// The bytes that come next, at most so many of them; none if there are none.
    fn next(&self, bytes_max: usize) -> &[u8] {
        let first = self.waiting.front().map_or(&[][..], Piece::as_slice);
        let left = &first[self.taken..];
        &left[..left.len().min(bytes_max)]
    }

    /// Is done with the next bytes.
    fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        self.bytes -= bytes;
        let first = self
            .waiting
            .front()
            .map_or(0, |piece| piece.as_slice().len());
        if self.taken == first {
            self.waiting.pop_front();
            self.taken = 0;
        }
    }
}

impl Outgoing {
    pub(super) fn new(sealing: Option<Box<dyn Sealing>>, loans: Option<Loans>) -> Self {
        let writer = loans.as_ref().and_then(|_| Writer::new());
        let number = writer.as_ref().map(Writer::number);
        let card = loans.as_ref().map(|loans| loans.card(number));
        let mut outgoing = Self {
            pieces: Pieces::default(),
            seal: sealing.map(|sealing| Seal {
                sealing,
                records: Vec::new(),
                sent: 0,
            }),
            loans,
            ring: writer.map(|writer| ByRing {
                writer,
                pieces: Pieces::default(),
                is_used: false,
            }),
            is_over: false,
        };
        if let Some(card) = card {
            outgoing.push_frame(Kind::Card, &card.to_bytes());
        }
        outgoing
    }

    /// Adds a message.
    pub(super) fn push(&mut self, head: &[u8], body: Block) {
        let prefix = |kind| Prefix {
            kind,
            head: head.len(),
            body: body.len(),
        };
        if body.len() <= INLINE_BYTES_MAX {
            let pieces = self.pieces();
            return pieces.push(prefix(Kind::Message), head, body.as_slice());
        }
        let lent = self.loans.as_mut().and_then(|loans| loans.lend(&body));
        let pieces = self.pieces();
        match lent {
            Some(address) => pieces.push(prefix(Kind::Lent), head, &address.to_le_bytes()),
            None => {
                pieces.push(prefix(Kind::Message), head, &[]);
                pieces.push_body(body);
            }
        }
    }

    /// Adds a frame that is no message.
    pub(super) fn push_frame(&mut self, kind: Kind, head: &[u8]) {
        let prefix = Prefix {
            kind,
            head: head.len(),
            body: 0,
        };
        self.pieces().push(prefix, head, &[]);
    }

    /// Where what is sent next waits.
    fn pieces(&mut self) -> &mut Pieces {
        match &mut self.ring {
            Some(ring) if ring.is_used => &mut ring.pieces,
            _ => &mut self.pieces,
        }
    }

    /// The other process has the ring: from now on, all goes there. Returns whether there is one that is not used yet.
    pub(super) fn move_to_ring(&mut self) -> bool {
        if self.ring.as_ref().is_none_or(|ring| ring.is_used) {
            return false;
        }
        self.push_frame(Kind::Moved, &[]);
        if let Some(ring) = &mut self.ring {
            ring.is_used = true;
        }
        true
    }

    /// Returns the loans; `None` if nothing ever is lent.
    pub(super) fn loans(&mut self) -> Option<&mut Loans> {
        self.loans.as_mut()
    }

    /// Returns how many bytes have not left.
    pub(super) fn bytes(&self) -> usize {
        let sealed = self.seal.as_ref();
        let sealed = sealed.map_or(0, |seal| seal.records.len() - seal.sent);
        let by_ring = self.ring.as_ref().map_or(0, |ring| ring.pieces.bytes);
        self.pieces.bytes + sealed + by_ring + self.lent_bytes()
    }

    /// Returns how many of them are lent, with nothing more to send for them than what their heads have.
    pub(super) fn lent_bytes(&self) -> usize {
        self.loans.as_ref().map_or(0, Loans::bytes)
    }

    /// Sends what the system takes, for a turn.
    ///
    /// # Errors
    /// Why nothing can be sealed.
    pub(super) fn flush(&mut self, to: impl Write) -> Result<(), Broken> {
        if !self.is_over {
            let goes_on = match &mut self.seal {
                None => flush_plain(&mut self.pieces, to),
                Some(seal) => seal.flush(&mut self.pieces, to)?,
            };
            self.is_over = !goes_on;
        }
        if let Some(ring) = &mut self.ring {
            flush_plain(&mut ring.pieces, &mut ring.writer);
        }
        if self.is_over {
            self.pieces = Pieces::default();
            if let Some(seal) = &mut self.seal {
                (seal.records, seal.sent) = (Vec::new(), 0);
            }
        }
        Ok(())
    }
}

/// Returns whether the other end takes more.
fn flush_plain(pieces: &mut Pieces, mut to: impl Write) -> bool {
    let mut room = TURN_BYTES_MAX;
    while pieces.bytes > 0 && room > 0 {
        match write(&mut to, pieces.next(room)) {
            Written::Bytes(sent) => {
                room -= sent;
                pieces.take(sent);
            }
            Written::NoneNow => break,
            Written::NoneEver => return false,
        }
    }
    true
}

impl Seal {
    /// Returns whether the other end takes more.
    fn flush(&mut self, pieces: &mut Pieces, mut to: impl Write) -> Result<bool, Broken> {
        let mut room = TURN_BYTES_MAX;
        loop {
            if self.sent == self.records.len() {
                self.records.clear();
                self.sent = 0;
                while pieces.bytes > 0 && self.records.len() < SEALED_BYTES_MAX.min(room) {
                    let content = pieces.next(SEALED_BYTES_MAX);
                    let sealed = self.sealing.append(content, &mut self.records);
                    sealed.map_err(|error| Broken::Ended(error.to_string()))?;
                    let bytes = content.len();
                    pieces.take(bytes);
                }
            }
            if self.sent == self.records.len() || room == 0 {
                return Ok(true);
            }
            match write(&mut to, &self.records[self.sent..]) {
                Written::Bytes(sent) => {
                    self.sent += sent;
                    room = room.saturating_sub(sent);
                }
                Written::NoneNow => return Ok(true),
                Written::NoneEver => return Ok(false),
            }
        }
    }
}

/// How many bytes the system has taken.
enum Written {
    Bytes(usize),
    NoneNow,
    NoneEver,
}

fn write(to: &mut impl Write, bytes: &[u8]) -> Written {
    loop {
        match to.write(bytes) {
            Ok(0) => return Written::NoneEver,
            Ok(sent) => return Written::Bytes(sent),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Written::NoneNow,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Written::NoneEver,
        }
    }
}
