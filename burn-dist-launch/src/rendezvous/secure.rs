//! Connections that only those with the token can read, write or change.
//!
//! The handshake is that of the [Noise protocol](https://noiseprotocol.org/noise.html), pattern `NNpsk0`: each side
//! draws a key for this connection alone, and the token, as a key that both have already, goes into everything. Two
//! messages, after which each side knows that the other one has the token, and nobody who learns it later can read what
//! was sent. What follows are *records*: a length (`u16`, little-endian) and so many bytes, sealed under the number of
//! the record, so that one that is changed, left out, repeated or moved ends the connection.

use super::primitives::{Primitives, TAG_BYTES};
use super::token::Token;
use snow::{Builder, HandshakeState, StatelessTransportState};
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// A public key, and the mark of a message without content.
pub(crate) const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;

/// The longest record, its length aside.
const RECORD_BYTES_MAX: usize = u16::MAX as usize;

/// The most that one record seals.
const CONTENT_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;

/// The side that connects, until the other one has answered.
pub(crate) struct Calling(HandshakeState);

impl Calling {
    /// Returns the first message too. Both sides have to see the same `context`: something that the other one has drawn
    /// just now, so that what was recorded earlier opens nothing.
    pub(crate) fn begin(token: &Token, context: &[u8]) -> std::io::Result<(Self, Vec<u8>)> {
        let mut state = with_token(token, context, |builder| builder.build_initiator())?;
        let mut message = vec![0; HANDSHAKE_BYTES];
        let len = state.write_message(&[], &mut message).map_err(failed)?;
        message.truncate(len);
        Ok((Self(state), message))
    }

    /// Returns the content of the other side's answer, and the keys.
    ///
    /// # Errors
    /// If it does not have the token.
    pub(crate) fn finish(mut self, answer: &[u8]) -> std::io::Result<(Vec<u8>, Keys)> {
        let mut content = vec![0; answer.len()];
        let len = self.0.read_message(answer, &mut content).map_err(failed)?;
        content.truncate(len);
        Ok((content, Keys::of(self.0)?))
    }
}

/// Answers the first message of a caller with one that holds `content`; returns that, and the keys.
///
/// # Errors
/// If the caller does not have the token, or sent something else.
pub(crate) fn answer(
    token: &Token,
    context: &[u8],
    first: &[u8],
    content: &[u8],
) -> std::io::Result<(Vec<u8>, Keys)> {
    let mut state = with_token(token, context, |builder| builder.build_responder())?;
    let mut nothing = vec![0; first.len()];
    state.read_message(first, &mut nothing).map_err(failed)?;
    let mut message = vec![0; HANDSHAKE_BYTES + content.len()];
    let len = state.write_message(content, &mut message).map_err(failed)?;
    message.truncate(len);
    Ok((message, Keys::of(state)?))
}

/// A handshake in which both sides prove that they have the token.
fn with_token(
    token: &Token,
    context: &[u8],
    build: impl FnOnce(Builder<'_>) -> Result<HandshakeState, snow::Error>,
) -> std::io::Result<HandshakeState> {
    let key = token.prove("the key of connections", &[]);
    let pattern = PATTERN.parse().map_err(failed)?;
    let builder = Builder::with_resolver(pattern, Box::new(Primitives));
    let builder = builder.psk(0, &key).map_err(failed)?;
    build(builder.prologue(context).map_err(failed)?).map_err(failed)
}

fn failed(error: snow::Error) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, error.to_string())
}

/// The keys of a connection, one for each direction.
pub(crate) struct Keys(Arc<StatelessTransportState>);

impl Keys {
    fn of(state: HandshakeState) -> std::io::Result<Self> {
        let keys = state.into_stateless_transport_mode().map_err(failed)?;
        Ok(Self(Arc::new(keys)))
    }

    /// Returns what seals and what opens.
    pub(crate) fn split(self) -> (Seal, Open) {
        let (keys, next) = (Arc::clone(&self.0), 0);
        (Seal { keys, next }, Open { keys: self.0, next })
    }
}

