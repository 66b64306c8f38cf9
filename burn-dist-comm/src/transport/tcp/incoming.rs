//! Bytes as they come, and messages as they are whole.

use super::{BODY_BYTES_MAX, Broken, HEAD_BYTES_MAX, Opening, PREFIX_BYTES, TURN_BYTES_MAX};
use crate::Block;
use crate::buffer::{Gathered, Pool, Region};
use crate::transport::{Destination, Matcher, held_max};
use rustix::buffer::spare_capacity;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are read at once where it is not known yet whose they are.
const READ_BYTES: usize = 64 << 10;

/// Bytes of records that are read at once.
const RECORDS_BYTES: usize = 256 << 10;

/// What has come over a connection and is no whole message yet.
pub(super) struct Incoming {
    /// Bytes that are no part of a body yet.
    content: Vec<u8>,
    /// How many of them are done with.
    taken: usize,
    /// How records are opened, and those that are not whole yet.
    records: Option<(Box<dyn Opening>, Vec<u8>)>,
    stage: Stage,
}

/// How far a message has come.
enum Stage {
    /// Its head is not whole.
    Head,
    /// Its body, of so many bytes, waits for its call since then.
    Held(Vec<u8>, usize, Instant),
    Body(Vec<u8>, Body),
}

/// A body that comes.
struct Body {
    region: Region,
    /// Bytes that are there.
    filled: usize,
    len: usize,
    /// What the region is a part of, if it is no output's.
    buffer: Option<Gathered>,
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
        }
    }

    /// Returns whether a message has come in part.
    pub(super) fn is_inside(&self) -> bool {
        let is_record = self.records.as_ref();
        !matches!(self.stage, Stage::Head)
            || self.taken < self.content.len()
            || is_record.is_some_and(|(_, records)| !records.is_empty())
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
                Stage::Head => match self.take_head()? {
                    Some((head, 0)) => return Ok(Some((head, Block::empty()))),
                    Some((head, len)) => {
                        self.stage = Stage::Held(head, len, Instant::now());
                        true
                    }
                    None => self.read(&from, &mut room)?,
                },
                Stage::Held(head, len, since) => {
                    let destination = matcher(&head, len);
                    let waits = self.left().len() < len && since.elapsed() < held_max(len);
                    if waits && matches!(destination, Destination::Later) {
                        self.stage = Stage::Held(head, len, since);
                        return Ok(None);
                    }
                    self.stage = Stage::Body(head, body(destination, len, pool));
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

    /// Cuts a head off the front of what has come; returns it, and the length of its body.
    fn take_head(&mut self) -> Result<Option<(Vec<u8>, usize)>, Broken> {
        let Some((prefix, rest)) = self.left().split_first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let [a, b, c, d, body @ ..] = *prefix;
        let head = u32::from_le_bytes([a, b, c, d]) as usize;
        let body = u64::from_le_bytes(body);
        if head > HEAD_BYTES_MAX || body > BODY_BYTES_MAX {
            return Err(Broken::Malformed(format!(
                "a message with a head of {head} and a body of {body} bytes, where {HEAD_BYTES_MAX} and \
                 {BODY_BYTES_MAX} are the most"
            )));
        }
        let Some(bytes) = rest.get(..head) else {
            return Ok(None);
        };
        let bytes = bytes.to_vec();
        self.taken += PREFIX_BYTES + head;
        Ok(Some((bytes, body as usize)))
    }

    /// Brings bytes to a body: those that are here, then what the connection has. Returns whether there may be more.
    fn fill(&mut self, body: &mut Body, from: impl AsFd, room: &mut usize) -> Result<bool, Broken> {
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
        let read = rustix::io::read(from, &mut rest[..len]);
        let Some(bytes) = bytes_of(read.map(|(read, _)| read.len()))? else {
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
        let bytes = match &mut self.records {
            None => {
                self.content.reserve(READ_BYTES);
                rustix::io::read(from, spare_capacity(&mut self.content))
            }
            Some((_, records)) => {
                records.reserve(RECORDS_BYTES);
                rustix::io::read(from, spare_capacity(records))
            }
        };
        let Some(bytes) = bytes_of(bytes)? else {
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

fn body(destination: Destination, len: usize, pool: &Arc<Pool>) -> Body {
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
