//! The claims of a column's pages, and what they are once unpacked, before anything unpacks them.
//!
//! The reader of Parquet makes room for whatever a page says, and two of its codecs unpack as much as there is. A few
//! kilobytes may so become gigabytes.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use parquet::basic::Compression;
use parquet::file::reader::Length;

use super::chunks::{Chunks, From};

/// The header of a page, with its statistics, is no longer.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Structures lie no deeper in a header.
const DEPTH_MAX: usize = 8;
/// Bytes that an entry of a dictionary takes besides its own.
const ENTRY_BYTES: u64 = 64;
/// The most that the codecs make of a byte.
const GZIP_RATIO: u64 = 1032;
const LZ4_RATIO: u64 = 255;
/// Types of fields in Thrift's compact protocol.
mod kind {
    pub(super) const TRUE: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
}

/// Checks that no page of a column chunk, which has `len` bytes from `start` on, takes more than `max` bytes.
pub(super) fn check(
    chunks: &Chunks,
    (start, len): (u64, u64),
    codec: Compression,
    max: u64,
) -> io::Result<()> {
    let end = start.saturating_add(len).min(chunks.len());
    let from = From::new(chunks.clone(), start);
    let mut pages = Pages {
        reader: BufReader::with_capacity(4 << 10, from),
        at: start,
        header_end: 0,
    };
    while pages.at < end {
        let page = pages.header()?;
        let (packed, unpacked) = (size(page.packed)?, size(page.unpacked)?);
        if packed > end.saturating_sub(pages.at) {
            return Err(invalid(format!(
                "a page of {packed} bytes goes on after its column"
            )));
        }
        let entries = size(page.entries)?.saturating_mul(ENTRY_BYTES);
        let takes = unpacked.saturating_add(entries);
        if takes > max {
            return Err(invalid(format!(
                "a page takes {takes} bytes once it is unpacked, of at most {max}: write smaller pages"
            )));
        }
        pages.check_packed(packed, unpacked, max, codec)?;
    }
    Ok(())
}

/// Pages one after the other.
struct Pages {
    reader: BufReader<From>,
    at: u64,
    /// Where the header that is being read has to end.
    header_end: u64,
}

/// The claims of a page's header.
#[derive(Default)]
struct Page {
    unpacked: i64,
    packed: i64,
    /// Entries of a dictionary.
    entries: i64,
}

impl Pages {
    fn header(&mut self) -> io::Result<Page> {
        self.header_end = self.at.saturating_add(HEADER_BYTES_MAX);
        let mut page = Page::default();
        let mut last = 0;
        while let Some((id, kind)) = self.field(last)? {
            last = id;
            match (id, kind) {
                (2, kind::I32) => page.unpacked = self.number()?,
                (3, kind::I32) => page.packed = self.number()?,
                // The header of a dictionary.
                (7, kind::STRUCT) => {
                    let mut last = 0;
                    while let Some((id, kind)) = self.field(last)? {
                        last = id;
                        match (id, kind) {
                            (1, kind::I32) => page.entries = self.number()?,
                            _ => self.skip(kind, 1)?,
                        }
                    }
                }
                _ => self.skip(kind, 0)?,
            }
        }
        Ok(page)
    }

    /// The next field of a structure; none at its end.
    fn field(&mut self, last: i64) -> io::Result<Option<(i64, u8)>> {
        let byte = self.byte()?;
        let (delta, kind) = (byte >> 4, byte & 15);
        Ok(match (byte, delta) {
            (0, _) => None,
            (_, 0) => Some((self.number()?, kind)),
            _ => Some((last.saturating_add(i64::from(delta)), kind)),
        })
    }

    fn skip(&mut self, kind: u8, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(invalid(
                "the header of a page has structures within structures",
            ));
        }
        match kind {
            kind::TRUE | kind::FALSE => Ok(()),
            kind::BYTE => self.byte().map(drop),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => (0..8).try_for_each(|_| self.byte().map(drop)),
            kind::BINARY => {
                let len = self.varint()?;
                (0..len).try_for_each(|_| self.byte().map(drop))
            }
            kind::LIST | kind::SET => {
                let byte = self.byte()?;
                let len = match byte >> 4 {
                    15 => self.varint()?,
                    len => u64::from(len),
                };
                (0..len).try_for_each(|_| self.item(byte & 15, depth))
            }
            kind::MAP => {
                let len = self.varint()?;
                if len == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                (0..len).try_for_each(|_| {
                    self.item(kinds >> 4, depth)?;
                    self.item(kinds & 15, depth)
                })
            }
            kind::STRUCT => {
                let mut last = 0;
                while let Some((id, kind)) = self.field(last)? {
                    last = id;
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            _ => Err(invalid("the header of a page is damaged")),
        }
    }

    /// Passes over one of several values, of which each takes a byte at least.
    fn item(&mut self, kind: u8, depth: usize) -> io::Result<()> {
        match kind {
            kind::TRUE | kind::FALSE => self.byte().map(drop),
            kind => self.skip(kind, depth + 1),
        }
    }

    fn number(&mut self) -> io::Result<i64> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(invalid("a number in the header of a page has no end"))
    }

    fn byte(&mut self) -> io::Result<u8> {
        if self.at >= self.header_end {
            return Err(invalid(format!(
                "the header of a page is longer than {HEADER_BYTES_MAX} bytes"
            )));
        }
        let mut byte = [0];
        self.reader.read_exact(&mut byte)?;
        self.at += 1;
        Ok(byte[0])
    }

    /// Passes over the bytes of a page, of which no more than it claims may come out.
    fn check_packed(
        &mut self,
        packed: u64,
        unpacked: u64,
        max: u64,
        codec: Compression,
    ) -> io::Result<()> {
        let from = self.at;
        self.at += packed;
        let ratio = match codec {
            Compression::GZIP(_) => GZIP_RATIO,
            Compression::LZ4 => LZ4_RATIO,
            // These unpack what the header claims, and no more.
            _ => 1,
        };
        if ratio == 1 || packed.saturating_mul(ratio) <= max {
            // Near ones are in the buffer.
            return self
                .reader
                .seek_relative(packed.try_into().unwrap_or(i64::MAX));
        }
        let bytes = self.reader.by_ref().take(packed);
        let found = match codec {
            Compression::LZ4 => count(lz4_flex::frame::FrameDecoder::new(bytes), unpacked),
            _ => count(flate2::bufread::MultiGzDecoder::new(bytes), unpacked),
        };
        if found > unpacked {
            return Err(invalid(format!(
                "a page is longer than the {unpacked} bytes that it claims to be once it is unpacked"
            )));
        }
        self.reader.seek(SeekFrom::Start(from + packed)).map(drop)
    }
}

/// Counts bytes up to one more than `most`. The error of what cannot be unpacked is that of whoever needs it.
fn count(reader: impl Read, most: u64) -> u64 {
    let (mut reader, mut found) = (reader.take(most.saturating_add(1)), 0);
    let mut buffer = [0; 16 << 10];
    while let Ok(more @ 1..) = reader.read(&mut buffer) {
        found += more as u64;
    }
    found
}

fn size(number: i64) -> io::Result<u64> {
    u64::try_from(number).map_err(|_| invalid("a page claims to be shorter than nothing"))
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}
