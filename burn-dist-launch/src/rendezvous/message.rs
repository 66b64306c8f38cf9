//! Messages as bytes.
//!
//! A frame is its length (`u32`, little-endian) and so many bytes: a tag and fields. Numbers are little-endian; texts
//! and values have their length (`u32`) before them. A reader allocates what the length of a frame says before so much
//! has come, at most [`FRAME_BYTES_MAX`] or, for a stranger, 1 KiB; its fields allocate no more than it holds.

use super::token::{NONCE_BYTES, PROOF_BYTES};
use burn_dist_comm::Peer;
use std::fmt;
use std::io::{Read, Write};
use std::time::Duration;

/// No frame is longer, its length aside.
pub const FRAME_BYTES_MAX: usize = 64 << 10;

/// No frame of someone who has not proved to hold the token is longer.
pub(super) const STRANGER_BYTES_MAX: usize = 1 << 10;

/// What a greeting starts with, whatever the version.
const MAGIC: &[u8; 16] = b"burn-dist meets\n";

/// Host names are cut to this many bytes.
const HOST_BYTES_MAX: usize = 255;

/// What comes to a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A process of the program.
    Process,
    /// What has started those of one machine. It has no part in barriers.
    Launcher,
}

/// Who a process or a launcher says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which of both.
    pub role: Role,
    /// Its number; that of a launcher is that of its machine.
    pub rank: u32,
    /// How many processes, or launchers, it believes there are.
    pub world_size: u32,
    /// Its machine.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// How often the program has been started anew ([`restarts`](crate::restarts)).
    pub restarts: u32,
}

/// One of those at a rendezvous.
pub(super) type Id = (Role, u32);

impl Member {
    /// Returns this process, as number `rank` of `world_size`.
    pub fn process(rank: u32, world_size: u32, restarts: u32) -> Self {
        Self::this(Role::Process, rank, world_size, restarts)
    }

    /// Returns this process, as the launcher of machine number `machine` of `num_machines`.
    pub fn launcher(machine: u32, num_machines: u32, restarts: u32) -> Self {
        Self::this(Role::Launcher, machine, num_machines, restarts)
    }

    fn this(role: Role, rank: u32, world_size: u32, restarts: u32) -> Self {
        let Peer { host, pid } = Peer::this();
        Self {
            role,
            rank,
            world_size,
            host,
            pid,
            restarts,
        }
    }

    pub(super) fn id(&self) -> Id {
        (self.role, self.rank)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.role {
            Role::Process => "rank",
            Role::Launcher => "the launcher of machine",
        })?;
        write!(f, " {} ({}, pid {})", self.rank, self.host, self.pid)
    }
}

/// What a server says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub version: String,
    pub nonce: [u8; NONCE_BYTES],
}

/// What a client answers; a proof of it follows in the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: String,
    pub nonce: [u8; NONCE_BYTES],
    pub member: Member,
    /// How long it may be silent, in whole milliseconds; `None` if that is for the server to say.
    pub silence: Option<Duration>,
}

/// What the server says to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Welcome {
        proof: [u8; PROOF_BYTES],
        /// A random number of the rendezvous.
        run: u64,
        /// The process that keeps the rendezvous; `None` if that is the launcher.
        keeper: Option<Member>,
    },
    Refused {
        reason: String,
        /// Whether it may be different in a moment.
        again: bool,
    },
}

/// What a client asks once it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Set {
        id: u64,
        key: String,
        value: Vec<u8>,
    },
    Get {
        id: u64,
        key: String,
    },
    Barrier {
        id: u64,
        name: String,
    },
    /// Who or what a request still waits for; it is given up.
    GiveUp {
        id: u64,
        waiting: u64,
    },
    Alive,
    Goodbye,
    /// The sender, or a process that it has started, cannot go on.
    Fail {
        reason: String,
        exit_code: u8,
    },
}