/// Seals what goes out.
#[derive(Debug)]
pub(crate) struct Seal {
    keys: Arc<StatelessTransportState>,
    /// The number of the next record.
    next: u64,
}

impl Seal {
    /// Appends records that hold `content`.
    pub(crate) fn append(&mut self, content: &[u8], records: &mut Vec<u8>) -> std::io::Result<()> {
        for content in content.chunks(CONTENT_BYTES_MAX) {
            let start = records.len();
            let len = content.len() + TAG_BYTES;
            records.extend((len as u16).to_le_bytes());
            records.resize(start + 2 + len, 0);
            let sealed = &mut records[start + 2..];
            let written = self.keys.write_message(self.next, content, sealed);
            written.map_err(failed)?;
            self.next += 1;
        }
        Ok(())
    }
}

/// Opens what comes in.
#[derive(Debug)]
pub(crate) struct Open {
    keys: Arc<StatelessTransportState>,
    /// The number of the next record.
    next: u64,
}

impl Open {
    /// Takes whole records off the front of what has come, and appends what they hold.
    ///
    /// # Errors
    /// If somebody else has sealed them, or changed, left out, repeated or moved one.
    pub(crate) fn take(
        &mut self,
        records: &mut Vec<u8>,
        content: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        let mut start = 0;
        while let Some(len) = records.get(start..start + 2) {
            let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
            let Some(record) = records.get(start + 2..start + 2 + len) else {
                break;
            };
            self.record(record, content)?;
            start += 2 + len;
        }
        records.drain(..start);
        Ok(())
    }

    fn record(&mut self, record: &[u8], content: &mut Vec<u8>) -> std::io::Result<()> {
        let start = content.len();
        content.resize(start + record.len(), 0);
        let opened = self
            .keys
            .read_message(self.next, record, &mut content[start..]);
        let len = opened.map_err(|_| {
            std::io::Error::new(
                ErrorKind::InvalidData,
                "it sent what nobody with the token has sealed, or somebody has changed it on the way",
            )
        })?;
        content.truncate(start + len);
        self.next += 1;
        Ok(())
    }
}

/// Writes to a connection, sealed.
#[derive(Debug)]
pub(crate) struct Sealed<W> {
    pub(crate) to: W,
    pub(crate) seal: Seal,
}

