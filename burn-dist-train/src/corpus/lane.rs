//! One lane of one source: blocks of documents, read, shuffled and packed one after the other.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Corpus;
use super::counts::Counts;
use super::error::CorpusError;
use super::pack::{self, Cut, Piece, Segment};
use super::read::Reader;
use super::row::Row;
use crate::rng::Rng;

/// Where a block begins: all that its rows depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Blocks before it.
    number: u64,
    /// Rows before it.
    pub(super) first_row: u64,
    /// How often the share has been gone through.
    epoch: u64,
    /// From where it is read.
    at: u64,
    /// True if all of the source is the share, since the share has no document of use.
    whole: bool,
    /// The documents that waited for it by their places, and their tokens from and to.
    carried: Vec<(u64, usize, usize)>,
}

/// The rows of one source in one lane.
#[derive(Debug)]
pub(super) struct Lane {
    number: usize,
    source: usize,
    start: Arc<Start>,
    block: Option<Block>,
}

#[derive(Debug)]
struct Block {
    pieces: Vec<Piece>,
    rows: Vec<Vec<Segment>>,
    next: Start,
    carried: Vec<Piece>,
    /// All of the share, if the block has it: what need not be read again.
    share: Option<Read>,
}

/// The documents that were read for a block.
#[derive(Clone, Debug)]
struct Read {
    pieces: Vec<Piece>,
    /// From where the next block is read.
    at: u64,
    whole: bool,
    /// How many ends of the share were reached.
    ends: u64,
}

impl Lane {
    pub(super) fn new(corpus: &Corpus, number: usize, source: usize) -> Self {
        let at = corpus.share(number, source, false).start;
        let start = Start {
            number: 0,
            first_row: 0,
            epoch: 0,
            at,
            whole: false,
            carried: Vec::new(),
        };
        Self::at(number, source, start)
    }

    /// Goes on with the block that begins there.
    pub(super) fn at(number: usize, source: usize, start: Start) -> Self {
        Self {
            number,
            source,
            start: Arc::new(start),
            block: None,
        }
    }

    /// Where the block of the last row begins.
    pub(super) fn start(&self) -> &Arc<Start> {
        &self.start
    }

    /// A row by its number, none of which may lie before those of the block; `None` at the end of a corpus that is gone
    /// through once.
    pub(super) fn row(
        &mut self,
        nth: u64,
        corpus: &Corpus,
        reader: &mut dyn Reader,
        counts: &mut Counts,
    ) -> Result<Option<Row>, CorpusError> {
        loop {
            let (carried, share) = match self.block.take() {
                Some(block) => {
                    let index = (nth - self.start.first_row) as usize;
                    if let Some(segments) = block.rows.get(index) {
                        let policy = &corpus.policy;
                        let row = Row::new(
                            &block.pieces,
                            segments,
                            (policy.seq, policy.pad),
                            self.source,
                        );
                        counts.add_row(&row);
                        self.block = Some(block);
                        return Ok(Some(row));
                    }
                    self.start = Arc::new(block.next);
                    (Some(block.carried), block.share)
                }
                None => (None, None),
            };
            let mut making = Making {
                corpus,
                lane: self,
                reader,
                counts,
            };
            match making.block(carried, share)? {
                Some(block) => self.block = Some(block),
                None => return Ok(None),
            }
        }
    }
}

/// The making of a block.
struct Making<'a> {
    corpus: &'a Corpus,
    lane: &'a Lane,
    reader: &'a mut dyn Reader,
    counts: &'a mut Counts,
}

