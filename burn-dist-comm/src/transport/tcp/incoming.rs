//! Bytes as they come, and messages as they are whole.

use super::frame::{Card, Kind, PREFIX_BYTES, Prefix};
use super::ring::Reader;
use super::seal::Opening;
use super::turn::{Broken, TURN_BYTES_MAX};
use crate::Block;
use crate::buffer::{Gathered, Pool, Region, copy_from};
use crate::transport::{Destination, Matcher, held_max};
use rustix::buffer::spare_capacity;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are read at once where it is not known yet whose they are.
const READ_BYTES: usize = 64 << 10;

/// Bytes of records that are read at once.
const RECORDS_BYTES: usize = 256 << 10;

/// Bytes that have come over a connection and are no whole message yet.
pub(super) struct Incoming {
    /// Bytes that are no part of a body yet.
    content: Vec<u8>,
    /// How many of them are done with.
    taken: usize,
    /// How records are opened, and those that are not whole yet.
    records: Option<(Box<dyn Opening>, Vec<u8>)>,
    stage: Stage,
    /// The other process, if this one can read its memory.
    neighbour: Option<u32>,
    /// Its ring, once this one has it.
    ring: Option<Ring>,
    notes: Notes,
}

/// The ring of the other process.
struct Ring {
    reader: Reader,
    /// True once all comes by it.
    is_used: bool,
    /// How often it had nothing since the connection was looked at.
    vain_looks: u32,
}

/// A connection whose bytes come by a ring is looked at, for its end, each time that the ring has had nothing so often.
const VAIN_LOOKS: u32 = 16;

/// The content of frames that are no messages, and what is to be answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// This process can read the memory of the other one.
    pub(super) reads: bool,
    /// The other one can read that of this one.
    pub(super) is_read: bool,
    /// This process has the ring of the other one.
    pub(super) maps: bool,
    /// The other one has that of this one.
    pub(super) is_mapped: bool,
    /// Loans that this process is done with.
    pub(super) done: usize,
    /// Loans that the other one is done with.
    pub(super) returned: usize,
}

/// How far a message has come.
enum Stage {
    /// Its head is not whole.
    Head,
    /// Its body, of so many bytes, waits for its call since then; it may be lent.
    Held(Vec<u8>, usize, Option<usize>, Instant),
    Body(Vec<u8>, Body),
}

/// A frame, but for the body of a message.
struct Frame {
    prefix: Prefix,
    head: Vec<u8>,
    /// Bytes between the head and the body.
    extra: Vec<u8>,
}

/// A body that comes.
struct Body {
    region: Region,
    /// Bytes that are there.
    filled: usize,
    len: usize,
    /// The buffer of the region, if that is no output's.
    buffer: Option<Gathered>,
    /// Where it lies in the memory of the other process, if it is lent.
    lent: Option<usize>,
}

impl Body {
    fn is_whole(&self) -> bool {
        self.filled == self.len
    }

    /// Returns the bytes; none if they are in their place already.
    fn finish(self) -> Block {
        let Self { region, buffer, .. } = self;
        drop(region);
        let block = buffer.and_then(Gathered::finish);
        block.unwrap_or_else(Block::empty)
    }
}

impl Incoming {
    pub(super) fn new(opening: Option<Box<dyn Opening>>) -> Self {
        Self {
            content: Vec::new(),
            taken: 0,
            records: opening.map(|opening| (opening, Vec::new())),
            stage: Stage::Head,
            neighbour: None,
            ring: None,
            notes: Notes::default(),
        }
    }