/// What a server says to a client that is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done { id: u64, value: Vec<u8> },
    Failed { id: u64, reason: String },
    Lost { member: Member, reason: String },
    Broken { reason: String, exit_code: u8 },
    Closing,
}

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn malformed<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(what.into()))
}

/// Fields that are left of a frame.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        match self.0.split_at_checked(bytes) {
            Some((taken, left)) => {
                self.0 = left;
                Ok(taken)
            }
            None => malformed(format!(
                "a field of {bytes} bytes where {} are left",
                self.0.len()
            )),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("as many bytes were taken"))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// A text, without anything that would change what a terminal shows of it.
    fn text(&mut self) -> Result<String, Malformed> {
        match std::str::from_utf8(self.bytes()?) {
            Ok(text) => Ok(printable(text)),
            Err(_) => malformed("a text that is not UTF-8"),
        }
    }

    fn member(&mut self) -> Result<Member, Malformed> {
        let role = match self.u8()? {
            0 => Role::Process,
            1 => Role::Launcher,
            role => return malformed(format!("a member of kind {role}")),
        };
        let (rank, world_size, pid, restarts) =
            (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let host = self.text()?;
        Ok(Member {
            role,
            rank,
            world_size,
            host,
            pid,
            restarts,
        })
    }

    fn end<T>(self, message: T) -> Result<T, Malformed> {
        match self.0.len() {
            0 => Ok(message),
            left => malformed(format!("{left} bytes after the last field")),
        }
    }
}

fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() && c != '\n' { '?' } else { c })
        .collect()
}

/// A frame that is written.
struct Frame(Vec<u8>);

impl Frame {
    fn new(tag: u8) -> Self {
        Self(vec![tag])
    }

    fn u8(mut self, number: u8) -> Self {
        self.0.push(number);
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let len = u32::try_from(bytes.len()).expect("nothing so long is sent");
        self.u32(len).raw(bytes)
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    fn member(self, member: &Member) -> Self {
        let host = truncated(&member.host, HOST_BYTES_MAX);
        let role = match member.role {
            Role::Process => 0,
            Role::Launcher => 1,
        };
        self.u8(role)
            .u32(member.rank)
            .u32(member.world_size)
            .u32(member.pid)
            .u32(member.restarts)
            .text(host)
    }
}

/// Returns the start of a text, at most so many bytes.
pub(super) fn truncated(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Greeting {
    pub fn to_bytes(&self) -> Vec<u8> {
        let frame = Frame(MAGIC.to_vec());
        frame.text(&self.version).raw(&self.nonce).0
    }

    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        if fields.take(MAGIC.len()).ok() != Some(&MAGIC[..]) {
            return malformed("it does not greet as one");
        }
        let (version, nonce) = (fields.text()?, fields.array()?);
        // Another version may say more.
        Ok(Self { version, nonce })
    }
}

impl Hello {
    pub fn to_bytes(&self) -> Vec<u8> {
        let frame = Frame(Vec::new()).text(&self.version).raw(&self.nonce);
        let silence = self.silence.unwrap_or_default().as_millis();
        let silence = u64::try_from(silence).unwrap_or(u64::MAX);
        frame.member(&self.member).u64(silence).0
    }

