//! The head of a message: a byte that says which it is, numbers of 8 bytes, and a text.

use super::faults::Cause;
use crate::transport::Message;

/// Sends a message at once: what follows may take long.
pub(super) type Out<'a> = dyn FnMut(Message) + 'a;

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The part of one member's input that a process needs for a call.
    Input(InputId),
    /// A process runs a window; the body is its digest, if it is a new one, and the parts of data that others have too.
    Window {
        mesh: u64,
        number: u64,
        hash: u64,
        values: u64,
    },
    /// A rank makes no more calls.
    Left { mesh: u64, rank: u32 },
    /// All ranks are to stop.
    Stop { mesh: u64, cause: Cause },
    /// The program of the sender ends: it needs nothing any more, and only asks.
    Bye,
    /// Asks whether the receiver is still there.
    Ask,
    /// It is.
    Here,
    /// The introduction of the sender: its first message, of the same form in every version.
    Hello {
        pid: u32,
        version: String,
        host: String,
    },
}

/// Which input of which call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InputId {
    pub mesh: u64,
    /// Group, lane and direction, hashed alike by all processes.
    pub channel: u64,
    pub sequence: u64,
    /// Which of the rounds of the call.
    pub round: u8,
    /// Whose input, by place in the group.
    pub member: u32,
    /// Hash of what the call does: that of every member has to be equal.
    pub fingerprint: u64,
    /// The call, for people.
    pub call: String,
}

/// The first bytes of heads. The one of [`Head::Hello`] is of the same form in every version, and shorter.
const INPUT: u8 = 0;
const LEFT: u8 = 1;
const STOP: u8 = 2;
const WINDOW: u8 = 3;
const HELLO: u8 = 4;
const BYE: u8 = 5;
const ASK: u8 = 6;
const HERE: u8 = 7;

/// The longest text in a head; longer ones are cut.
const TEXT_BYTES_MAX: usize = 4096;

fn to_bytes(kind: u8, numbers: &[u64], text: &str) -> Vec<u8> {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // With room for what a transport appends to most of them.
    let mut head = Vec::with_capacity(192);
    head.push(kind);
    for number in numbers {
        head.extend_from_slice(&number.to_le_bytes());
    }
    head.extend_from_slice(&text.as_bytes()[..end]);
    head
}

/// Takes `N` numbers off the front.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (front, rest) = bytes.split_at_checked(8 * N)?;
    let (numbers, _) = front.as_chunks();
    let numbers: &[[u8; 8]; N] = numbers.try_into().ok()?;
    Some((numbers.map(u64::from_le_bytes), rest))
}

fn text(bytes: &[u8]) -> Option<String> {
    let is_short = bytes.len() <= TEXT_BYTES_MAX;
    is_short.then(|| String::from_utf8(bytes.to_vec()).ok())?
}

impl InputId {
    /// Writes the same as [`Head::to_bytes`].
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (round, member) = (self.round.into(), self.member.into());
        let numbers = [
            self.mesh,
            self.channel,
            self.sequence,
            round,
            member,
            self.fingerprint,
        ];
        to_bytes(INPUT, &numbers, &self.call)
    }

    /// Returns the input that a message brings, without its text; `None` if it is another message.
    pub(super) fn peek(head: &[u8]) -> Option<Self> {
        let rest = head.strip_prefix(&[INPUT])?;
        let ([mesh, channel, sequence, round, member, fingerprint], _) = numbers(rest)?;
        Some(Self {
            mesh,
            channel,
            sequence,
            round: round.try_into().ok()?,
            member: member.try_into().ok()?,
            fingerprint,
            call: String::new(),
        })
    }
}