    /// Returns the content of frames since it was last asked.
    pub(super) fn notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }

    /// Returns whether a message has come in part, and its rest is waited for: not its call.
    pub(super) fn is_inside(&self) -> bool {
        match &self.stage {
            Stage::Head => {
                let records = self.records.as_ref();
                self.taken < self.content.len()
                    || records.is_some_and(|(_, records)| !records.is_empty())
            }
            Stage::Held(..) => false,
            Stage::Body(..) => true,
        }
    }

    fn left(&self) -> &[u8] {
        &self.content[self.taken..]
    }

    /// Returns the next message, if all of it has come, after a turn of reading.
    pub(super) fn receive(
        &mut self,
        from: impl AsFd,
        matcher: Matcher,
        pool: &Arc<Pool>,
    ) -> Result<Option<(Vec<u8>, Block)>, Broken> {
        let mut room = TURN_BYTES_MAX;
        loop {
            let goes_on = match std::mem::replace(&mut self.stage, Stage::Head) {
                Stage::Head => match self.take_frame()? {
                    Some(frame) => match self.stage_of(frame)? {
                        Stage::Held(head, 0, ..) => return Ok(Some((head, Block::empty()))),
                        stage => {
                            self.stage = stage;
                            true
                        }
                    },
                    None => self.read(&from, &mut room)?,
                },
                Stage::Held(head, len, lent, since) => {
                    let destination = matcher(&head, len);
                    let is_here = lent.is_none() && self.left().len() >= len;
                    let waits = !is_here && since.elapsed() < held_max(len);
                    if waits && matches!(destination, Destination::Later) {
                        self.stage = Stage::Held(head, len, lent, since);
                        return Ok(None);
                    }
                    self.stage = Stage::Body(head, body(destination, len, lent, pool));
                    true
                }
                Stage::Body(head, mut body) => {
                    let goes_on = self.fill(&mut body, &from, &mut room)?;
                    if body.is_whole() {
                        return Ok(Some((head, body.finish())));
                    }
                    self.stage = Stage::Body(head, body);
                    goes_on
                }
            };
            if !goes_on || room == 0 {
                return Ok(None);
            }
        }
    }

    /// Cuts a frame, but for its body, off the front of what has come.
    fn take_frame(&mut self) -> Result<Option<Frame>, Broken> {
        let Some((prefix, rest)) = self.left().split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let prefix = Prefix::parse(prefix).map_err(Broken::Malformed)?;
        let whole = prefix.head + prefix.extra();
        let Some(bytes) = rest.get(..whole) else {
            return Ok(None);
        };
        let (head, extra) = bytes.split_at(prefix.head);
        let (head, extra) = (head.to_vec(), extra.to_vec());
        self.taken += PREFIX_BYTES + whole;
        Ok(Some(Frame {
            prefix,
            head,
            extra,
        }))
    }

    /// Returns what follows a frame, and notes what it says if it is no message.
    fn stage_of(&mut self, frame: Frame) -> Result<Stage, Broken> {
        let Frame {
            prefix,
            head,
            extra,
        } = frame;
        let malformed = |what: &str| Err(Broken::Malformed(what.to_string()));
        match prefix.kind {
            Kind::Message => return Ok(Stage::Held(head, prefix.body, None, Instant::now())),
            Kind::Lent => {
                let address = extra.try_into().ok().map(u64::from_le_bytes);
                let address = address.and_then(|address| usize::try_from(address).ok());
                return match (self.neighbour, address) {
                    (Some(_), Some(address)) => {
                        let now = Instant::now();
                        Ok(Stage::Held(head, prefix.body, Some(address), now))
                    }
                    _ => malformed("a loan that this process cannot read"),
                };
            }
            Kind::Card => match Card::parse(&head) {
                None => return malformed("a card that is none"),
                Some(card) if card.is_readable() => {
                    self.neighbour = Some(card.pid);
                    self.notes.reads = true;
                    let open = |number| Reader::open(card.pid, number).ok();
                    self.ring = card.ring.and_then(open).map(|reader| Ring {
                        reader,
                        is_used: false,
                        vain_looks: 0,
                    });
                    self.notes.maps = self.ring.is_some();
                }
                Some(_) => {}
            },
            Kind::Reads => self.notes.is_read = true,
            Kind::Returned => self.notes.returned += 1,
            Kind::Maps => self.notes.is_mapped = true,
            Kind::Moved => match &mut self.ring {
                Some(ring) if !ring.is_used && self.taken == self.content.len() => {
                    ring.is_used = true;
                }
                _ => return malformed("words of a ring that this process does not have"),
            },
        }
        Ok(Stage::Head)
    }

    /// Brings bytes to a body: those that are here, then what the connection has. Returns whether there may be more.
    fn fill(&mut self, body: &mut Body, from: impl AsFd, room: &mut usize) -> Result<bool, Broken> {
        if let (Some(address), Some(pid)) = (body.lent, self.neighbour) {
            let rest = body.region.rest(body.filled);
            let len = rest.len().min(*room);
            let copied = copy_from(pid, address + body.filled, &mut rest[..len]);
            let copied = copied.map_err(|error| {
                Broken::Ended(format!("the memory of the process cannot be read: {error}"))
            })?;
            body.filled += copied;
            *room -= copied;
            self.notes.done += usize::from(body.is_whole());
            return Ok(true);
        }
        let here = self.left();
        let here = &here[..here.len().min(body.len - body.filled)];
        if !here.is_empty() {
            body.region.put(body.filled, here);
            body.filled += here.len();
            self.taken += here.len();
        }
        if body.is_whole() {
            return Ok(true);
        }
        if self.records.is_some() {
            return self.read(from, room);
        }
        let rest = body.region.rest(body.filled);
        let len = rest.len().min(*room);
        let read = match &mut self.ring {
            Some(ring) if ring.is_used => ring.read(from, &mut rest[..len])?,
            _ => bytes_of(rustix::io::read(from, &mut rest[..len]).map(|(read, _)| read.len()))?,
        };
        let Some(bytes) = read else {
            return Ok(false);
        };
        body.filled += bytes;
        *room -= bytes;
        Ok(true)
    }

    /// Reads what the connection has; returns whether that was anything.
    fn read(&mut self, from: impl AsFd, room: &mut usize) -> Result<bool, Broken> {
        self.content.drain(..self.taken);
        self.taken = 0;
        let bytes = match (&mut self.records, &mut self.ring) {
            (None, Some(ring)) if ring.is_used => {
                self.content.reserve(READ_BYTES);
                let read = ring.read(from, self.content.spare_capacity_mut())?;
                // SAFETY: so many bytes behind the others were written.
                unsafe { self.content.set_len(self.content.len() + read.unwrap_or(0)) };
                read
            }
            (None, _) => {
                self.content.reserve(READ_BYTES);
                bytes_of(rustix::io::read(from, spare_capacity(&mut self.content)))?
            }
            (Some((_, records)), _) => {
                records.reserve(RECORDS_BYTES);
                bytes_of(rustix::io::read(from, spare_capacity(records)))?
            }
        };
        let Some(bytes) = bytes else {
            return Ok(false);
        };
        *room = room.saturating_sub(bytes);
        if let Some((opening, records)) = &mut self.records {
            let taken = opening.take(records, &mut self.content);
            taken.map_err(|error| Broken::Malformed(error.to_string()))?;
        }
        Ok(true)
    }
}

