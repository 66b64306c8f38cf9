//! Messages as bytes.
//!
//! A frame is its length (`u32`, little-endian) and so many bytes: a message as
//! [postcard](https://postcard.jamesmunns.com) writes it. A reader allocates what the length of a frame says before so
//! much has come, at most [`FRAME_BYTES_MAX`] or, for a stranger, 1 KiB; its fields allocate no more than it holds.

use super::token::NONCE_BYTES;
use burn_dist_comm::Peer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::io::{Read, Write};
use std::time::Duration;

/// No frame is longer, its length aside.
pub const FRAME_BYTES_MAX: usize = 64 << 10;

/// No frame of someone who has not proved to hold the token is longer.
pub(super) const STRANGER_BYTES_MAX: usize = 1 << 10;

/// The start of a greeting, whatever the version.
const MAGIC: &[u8; 16] = b"burn-dist meets\n";

/// Host names are cut to this many bytes.
const HOST_BYTES_MAX: usize = 255;

/// The role of one that comes to a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// A process of the program.
    Process,
    /// The launcher of the processes of one machine. It has no part in barriers.
    Launcher,
}

/// A process or a launcher, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which of both.
    pub role: Role,
    /// Its number; that of a launcher is that of its machine.
    pub rank: u32,
    /// How many processes, or launchers, it believes there are.
    pub world_size: u32,
    /// Its machine.
    #[serde(serialize_with = "cut", deserialize_with = "printable")]
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

/// The first message of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Greeting {
    #[serde(deserialize_with = "printable")]
    pub version: String,
    pub nonce: [u8; NONCE_BYTES],
}

/// The answer of a client; a proof of it follows in the frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    #[serde(deserialize_with = "printable")]
    pub version: String,
    pub nonce: [u8; NONCE_BYTES],
    pub member: Member,
    /// How long it may be silent; `None` if that is for the server to say.
    pub silence: Option<Duration>,
    /// The first message of the handshake that seals the connection.
    #[serde(with = "bytes")]
    pub handshake: Vec<u8>,
}

/// The server's answer to that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome {
        /// The second message of the handshake, which holds a [`Greeted`]. All that follows is sealed.
        #[serde(with = "bytes")]
        handshake: Vec<u8>,
    },
    Refused {
        #[serde(deserialize_with = "printable")]
        reason: String,
        /// True if it may be different in a moment.
        again: bool,
        exit_code: u8,
    },
}

/// The part of a welcome that only those with the token read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Greeted {
    /// A random number of the rendezvous.
    pub run: u64,
    /// The process that keeps the rendezvous; `None` if that is the launcher.
    pub keeper: Option<Member>,
}

/// A request of a client that is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    Set {
        id: u64,
        #[serde(deserialize_with = "printable")]
        key: String,
        #[serde(with = "bytes")]
        value: Vec<u8>,
    },
    Get {
        id: u64,
        #[serde(deserialize_with = "printable")]
        key: String,
    },
    Barrier {
        id: u64,
        #[serde(deserialize_with = "printable")]
        name: String,
    },
    /// Gives a request up, and asks who or what it still waits for.
    GiveUp {
        id: u64,
        waiting: u64,
    },
    Alive,
    Goodbye,
    /// The sender, or a process that it has started, cannot go on.
    Fail {
        #[serde(deserialize_with = "printable")]
        reason: String,
        exit_code: u8,
    },
}

/// A message of a server to a client that is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done {
        id: u64,
        #[serde(with = "bytes")]
        value: Vec<u8>,
    },
    Failed {
        id: u64,
        #[serde(deserialize_with = "printable")]
        reason: String,
    },
    Lost {
        member: Member,
        #[serde(deserialize_with = "printable")]
        reason: String,
    },
    Broken {
        #[serde(deserialize_with = "printable")]
        reason: String,
        exit_code: u8,
    },
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

/// A message of which a frame holds nothing else.
pub(super) trait Message: Serialize + DeserializeOwned {
    fn to_bytes(&self) -> Vec<u8> {
        written(self)
    }

    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        match postcard::take_from_bytes(bytes)? {
            (message, []) => Ok(message),
            (_, left) => Err(Malformed(format!(
                "{} bytes after the last field",
                left.len()
            ))),
        }
    }
}

impl Message for Hello {}
impl Message for Answer {}
impl Message for Greeted {}
impl Message for Request {}
impl Message for Reply {}

impl Greeting {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        [&MAGIC[..], &written(self)].concat()
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some(greeting) = bytes.strip_prefix(MAGIC) else {
            return Err(Malformed("it does not greet as one".into()));
        };
        // Another version may say more.
        let (greeting, _) = postcard::take_from_bytes(greeting)?;
        Ok(greeting)
    }
}

impl Hello {
    /// Returns what a handshake belongs to: the nonces of both sides, drawn for this connection.
    pub(super) fn context(greeting: &[u8; NONCE_BYTES], nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
        [&b"rendezvous"[..], greeting, nonce].concat()
    }

    /// Returns the version, with which the hello of every version starts.
    pub(super) fn version(bytes: &[u8]) -> Result<String, Malformed> {
        #[derive(Deserialize)]
        struct Version(#[serde(deserialize_with = "printable")] String);
        let (Version(version), _) = postcard::take_from_bytes(bytes)?;
        Ok(version)
    }
}

impl From<postcard::Error> for Malformed {
    fn from(error: postcard::Error) -> Self {
        Self(error.to_string())
    }
}

fn written(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("a message is plain data")
}

/// Returns the start of a text, at most so many bytes.
pub(super) fn truncated(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

fn cut<S: Serializer>(host: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(truncated(host, HOST_BYTES_MAX))
}

/// A text, without anything that would change what a terminal shows of it.
fn printable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = <&str>::deserialize(deserializer)?;
    let shown = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
    Ok(text.chars().map(shown).collect())
}

/// Values, of which a reader allocates no more than there is.
mod bytes {
    use super::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        <&[u8]>::deserialize(deserializer).map(<[u8]>::to_vec)
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
