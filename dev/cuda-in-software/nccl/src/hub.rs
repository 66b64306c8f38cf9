//! How members find each other: each tells the process that made the identity who it is, and learns who the others are.

use software_meeting::Gpu;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};

/// An identity, of which NCCL has 128 bytes.
pub(crate) type Id = [u8; 128];

/// A member: where it is, and its number among those of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) gpu: Gpu,
    pub(crate) process: u32,
    pub(crate) number: u64,
}

/// Bytes of a member in a message.
const MEMBER: usize = 28;

impl Member {
    fn bytes(&self) -> [u8; MEMBER] {
        let mut bytes = [0; MEMBER];
        bytes[..16].copy_from_slice(&self.gpu);
        bytes[16..20].copy_from_slice(&self.process.to_le_bytes());
        bytes[20..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        Ok(Member {
            gpu: array(from)?,
            process: u32::from_le_bytes(array(from)?),
            number: u64::from_le_bytes(array(from)?),
        })
    }

    /// Where it takes letters.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        name(&format!("member-{}-{}", self.process, self.number))
    }
}

/// Reads as many bytes as an array has.
pub(crate) fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A name that no file has, and that ends with the process.
fn name(of: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("software-nccl-{of}"))
}

/// Returns a number that nothing else of this process has.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn hub(id: &Id) -> io::Result<SocketAddr> {
    let mut from = &id[..];
    let number = u64::from_le_bytes(array(&mut from)?);
    let process = u32::from_le_bytes(array(&mut from)?);
    name(&format!("hub-{process}-{number}"))
}

/// Returns an identity that nobody else has, and waits for its members in a thread.
pub(crate) fn identity() -> io::Result<Id> {
    let mut id = [0; 128];
    id[..8].copy_from_slice(&number().to_le_bytes());
    id[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    let listener = UnixListener::bind_addr(&hub(&id)?)?;
    let thread = std::thread::Builder::new().name("NCCL's identity".into());
    // Whoever does not hear from it says so.
    thread.spawn(move || drop(introduce(&listener)))?;
    Ok(id)
}

/// Waits for all members, and tells each who they are.
fn introduce(listener: &UnixListener) -> io::Result<()> {
    let mut members = Vec::new();
    let mut here: Vec<UnixStream> = Vec::new();
    while here.is_empty() || here.len() < members.len() {
        let (mut stream, _) = listener.accept()?;
        let num = u32::from_le_bytes(array(&mut stream)?) as usize;
        let rank = u32::from_le_bytes(array(&mut stream)?) as usize;
        members.resize(num.max(members.len()), Member::default());
        members[rank] = Member::read(&mut stream)?;
        here.push(stream);
    }
    let table: Vec<u8> = members.iter().flat_map(Member::bytes).collect();
    here.iter_mut()
        .try_for_each(|stream| stream.write_all(&table))
}

/// Says who member `rank` is, of `num`, and returns all of them.
pub(crate) fn join(id: &Id, num: usize, rank: usize, this: &Member) -> io::Result<Vec<Member>> {
    let mut stream = UnixStream::connect_addr(&hub(id)?)?;
    stream.write_all(&(num as u32).to_le_bytes())?;
    stream.write_all(&(rank as u32).to_le_bytes())?;
    stream.write_all(&this.bytes())?;
    (0..num).map(|_| Member::read(&mut stream)).collect()
}