impl Ring {
    /// Moves what the ring has to the front of `into`; `None` if there is nothing for now. The connection `from` has
    /// nothing any more but its end.
    fn read(
        &mut self,
        from: impl AsFd,
        into: &mut [MaybeUninit<u8>],
    ) -> Result<Option<usize>, Broken> {
        let malformed = |error: std::io::Error| Broken::Malformed(error.to_string());
        let read = self.reader.read(into).map_err(malformed)?;
        if read > 0 {
            self.vain_looks = 0;
            return Ok(Some(read));
        }
        self.vain_looks += 1;
        if self.vain_looks < VAIN_LOOKS {
            return Ok(None);
        }
        self.vain_looks = 0;
        match bytes_of(rustix::io::read(from, &mut [0_u8])) {
            Ok(None) => Ok(None),
            Ok(Some(_)) => Err(Broken::Malformed("bytes beside its ring".into())),
            // It may have written before it ended.
            Err(end) => match self.reader.read(into).map_err(malformed)? {
                0 => Err(end),
                read => Ok(Some(read)),
            },
        }
    }
}

fn body(destination: Destination, len: usize, lent: Option<usize>, pool: &Arc<Pool>) -> Body {
    let (region, buffer) = match destination {
        Destination::Region(region) => (region, None),
        Destination::Buffer | Destination::Later => {
            let (buffer, region) = Gathered::one(len, pool);
            (region, Some(buffer))
        }
    };
    Body {
        region,
        filled: 0,
        len,
        buffer,
        lent,
    }
}

/// Returns how many bytes were read; `None` if there are none for now.
fn bytes_of(read: rustix::io::Result<usize>) -> Result<Option<usize>, Broken> {
    match read {
        Ok(0) => Err(Broken::Ended("the other end has closed it".into())),
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(Broken::Ended(std::io::Error::from(error).to_string())),
    }
}