impl Making<'_> {
    /// The block that begins where the lane is. What waited for it and what its share holds is read, unless it is
    /// there.
    fn block(
        &mut self,
        carried: Option<Vec<Piece>>,
        share: Option<Read>,
    ) -> Result<Option<Block>, CorpusError> {
        let start = &*self.lane.start;
        let policy = &self.corpus.policy;
        if self.corpus.once && start.epoch > 0 && start.carried.is_empty() {
            return Ok(None);
        }
        let mut pieces = match carried {
            Some(carried) => carried,
            None => self.carried(&start.carried)?,
        };
        let is_all = start.at == self.share(start.whole).start;
        let read = match share {
            Some(read) => read,
            None => self.read(!pieces.is_empty())?,
        };
        pieces.extend(read.pieces.iter().cloned());
        let keys = [
            policy.seed,
            self.lane.source as u64,
            self.lane.number as u64,
            start.number,
        ];
        let mut random = Rng::of_keys(&keys);
        let last = self.corpus.once && start.epoch + read.ends > 0;
        if !self.corpus.once {
            random.shuffle(&mut pieces);
        }
        let capacity = policy.seq + 1;
        let mut made = pack::pack(&pieces, capacity, policy.packing, last);
        if !self.corpus.once {
            random.shuffle(&mut made.rows);
        }
        let carried: Vec<Piece> = made
            .carried
            .iter()
            .map(|part| Piece {
                from: part.from,
                to: part.to,
                carried: true,
                ..pieces[part.piece].clone()
            })
            .collect();
        let next = Start {
            number: start.number + 1,
            first_row: start.first_row + made.rows.len() as u64,
            epoch: start.epoch + read.ends,
            at: read.at,
            whole: read.whole,
            carried: carried
                .iter()
                .map(|piece| (piece.at, piece.from, piece.to))
                .collect(),
        };
        // From the beginning of the share to its end, once: the next block reads the same.
        let is_all = is_all && read.ends == 1 && read.whole == start.whole;
        Ok(Some(Block {
            pieces,
            rows: made.rows,
            next,
            carried,
            share: (is_all && !self.corpus.once).then_some(read),
        }))
    }

    fn share(&self, whole: bool) -> Range<u64> {
        self.corpus.share(self.lane.number, self.lane.source, whole)
    }

    /// Reads what waited.
    fn carried(&mut self, places: &[(u64, usize, usize)]) -> Result<Vec<Piece>, CorpusError> {
        let mut pieces: Vec<Piece> = Vec::with_capacity(places.len());
        for (at, from, to) in places {
            let before = pieces.iter().find(|piece| piece.at == *at);
            let document = match before {
                Some(piece) => Arc::clone(&piece.document),
                None => {
                    self.reader.seek(*at)?;
                    let changed = || CorpusError::Position {
                        reason: format!("no document begins at {at} any more"),
                    };
                    let (found, document) = self.reader.next()?.ok_or_else(changed)?;
                    if found != *at {
                        return Err(changed());
                    }
                    let encoded = self.corpus.encode.encode(&document);
                    Arc::new(self.located(*at, encoded)?)
                }
            };
            if *to > document.ids.len() || from + 1 >= *to {
                return Err(CorpusError::Position {
                    reason: format!(
                        "the document at {at} has {} tokens, and its tokens {from} to {to} are asked for",
                        document.ids.len()
                    ),
                });
            }
            pieces.push(Piece {
                document,
                at: *at,
                from: *from,
                to: *to,
                carried: true,
            });
        }
        Ok(pieces)
    }

    fn located<T>(
        &mut self,
        at: u64,
        encoded: Result<T, super::EncodeError>,
    ) -> Result<T, CorpusError> {
        encoded.map_err(|error| CorpusError::Encode {
            place: self.reader.place(at),
            reason: error.to_string(),
        })
    }

    /// Reads documents up to the size of a block, or to the end of the share if there are any before it.
    fn read(&mut self, has_pieces: bool) -> Result<Read, CorpusError> {
        let start = &*self.lane.start;
        let policy = &self.corpus.policy;
        let source = &self.corpus.sources[self.lane.source];
        // The first blocks have different sizes, so that lanes do not all have to be read in the same step.
        let bytes_max = match start.number {
            0 => self.corpus.block_bytes * (self.lane.number as u64 + 1) / self.corpus.lanes as u64,
            _ => self.corpus.block_bytes,
        };
        let mut read = Read {
            pieces: Vec::new(),
            at: start.at,
            whole: start.whole,
            ends: 0,
        };
        loop {
            let share = self.share(read.whole);
            let is_all = read.at == share.start;
            let (mut bytes, mut count, mut shortest) = (0, 0, usize::MAX);
            self.reader.seek(read.at)?;
            let ended = loop {
                let Some((at, document)) = self.reader.next()?.filter(|(at, _)| *at < share.end)
                else {
                    break true;
                };
                read.at = self.reader.at();
                if source.except.binary_search(&at).is_ok() {
                    continue;
                }
                bytes += document.len() as u64;
                let encoded = self.corpus.encode.encode(&document);
                let encoded = self.located(at, encoded)?;
                let len = encoded.ids.len();
                count += 1;
                shortest = shortest.min(len);
                self.counts.documents += 1;
                match pack::cut(encoded, at, policy.seq + 1, policy.packing, policy.longer) {
                    Cut::Pieces(pieces) => {
                        self.counts.split += u64::from(len > policy.seq + 1);
                        read.pieces.extend(pieces);
                    }
                    Cut::Short => self.counts.short += 1,
                    Cut::Dropped => self.counts.dropped += 1,
                    Cut::Refused => {
                        return Err(CorpusError::Longer {
                            place: self.reader.place(at),
                            tokens: len,
                            seq: policy.seq,
                        });
                    }
                }
                if bytes >= bytes_max && !read.pieces.is_empty() {
                    break false;
                }
            };
            if !ended {
                return Ok(read);
            }
            (read.at, read.ends) = (share.start, read.ends + 1);
            let is_enough = !read.pieces.is_empty() || (self.corpus.once && has_pieces);
            if is_enough || (self.corpus.once && !is_all) {
                return Ok(read);
            }
            if !is_all {
                continue;
            }
            let name = source.name.clone();
            if share == (0..self.corpus.ends[self.lane.source]) {
                return Err(match count {
                    0 => CorpusError::Empty { name },
                    _ => CorpusError::NoneFits {
                        name,
                        count,
                        seq: policy.seq,
                        shortest,
                    },
                });
            }
            // This lane's share has nothing that fits: it reads everything.
            (read.at, read.whole) = (0, true);
        }
    }
}
