//! Linux's memory that processes share: descriptors, and sockets that carry them.

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::ffi::c_void;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// A file descriptor.
pub type Descriptor = OwnedFd;

/// The id of the machines whose processes can hand descriptors to each other, for one user.
pub type MachineId = [u8; 16];

/// Returns what tells this machine from others: its boot, the network namespace (abstract sockets are names in it) and
/// the user.
///
/// # Errors
/// What the system says where `/proc` cannot be read.
pub fn machine() -> Result<MachineId> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(Error::other)?;
    let namespace = std::fs::metadata("/proc/self/ns/net")?;
    let of_user = u128::from(user()) << 64;
    let of_namespace = u128::from(std::os::linux::fs::MetadataExt::st_ino(&namespace));
    Ok((number ^ of_namespace ^ of_user).to_ne_bytes())
}

pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns `bytes` of memory without a name, all 0.
///
/// # Errors
/// What the system says.
pub fn memory(bytes: usize) -> Result<Descriptor> {
    let memory = memfd_create("burn-dist", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, bytes as u64)?;
    Ok(memory)
}

/// Memory of [`memory`], mapped. Ends with its last clone.
#[derive(Clone, Debug)]
pub struct Page(Arc<Mapped>);

#[derive(Debug)]
struct Mapped {
    start: *mut c_void,
    bytes: usize,
    number: u64,
}

// SAFETY: a mapping belongs to the process; what is in it is read and written as atomics, or by whoever makes threads
// and devices agree.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody has the page any more. That this fails leaves a mapping that nobody uses.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

impl Page {
    /// Maps `bytes` of memory that this or another process has [made](memory).
    ///
    /// # Errors
    /// What the system says, and that there is less of it.
    pub fn map(memory: &Descriptor, bytes: usize) -> Result<Self> {
        let found = fstat(memory)?;
        if (found.st_size as u64) < bytes as u64 {
            let reason = format!("{} B where {bytes} B are expected", found.st_size);
            return Err(Error::new(ErrorKind::InvalidData, reason));
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the place.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, memory, 0) }?;
        Ok(Self(Arc::new(Mapped {
            start,
            bytes,
            number: found.st_ino,
        })))
    }

    /// Where it is.
    pub fn start(&self) -> *mut c_void {
        self.0.start
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The name that distinguishes it from all others of the machine, in every process.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Its content as words.
    pub fn words(&self) -> &[AtomicU32] {
        let len = self.0.bytes / size_of::<AtomicU32>();
        // SAFETY: pages are aligned, all bits are numbers, and whoever else writes them does so a word at a time.
        unsafe { std::slice::from_raw_parts(self.0.start.cast(), len) }
    }
}

/// The bytes that are sent beside descriptors.
pub const NOTE: usize = 16;

/// A message that takes longer than this to arrive is none of ours.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Descriptors that one message carries.
const DESCRIPTORS_MAX: usize = 2;

/// Where a process gets descriptors of others.
pub struct Mailbox(UnixListener);

/// A message: some bytes, and descriptors.
pub type Received = ([u8; NOTE], Vec<Descriptor>);

fn address(name: &[u8; 16]) -> Result<SocketAddr> {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("burn-dist-{digits}"))
}

/// Checks that the other end of a connection belongs to `user`.
fn trusted(socket: BorrowedFd<'_>, user: u32) -> Result<bool> {
    Ok(socket_peercred(socket)?.uid.as_raw() == user)
}

impl Mailbox {
    /// Opens the mailbox of a name.
    ///
    /// # Errors
    /// What the system says; that the name is in use, among others.
    pub fn open(name: &[u8; 16]) -> Result<Self> {
        let listener = UnixListener::bind_addr(&address(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Returns a message, if there is one. Those of other users are dropped, and one whose sender ended before it was
    /// sent.
    ///
    /// # Errors
    /// What the system says.
    pub fn receive(&self) -> Result<Option<Received>> {
        self.receive_from(user())
    }

    /// The same, from another user than this one.
    pub(super) fn receive_from(&self, user: u32) -> Result<Option<Received>> {
        let stream = match self.0.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        if !trusted(stream.as_fd(), user)? {
            return Ok(None);
        }
        let mut note = [0; NOTE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut note)];
        // Whoever connects has the message ready, and sends it at once.
        stream.set_read_timeout(Some(AT_ONCE))?;
        let received = recvmsg(&stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(found) = message {
                descriptors.extend(found);
            }
        }
        match received.bytes {
            NOTE => Ok(Some((note, descriptors))),
            0 => Ok(None),
            bytes => {
                let reason = format!("a message of {bytes} B where {NOTE} B are expected");
                Err(Error::new(ErrorKind::InvalidData, reason))
            }
        }
    }
}

/// A connection to a mailbox, for one message.
pub struct Sender(UnixStream);

impl Sender {
    /// Connects to the mailbox of a name, if it is open.
    ///
    /// # Errors
    /// What the system says, and that the mailbox is another user's.
    pub fn connect(name: &[u8; 16]) -> Result<Option<Self>> {
        let stream = match UnixStream::connect_addr(&address(name)?) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        };
        if !trusted(stream.as_fd(), user())? {
            let reason = "the socket of another rank belongs to another user";
            return Err(Error::new(ErrorKind::PermissionDenied, reason));
        }
        Ok(Some(Self(stream)))
    }

    /// Sends the message; returns whether the mailbox is still open.
    ///
    /// # Errors
    /// What the system says.
    pub fn send(self, note: &[u8; NOTE], descriptors: &[&Descriptor]) -> Result<bool> {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(|one| one.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Error::other("a message carries two descriptors"));
        }
        let note = [IoSlice::new(note)];
        match sendmsg(&self.0, &note, &mut control, SendFlags::NOSIGNAL) {
            Ok(NOTE) => Ok(true),
            Ok(_) => Err(Error::other("a message was cut")),
            // Its owner has left it. That is no fault of this call, and the owner says what its fault is.
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Sends descriptors to the mailbox of a name; returns whether it is open.
///
/// # Errors
/// What the system says, and that the mailbox is another user's.
pub fn send(name: &[u8; 16], note: &[u8; NOTE], descriptors: &[&Descriptor]) -> Result<bool> {
    match Sender::connect(name)? {
        Some(sender) => sender.send(note, descriptors),
        None => Ok(false),
    }
}