impl Head {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Input(id) => id.to_bytes(),
            Self::Window {
                mesh,
                number,
                hash,
                values,
            } => to_bytes(WINDOW, &[*mesh, *number, *hash, *values], ""),
            Self::Left { mesh, rank } => to_bytes(LEFT, &[*mesh, (*rank).into()], ""),
            Self::Stop { mesh, cause } => {
                let numbers = [*mesh, cause.process.into(), cause.exit_code.into()];
                to_bytes(STOP, &numbers, &cause.reason)
            }
            Self::Bye => to_bytes(BYE, &[], ""),
            Self::Ask => to_bytes(ASK, &[], ""),
            Self::Here => to_bytes(HERE, &[], ""),
            Self::Hello { pid, version, host } => {
                let mut head = to_bytes(HELLO, &[], &format!("{version} {host}"));
                head.splice(1..1, pid.to_le_bytes());
                head
            }
        }
    }

    /// Reads a head; `None` if it is malformed.
    pub(super) fn parse(head: &[u8]) -> Option<Self> {
        let (&kind, rest) = head.split_first()?;
        Some(match kind {
            INPUT => {
                let (_, call) = numbers::<6>(rest)?;
                let call = text(call)?;
                Self::Input(InputId {
                    call,
                    ..InputId::peek(head)?
                })
            }
            LEFT => {
                let ([mesh, rank], []) = numbers(rest)? else {
                    return None;
                };
                let rank = rank.try_into().ok()?;
                Self::Left { mesh, rank }
            }
            STOP => {
                let ([mesh, process, exit_code], reason) = numbers(rest)?;
                let cause = Cause {
                    process: process.try_into().ok()?,
                    exit_code: exit_code.try_into().ok()?,
                    reason: text(reason)?,
                };
                Self::Stop { mesh, cause }
            }
            WINDOW => {
                let ([mesh, number, hash, values], []) = numbers(rest)? else {
                    return None;
                };
                Self::Window {
                    mesh,
                    number,
                    hash,
                    values,
                }
            }
            BYE if rest.is_empty() => Self::Bye,
            ASK if rest.is_empty() => Self::Ask,
            HERE if rest.is_empty() => Self::Here,
            HELLO => {
                let (pid, rest) = rest.split_first_chunk()?;
                let text = text(rest)?;
                let (version, host) = text.split_once(' ')?;
                Self::Hello {
                    pid: u32::from_le_bytes(*pid),
                    version: version.into(),
                    host: host.into(),
                }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Head> {
        let id = (any::<(u64, u64, u64, u8, u32, u64)>(), ".{0,80}");
        prop_oneof![
            id.prop_map(
                |((mesh, channel, sequence, round, member, fingerprint), call)| {
                    Head::Input(InputId {
                        mesh,
                        channel,
                        sequence,
                        round,
                        member,
                        fingerprint,
                        call,
                    })
                }
            ),
            any::<(u64, u64, u64, u64)>().prop_map(|(mesh, number, hash, values)| {
                Head::Window {
                    mesh,
                    number,
                    hash,
                    values,
                }
            }),
            any::<(u64, u32)>().prop_map(|(mesh, rank)| Head::Left { mesh, rank }),
            Just(Head::Bye),
            Just(Head::Ask),
            Just(Head::Here),
            (any::<(u64, u32, u8)>(), ".{0,80}").prop_map(
                |((mesh, process, exit_code), reason)| {
                    let cause = Cause {
                        process,
                        exit_code,
                        reason,
                    };
                    Head::Stop { mesh, cause }
                }
            ),
            (any::<u32>(), "[0-9.a-z]{0,9}", ".{0,80}")
                .prop_map(|(pid, version, host)| { Head::Hello { pid, version, host } }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(message in messages()) {
            prop_assert_eq!(Head::parse(&message.to_bytes()), Some(message));
        }

        #[test]
        fn anything_may_arrive(head in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(message) = Head::parse(&head) {
                prop_assert_eq!(message.to_bytes(), head);
            }
        }

        #[test]
        fn a_head_that_is_cut_is_no_other_message(message in messages(), cut in 1_usize..40) {
            let head = message.to_bytes();
            let cut = head.len().saturating_sub(cut);
            // Texts have no length of their own: those may come out shorter.
            if let Some(found) = Head::parse(&head[..cut]) {
                let has_text = matches!(
                    found,
                    Head::Input(_) | Head::Stop { .. } | Head::Hello { .. }
                );
                prop_assert!(has_text);
            }
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let cause = Cause {
            process: 0,
            exit_code: 75,
            reason: format!("a{}", "é".repeat(4000)),
        };
        let stop = Head::Stop { mesh: 0, cause };
        let Some(Head::Stop {
            cause: Cause { reason, .. },
            ..
        }) = Head::parse(&stop.to_bytes())
        else {
            panic!("a stop");
        };
        assert_eq!(reason.len(), 4095);
    }
}
