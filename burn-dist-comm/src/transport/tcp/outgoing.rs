//! Messages that have not left yet.

use super::{Broken, PREFIX_BYTES, Sealing, TURN_BYTES_MAX};
use crate::Block;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};

/// Bodies of at most this many bytes are copied behind their heads: that takes less time than a call of the system.
const INLINE_BYTES_MAX: usize = 16 << 10;

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
}

struct Seal {
    sealing: Box<dyn Sealing>,
    /// Records that have not left.
    records: Vec<u8>,
    /// Bytes of them that have.
    sent: usize,
}

/// What is to be sent, in order.
#[derive(Default)]
struct Pieces {
    waiting: VecDeque<Piece>,
    /// Bytes of the first one that are done with.
    taken: usize,
    /// Bytes of all of them, without those.
    bytes: usize,
}

impl Pieces {
    fn push(&mut self, head: Vec<u8>, body: Block) {
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..4].copy_from_slice(&(head.len() as u32).to_le_bytes());
        prefix[4..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        self.bytes += PREFIX_BYTES + head.len() + body.len();
        let is_inline = body.len() <= INLINE_BYTES_MAX;
        let inline = if is_inline { body.as_slice() } else { &[] };
        match self.waiting.back_mut() {
            Some(Piece::Heads(bytes)) if bytes.len() < INLINE_BYTES_MAX => {
                for part in [&prefix, &head[..], inline] {
                    bytes.extend_from_slice(part);
                }
            }
            _ => {
                let bytes = [&prefix, &head[..], inline].concat();
                self.waiting.push_back(Piece::Heads(bytes));
            }
        }
        if !is_inline {
            self.waiting.push_back(Piece::Body(body));
        }
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
    pub(super) fn new(sealing: Option<Box<dyn Sealing>>) -> Self {
        Self {
            pieces: Pieces::default(),
            seal: sealing.map(|sealing| Seal {
                sealing,
                records: Vec::new(),
                sent: 0,
            }),
        }
    }

    /// Adds a message.
    pub(super) fn push(&mut self, head: Vec<u8>, body: Block) {
        self.pieces.push(head, body);
    }

    /// Returns how many bytes have not left.
    pub(super) fn bytes(&self) -> usize {
        let sealed = self.seal.as_ref();
        self.pieces.bytes + sealed.map_or(0, |seal| seal.records.len() - seal.sent)
    }

    /// Sends what the system takes, for a turn.
    pub(super) fn flush(&mut self, to: impl Write) -> Result<(), Broken> {
        match &mut self.seal {
            None => flush_plain(&mut self.pieces, to),
            Some(seal) => seal.flush(&mut self.pieces, to),
        }
    }
}

fn flush_plain(pieces: &mut Pieces, mut to: impl Write) -> Result<(), Broken> {
    let mut room = TURN_BYTES_MAX;
    while pieces.bytes > 0 && room > 0 {
        let Some(sent) = write(&mut to, pieces.next(room))? else {
            break;
        };
        room -= sent;
        pieces.take(sent);
    }
    Ok(())
}

impl Seal {
    fn flush(&mut self, pieces: &mut Pieces, mut to: impl Write) -> Result<(), Broken> {
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
                return Ok(());
            }
            let Some(sent) = write(&mut to, &self.records[self.sent..])? else {
                return Ok(());
            };
            self.sent += sent;
            room = room.saturating_sub(sent);
        }
    }
}

/// Returns how many bytes the system takes; `None` if none for now.
fn write(to: &mut impl Write, bytes: &[u8]) -> Result<Option<usize>, Broken> {
    loop {
        match to.write(bytes) {
            Ok(0) => return Err(Broken::Ended("the system takes no bytes for it".into())),
            Ok(sent) => return Ok(Some(sent)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Broken::Ended(error.to_string())),
        }
    }
}
