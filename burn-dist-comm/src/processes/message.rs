//! The head of a message.

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// What a process needs of the input of one member of a call.
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
    /// All ranks are to stop: `process` has found out why.
    Stop {
        mesh: u64,
        process: u32,
        exit_code: u8,
        reason: String,
    },
    /// The program of the sender ends: its last message.
    Bye,
    /// Who the sender is: its first message, of the same form in every version.
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

/// What a message that brings an input begins with.
const INPUT: u8 = 0;

/// What a message that introduces its sender begins with.
const HELLO: u8 = 4;

/// The longest text in a head; longer ones are cut.
const TEXT_BYTES_MAX: usize = 4096;

fn put_text(head: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    head.extend_from_slice(&text.as_bytes()[..end]);
}

/// Takes fixed pieces off the front of a head.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    /// An input's id, without its text.
    fn input(&mut self) -> Option<InputId> {
        Some(InputId {
            mesh: self.u64()?,
            channel: self.u64()?,
            sequence: self.u64()?,
            round: self.u8()?,
            member: self.u32()?,
            fingerprint: self.u64()?,
            call: String::new(),
        })
    }

    fn text(self) -> Option<String> {
        match self.0.len() > TEXT_BYTES_MAX {
            true => None,
            false => String::from_utf8(self.0.to_vec()).ok(),
        }
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

impl InputId {
    /// Returns the input that a message brings, without its text; `None` if it is another message.
    pub fn peek(head: &[u8]) -> Option<Self> {
        let mut reader = Reader(head);
        (reader.u8()? == INPUT).then(|| reader.input())?
    }
}

impl Message {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(192);
        match self {
            Self::Input(id) => {
                head.push(INPUT);
                head.extend(id.mesh.to_le_bytes());
                head.extend(id.channel.to_le_bytes());
                head.extend(id.sequence.to_le_bytes());
                head.push(id.round);
                head.extend(id.member.to_le_bytes());
                head.extend(id.fingerprint.to_le_bytes());
                put_text(&mut head, &id.call);
            }
            Self::Window {
                mesh,
                number,
                hash,
                values,
            } => {
                head.push(3);
                head.extend(mesh.to_le_bytes());
                head.extend(number.to_le_bytes());
                head.extend(hash.to_le_bytes());
                head.extend(values.to_le_bytes());
            }
            Self::Left { mesh, rank } => {
                head.push(1);
                head.extend(mesh.to_le_bytes());
                head.extend(rank.to_le_bytes());
            }
            Self::Stop {
                mesh,
                process,
                exit_code,
                reason,
            } => {
                head.push(2);
                head.extend(mesh.to_le_bytes());
                head.extend(process.to_le_bytes());
                head.push(*exit_code);
                put_text(&mut head, reason);
            }
            Self::Bye => head.push(5),
            Self::Hello { pid, version, host } => {
                head.push(HELLO);
                head.extend(pid.to_le_bytes());
                put_text(&mut head, &format!("{version} {host}"));
            }
        }
        head
    }

    /// Reads a head; `None` if it is malformed.
    pub fn parse(head: &[u8]) -> Option<Self> {
        let mut reader = Reader(head);
        match reader.u8()? {
            INPUT => {
                let id = reader.input()?;
                let call = reader.text()?;
                Some(Self::Input(InputId { call, ..id }))
            }
            1 => {
                let left = Self::Left {
                    mesh: reader.u64()?,
                    rank: reader.u32()?,
                };
                reader.end().map(|()| left)
            }
            2 => Some(Self::Stop {
                mesh: reader.u64()?,
                process: reader.u32()?,
                exit_code: reader.u8()?,
                reason: reader.text()?,
            }),
            3 => {
                let window = Self::Window {
                    mesh: reader.u64()?,
                    number: reader.u64()?,
                    hash: reader.u64()?,
                    values: reader.u64()?,
                };
                reader.end().map(|()| window)
            }
            5 => reader.end().map(|()| Self::Bye),
            HELLO => {
                let pid = reader.u32()?;
                let text = reader.text()?;
                let (version, host) = text.split_once(' ')?;
                Some(Self::Hello {
                    pid,
                    version: version.into(),
                    host: host.into(),
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Message> {
        let id = (any::<(u64, u64, u64, u8, u32, u64)>(), ".{0,80}");
        prop_oneof![
            id.prop_map(
                |((mesh, channel, sequence, round, member, fingerprint), call)| {
                    Message::Input(InputId {
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
                Message::Window {
                    mesh,
                    number,
                    hash,
                    values,
                }
            }),
            any::<(u64, u32)>().prop_map(|(mesh, rank)| Message::Left { mesh, rank }),
            Just(Message::Bye),
            (any::<(u64, u32, u8)>(), ".{0,80}").prop_map(
                |((mesh, process, exit_code), reason)| Message::Stop {
                    process,
                    mesh,
                    exit_code,
                    reason
                }
            ),
            (any::<u32>(), "[0-9.a-z]{0,9}", ".{0,80}")
                .prop_map(|(pid, version, host)| { Message::Hello { pid, version, host } }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(message in messages()) {
            prop_assert_eq!(Message::parse(&message.to_bytes()), Some(message));
        }

        #[test]
        fn anything_may_arrive(head in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(message) = Message::parse(&head) {
                prop_assert_eq!(message.to_bytes(), head);
            }
        }

        #[test]
        fn a_head_that_is_cut_is_no_other_message(message in messages(), cut in 1_usize..40) {
            let head = message.to_bytes();
            let cut = head.len().saturating_sub(cut);
            // Texts have no length of their own: those may come out shorter.
            if let Some(found) = Message::parse(&head[..cut]) {
                let has_text = matches!(
                    found,
                    Message::Input(_) | Message::Stop { .. } | Message::Hello { .. }
                );
                prop_assert!(has_text);
            }
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let stop = Message::Stop {
            process: 0,
            mesh: 0,
            exit_code: 75,
            reason: format!("a{}", "é".repeat(4000)),
        };
        let Some(Message::Stop { reason, .. }) = Message::parse(&stop.to_bytes()) else {
            panic!("a stop");
        };
        assert_eq!(reason.len(), 4095);
    }
}