    /// Returns the version, which every version starts with, and the rest if it is of this version.
    pub fn read(bytes: &[u8]) -> Result<(String, Result<Self, Malformed>), Malformed> {
        let mut fields = Fields(bytes);
        let version = fields.text()?;
        let mut rest = move || {
            let (nonce, member, silence) = (fields.array()?, fields.member()?, fields.u64()?);
            let hello = Self {
                version: String::new(),
                nonce,
                member,
                silence: (silence > 0).then(|| Duration::from_millis(silence)),
            };
            Fields(fields.0).end(hello)
        };
        let hello = rest().map(|hello| Self {
            version: version.clone(),
            ..hello
        });
        Ok((version, hello))
    }
}

impl Answer {
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Welcome { proof, run, keeper } => {
                let frame = Frame::new(1).raw(proof).u64(*run);
                match keeper {
                    None => frame.u8(0).0,
                    Some(keeper) => frame.u8(1).member(keeper).0,
                }
            }
            Self::Refused { reason, again } => Frame::new(2).text(reason).u8((*again).into()).0,
        }
    }

    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let answer = match fields.u8()? {
            1 => Self::Welcome {
                proof: fields.array()?,
                run: fields.u64()?,
                keeper: match fields.u8()? {
                    0 => None,
                    _ => Some(fields.member()?),
                },
            },
            2 => Self::Refused {
                reason: fields.text()?,
                again: fields.u8()? != 0,
            },
            tag => return malformed(format!("an answer of kind {tag}")),
        };
        fields.end(answer)
    }
}

impl Request {
    pub fn to_bytes(&self) -> Vec<u8> {
        let frame = match self {
            Self::Set { id, key, value } => Frame::new(1).u64(*id).text(key).bytes(value),
            Self::Get { id, key } => Frame::new(2).u64(*id).text(key),
            Self::Barrier { id, name } => Frame::new(3).u64(*id).text(name),
            Self::GiveUp { id, waiting } => Frame::new(4).u64(*id).u64(*waiting),
            Self::Alive => Frame::new(5),
            Self::Goodbye => Frame::new(6),
            Self::Fail { reason, exit_code } => Frame::new(7).text(reason).u8(*exit_code),
        };
        frame.0
    }

    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let request = match fields.u8()? {
            1 => Self::Set {
                id: fields.u64()?,
                key: fields.text()?,
                value: fields.bytes()?.to_vec(),
            },
            2 => Self::Get {
                id: fields.u64()?,
                key: fields.text()?,
            },
            3 => Self::Barrier {
                id: fields.u64()?,
                name: fields.text()?,
            },
            4 => Self::GiveUp {
                id: fields.u64()?,
                waiting: fields.u64()?,
            },
            5 => Self::Alive,
            6 => Self::Goodbye,
            7 => Self::Fail {
                reason: fields.text()?,
                exit_code: fields.u8()?,
            },
            tag => return malformed(format!("a request of kind {tag}")),
        };
        fields.end(request)
    }
}

impl Reply {
    pub fn to_bytes(&self) -> Vec<u8> {
        let frame = match self {
            Self::Done { id, value } => Frame::new(1).u64(*id).bytes(value),
            Self::Failed { id, reason } => Frame::new(2).u64(*id).text(reason),
            Self::Lost { member, reason } => Frame::new(3).member(member).text(reason),
            Self::Broken { reason, exit_code } => Frame::new(4).text(reason).u8(*exit_code),
            Self::Closing => Frame::new(5),
        };
        frame.0
    }

    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let reply = match fields.u8()? {
            1 => Self::Done {
                id: fields.u64()?,
                value: fields.bytes()?.to_vec(),
            },
            2 => Self::Failed {
                id: fields.u64()?,
                reason: fields.text()?,
            },
            3 => Self::Lost {
                member: fields.member()?,
                reason: fields.text()?,
            },
            4 => Self::Broken {
                reason: fields.text()?,
                exit_code: fields.u8()?,
            },
            5 => Self::Closing,
            tag => return malformed(format!("a reply of kind {tag}")),
        };
        fields.end(reply)
    }
}

/// Writes a frame at once.
pub(super) fn write_frame(to: &mut impl Write, body: &[u8]) -> std::io::Result<()> {
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend(body);
    to.write_all(&frame)?;
    to.flush()
}

/// Reads a frame of at most `bytes_max` bytes.
///
/// # Errors
/// Those of the connection; `InvalidData` for a longer frame, none of which is read.
pub(super) fn read_frame(from: &mut impl Read, bytes_max: usize) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > bytes_max {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!("a message of {len} bytes, where {bytes_max} are the most"),
        ));
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body)?;
    Ok(body)
}
