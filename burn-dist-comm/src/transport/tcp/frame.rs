//! Frames: what a connection carries.
//!
//! A frame begins with twelve bytes: its kind (a byte) and the length of its head (three), and the length of its body
//! (eight), all little-endian. Then comes the head, and behind it what the kind says.

/// The longest head; the engine's are shorter.
pub(super) const HEAD_BYTES_MAX: usize = 16 << 10;

/// The longest body: more than any tensor is memory that nobody has, so what says so is no message.
const BODY_BYTES_MAX: u64 = 1 << 40;

pub(super) const PREFIX_BYTES: usize = 12;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message; its body follows.
    Message,
    /// A message whose body is lent: the address of it in the sender's memory follows.
    Lent,
    /// The [`Card`] of the sender, as the head.
    Card,
    /// The sender can read the memory of the receiver.
    Reads,
    /// The sender is done with the oldest loan.
    Returned,
    /// The sender has the ring of the receiver.
    Maps,
    /// The last frame of the connection: all later ones come by the ring of the sender.
    Moved,
}

const KINDS: [Kind; 7] = [
    Kind::Message,
    Kind::Lent,
    Kind::Card,
    Kind::Reads,
    Kind::Returned,
    Kind::Maps,
    Kind::Moved,
];

/// The start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) kind: Kind,
    pub(super) head: usize,
    pub(super) body: usize,
}

impl Prefix {
    pub(super) fn to_bytes(self) -> [u8; PREFIX_BYTES] {
        let mut bytes = [0; PREFIX_BYTES];
        bytes[..4].copy_from_slice(&((self.head as u32) << 8).to_le_bytes());
        bytes[0] = self.kind as u8;
        bytes[4..].copy_from_slice(&(self.body as u64).to_le_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(bytes: &[u8; PREFIX_BYTES]) -> Result<Self, String> {
        let [kind, a, b, c, body @ ..] = *bytes;
        let head = u32::from_le_bytes([a, b, c, 0]) as usize;
        let body = u64::from_le_bytes(body);
        let Some(kind) = KINDS.get(usize::from(kind)) else {
            return Err(format!("a frame of kind {kind}, which there is not"));
        };
        if head > HEAD_BYTES_MAX || body > BODY_BYTES_MAX {
            return Err(format!(
                "a message with a head of {head} and a body of {body} bytes, where {HEAD_BYTES_MAX} and \
                 {BODY_BYTES_MAX} are the most"
            ));
        }
        Ok(Self {
            kind: *kind,
            head,
            body: body as usize,
        })
    }

    /// Bytes behind the head that are none of the body.
    pub(super) fn extra(self) -> usize {
        match self.kind {
            Kind::Lent => 8,
            _ => 0,
        }
    }
}

/// The place of a number in the memory of a process, by which another one sees whether it can read there, and where it
/// finds the process's [ring](super::ring).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) pid: u32,
    pub(super) address: u64,
    pub(super) number: u64,
    pub(super) ring: Option<u32>,
}

/// Stands for the number of a ring where there is none.
const NO_RING: u64 = u64::MAX;

impl Card {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let ring = self.ring.map_or(NO_RING, u64::from);
        let parts = [self.pid.into(), self.address, self.number, ring];
        parts.map(u64::to_le_bytes).concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks() else {
            return None;
        };
        let &[pid, address, number, ring] = numbers else {
            return None;
        };
        Some(Self {
            pid: u64::from_le_bytes(pid).try_into().ok()?,
            address: u64::from_le_bytes(address),
            number: u64::from_le_bytes(number),
            ring: match u64::from_le_bytes(ring) {
                NO_RING => None,
                ring => Some(ring.try_into().ok()?),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_are_written() {
        for kind in KINDS {
            for (head, body) in [(0, 0), (HEAD_BYTES_MAX, 1 << 40), (7, 300)] {
                let prefix = Prefix { kind, head, body };
                assert_eq!(Prefix::parse(&prefix.to_bytes()), Ok(prefix));
            }
        }
        for ring in [None, Some(0), Some(u32::MAX)] {
            let card = Card {
                pid: 7,
                address: u64::MAX,
                number: 3,
                ring,
            };
            let bytes = card.to_bytes();
            assert_eq!(Card::parse(&bytes), Some(card));
            for wrong in [&bytes[..31], &bytes[..24], &[0xff; 32], &[]] {
                assert_eq!(Card::parse(wrong), None);
            }
        }
    }

    #[test]
    fn other_bytes_are_no_frame() {
        for (bytes, expected) in [
            ([9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "kind 9"),
            ([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], "a head of 65536"),
            ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "are the most"),
        ] {
            let error = Prefix::parse(&bytes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