impl<W: Write> Write for Sealed<W> {
    /// Writes all of it.
    fn write(&mut self, content: &[u8]) -> std::io::Result<usize> {
        let mut records = Vec::new();
        self.seal.append(content, &mut records)?;
        self.to.write_all(&records)?;
        Ok(content.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Reads what [`Sealed`] writes. After an error, a time-out too, nothing more can be read.
#[derive(Debug)]
pub(crate) struct Opened<R> {
    from: R,
    open: Open,
    /// The content of the last record.
    content: Vec<u8>,
    /// How much of that was read.
    taken: usize,
}

impl<R: Read> Opened<R> {
    pub(crate) fn new(from: R, open: Open) -> Self {
        Self {
            from,
            open,
            content: Vec::new(),
            taken: 0,
        }
    }
}

impl<R: Read> Read for Opened<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.content.len() && !into.is_empty() {
            (self.taken, self.content) = (0, Vec::new());
            let mut len = [0; 2];
            self.from.read_exact(&mut len)?;
            let mut record = vec![0; usize::from(u16::from_le_bytes(len))];
            self.from.read_exact(&mut record)?;
            self.open.record(&record, &mut self.content)?;
        }
        let left = &self.content[self.taken..];
        let len = left.len().min(into.len());
        into[..len].copy_from_slice(&left[..len]);
        self.taken += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token::random().expect("random")
    }

    /// Returns the keys of both sides.
    fn keys(token: &Token) -> (Keys, Keys) {
        let (calling, first) = Calling::begin(token, b"context").expect("a first message");
        let (answer, theirs) = answer(token, b"context", &first, b"welcome").expect("an answer");
        let (content, ours) = calling.finish(&answer).expect("the same token");
        assert_eq!(content, b"welcome");
        (ours, theirs)
    }

    #[test]
    fn only_the_same_token_in_the_same_context_opens() {
        let (right, wrong) = (token(), token());
        for (token, context) in [(&wrong, &b"context"[..]), (&right, b"other")] {
            let (_, first) = Calling::begin(&right, b"context").expect("a first message");
            let error = answer(token, context, &first, b"").map(drop);
            assert!(error.is_err(), "{context:?}");
        }
        // Who answers without the token, and who repeats what was answered to another caller.
        let (calling, first) = Calling::begin(&right, b"context").expect("a first message");
        let (old, _) = answer(&right, b"context", &first, b"").expect("an answer");
        let (next, _) = Calling::begin(&right, b"context").expect("a first message");
        assert!(next.finish(&old).is_err());
        assert!(calling.finish(&[7; HANDSHAKE_BYTES]).is_err());
        for first in [&[][..], &[0; HANDSHAKE_BYTES], &[1; 1000]] {
            assert!(answer(&right, b"context", first, b"").is_err());
        }
    }

    #[test]
    fn records_carry_any_number_of_bytes_and_show_none_of_them() {
        let (ours, theirs) = keys(&token());
        let ((mut seal, _), (_, mut open)) = (ours.split(), theirs.split());
        for num in [0, 1, CONTENT_BYTES_MAX, CONTENT_BYTES_MAX + 1, 1 << 20] {
            let secret = vec![b's'; num];
            let mut records = Vec::new();
            seal.append(&secret, &mut records).expect("sealed");
            assert!(!records.windows(8).any(|window| window == b"ssssssss"));
            let (mut come, mut content) = (Vec::new(), Vec::new());
            for piece in records.chunks(1000) {
                come.extend_from_slice(piece);
                open.take(&mut come, &mut content).expect("opened");
            }
            assert!(come.is_empty() && content == secret);
        }
    }

    #[test]
    fn streams_are_cut_as_they_like() {
        let (ours, theirs) = keys(&token());
        let ((seal, _), (_, open)) = (ours.split(), theirs.split());
        let mut sealed = Sealed {
            to: Vec::new(),
            seal,
        };
        for text in [&b"one"[..], b"", b" and two"] {
            sealed.write_all(text).expect("a vector");
        }
        let mut opened = Opened::new(&sealed.to[..], open);
        let mut text = [0; 5];
        opened.read_exact(&mut text).expect("so much");
        assert_eq!(&text, b"one a");
        let mut rest = [0; 6];
        opened.read_exact(&mut rest).expect("so much");
        assert_eq!(&rest, b"nd two");
        let end = opened.read(&mut rest).expect_err("no more");
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn whoever_writes_into_a_connection_ends_it() {
        type Change = fn(&mut Vec<u8>);
        let changes: [(&str, Change); 6] = [
            ("a bit", |records| records[9] ^= 1),
            ("a bit of the mark", |records| records[20] ^= 0x80),
            ("one left out", |records| drop(records.drain(..22))),
            ("one repeated", |records| {
                records.splice(0..0, records[..22].to_vec());
            }),
            ("two in the other order", |records| records.rotate_left(22)),
            ("plain bytes", |records| *records = vec![4, 0, 1, 2, 3, 4]),
        ];
        for (name, change) in changes {
            let (ours, theirs) = keys(&token());
            let ((mut seal, _), (_, mut open)) = (ours.split(), theirs.split());
            let (mut records, mut content) = (Vec::new(), Vec::new());
            for text in [b"abcd", b"efgh"] {
                seal.append(text, &mut records).expect("sealed");
            }
            change(&mut records);
            let taken = open.take(&mut records, &mut content);
            assert!(taken.is_err(), "{name}");
        }
        // Neither side takes what it has sent itself for the other's.
        let (ours, _) = keys(&token());
        let (mut seal, mut open) = ours.split();
        let mut records = Vec::new();
        seal.append(b"mirror", &mut records).expect("sealed");
        assert!(open.take(&mut records, &mut Vec::new()).is_err());
    }
}
