//! A ring of bytes in memory that two processes of one machine share.
//!
//! Once both ends have it, a connection carries heads here and not through the system: a call of it takes longer than
//! the rest of a short message at each end. The process that writes makes the ring, and the other one finds it by the
//! number of its descriptor. Nobody is woken: whoever waits for messages looks for them, as it does at a socket.
//!
//! The other process is not trusted with more than its bytes: what it writes of the ring's ends is checked, and the
//! memory cannot shrink.

use std::io::{Error, ErrorKind, Result, Write};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are in flight at most: a power of two.
const RING_BYTES: usize = 64 << 10;

/// The ends of a ring, each in a cache line of its own, and the ring behind them on a page of its own.
const READ_AT: usize = 64;
const BYTES_AT: usize = 4096;
const MAPPED_BYTES: usize = BYTES_AT + RING_BYTES;

/// A ring, mapped.
struct Ring(system::Mapped);

impl Ring {
    fn end(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the place lies in the mapping, which is aligned to pages and lives as long as this borrow; any bits
        // are a number, and both processes access it as an atomic.
        unsafe { &*self.0.start().add(at).cast() }
    }

    /// How many bytes have been written, ever.
    fn written(&self) -> &AtomicU64 {
        self.end(0)
    }

    /// How many of them have been read.
    fn read(&self) -> &AtomicU64 {
        self.end(READ_AT)
    }

    /// The one or two runs of memory of `len` bytes from byte `at` of all that are ever written.
    fn runs(&self, at: u64, len: usize) -> [(*mut u8, usize); 2] {
        assert!(len <= RING_BYTES, "a ring has no more bytes");
        let from = (at % RING_BYTES as u64) as usize;
        let first = len.min(RING_BYTES - from);
        // SAFETY: both places lie in the mapping.
        let place = |at: usize| unsafe { self.0.start().add(BYTES_AT + at) };
        [(place(from), first), (place(0), len - first)]
    }
}

/// The end of a ring that writes.
pub(super) struct Writer {
    ring: Ring,
    at: u64,
    descriptor: system::Descriptor,
}

impl Writer {
    /// Makes a ring; `None` if the system has no such memory.
    pub(super) fn new() -> Option<Self> {
        let descriptor = system::memory(MAPPED_BYTES).ok()?;
        let ring = Ring(system::Mapped::new(&descriptor, MAPPED_BYTES).ok()?);
        Some(Self {
            ring,
            at: 0,
            descriptor,
        })
    }

    /// The number by which the other process finds it.
    pub(super) fn number(&self) -> u32 {
        system::number(&self.descriptor)
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let read = self.ring.read().load(Ordering::Acquire);
        let there = usize::try_from(self.at.wrapping_sub(read)).unwrap_or(usize::MAX);
        let len = bytes.len().min(RING_BYTES.saturating_sub(there));
        if len == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut left = bytes;
        for (to, len) in self.ring.runs(self.at, len) {
            let (now, later) = left.split_at(len);
            // SAFETY: the run lies in the mapping, and is the writer's: no more than that is free. What a process that
            // keeps to no rules reads meanwhile is its own affair.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, len) };
            left = later;
        }
        self.at += len as u64;
        self.ring.written().store(self.at, Ordering::Release);
        Ok(len)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The end of a ring that reads.
pub(super) struct Reader {
    ring: Ring,
    at: u64,
}

impl Reader {
    /// Finds the ring that process `pid` has made.
    ///
    /// # Errors
    /// The system's, or that this is no ring.
    pub(super) fn open(pid: u32, number: u32) -> Result<Self> {
        let descriptor = system::of_process(pid, number, MAPPED_BYTES)?;
        let ring = Ring(system::Mapped::new(&descriptor, MAPPED_BYTES)?);
        Ok(Self { ring, at: 0 })
    }

    /// Moves bytes from the ring to the front of `into`; returns how many, 0 if there are none for now.
    ///
    /// # Errors
    /// The other process says that there are more than there can be.
    pub(super) fn read(&mut self, into: &mut [MaybeUninit<u8>]) -> Result<usize> {
        let written = self.ring.written().load(Ordering::Acquire);
        let there = usize::try_from(written.wrapping_sub(self.at)).unwrap_or(usize::MAX);
        if there > RING_BYTES {
            return Err(Error::other("more bytes than its ring has"));
        }
        let len = there.min(into.len());
        if len == 0 {
            return Ok(0);
        }
        let mut left = into;
        for (from, len) in self.ring.runs(self.at, len) {
            let (now, later) = left.split_at_mut(len);
            // SAFETY: the run lies in the mapping, and is the reader's: so much has been written. From a process that
            // keeps to no rules come other bytes, which are checked as bytes of a stream are.
            unsafe { std::ptr::copy_nonoverlapping(from, now.as_mut_ptr().cast(), len) };
            left = later;
        }
        self.at += len as u64;
        self.ring.read().store(self.at, Ordering::Release);
        Ok(len)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::fs::{
        MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
        memfd_create, open,
    };
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::io::{ErrorKind, Result};
    use std::os::fd::{AsRawFd, OwnedFd};

    pub(super) type Descriptor = OwnedFd;

    /// Returns memory without a name that keeps its size.
    pub(super) fn memory(bytes: usize) -> Result<Descriptor> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("burn-dist", flags)?;
        ftruncate(&memory, bytes as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(memory)
    }

    pub(super) fn number(descriptor: &Descriptor) -> u32 {
        descriptor.as_raw_fd().unsigned_abs()
    }

    /// Returns memory that another process has made by [`memory`].
    pub(super) fn of_process(pid: u32, number: u32, bytes: usize) -> Result<Descriptor> {
        let path = format!("/proc/{pid}/fd/{number}");
        let memory = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let keeps_its_size = fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK);
        match keeps_its_size && fstat(&memory)?.st_size as u64 == bytes as u64 {
            true => Ok(memory),
            false => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Memory that is mapped; unmapped when dropped.
    pub(super) struct Mapped {
        start: *mut u8,
        bytes: usize,
    }

    // SAFETY: a mapping belongs to the process, not to a thread.
    unsafe impl Send for Mapped {}

    impl Mapped {
        pub(super) fn new(memory: &Descriptor, bytes: usize) -> Result<Self> {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            // SAFETY: the kernel chooses the place.
            let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, memory, 0) }?;
            let start = start.cast();
            Ok(Self { start, bytes })
        }

        pub(super) fn start(&self) -> *mut u8 {
            self.start
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: nobody has the memory any more. That this fails leaves a mapping that nobody uses.
            let _ = unsafe { munmap(self.start.cast(), self.bytes) };
        }
    }
}

/// There is no such memory.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::convert::Infallible;
    use std::io::{ErrorKind, Result};

    pub(super) type Descriptor = Infallible;
    pub(super) type Mapped = Never;

    pub(super) struct Never(Infallible);

    impl Never {
        pub(super) fn new(memory: &Descriptor, _: usize) -> Result<Self> {
            match *memory {}
        }

        pub(super) fn start(&self) -> *mut u8 {
            match self.0 {}
        }
    }

    pub(super) fn memory(_: usize) -> Result<Descriptor> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(super) fn number(descriptor: &Descriptor) -> u32 {
        match *descriptor {}
    }

    pub(super) fn of_process(_: u32, _: u32, _: usize) -> Result<Descriptor> {
        Err(ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn ring() -> (Writer, Reader) {
        let writer = Writer::new().expect("memory");
        let reader = Reader::open(std::process::id(), writer.number()).expect("its ring");
        (writer, reader)
    }

    fn read(reader: &mut Reader, most: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(most);
        let room = &mut bytes.spare_capacity_mut()[..most];
        let read = reader.read(room).expect("a ring");
        // SAFETY: so many were written.
        unsafe { bytes.set_len(read) };
        bytes
    }

    #[test]
    fn bytes_come_in_order_around_the_ring() {
        let (mut writer, mut reader) = ring();
        assert!(read(&mut reader, 10).is_empty());
        let sent: Vec<u8> = (0..300_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
        let (mut left, mut found) = (&sent[..], Vec::new());
        let sizes = [1, 40_000, 7, RING_BYTES, 12_345];
        for (write, most) in sizes
            .iter()
            .cycle()
            .zip([50_000, 3, 30_000].into_iter().cycle())
        {
            if found.len() == sent.len() {
                break;
            }
            if let Ok(len) = writer.write(&left[..left.len().min(*write)]) {
                left = &left[len..];
            }
            found.extend(read(&mut reader, most));
        }
        assert!(found == sent);
    }

    #[test]
    fn a_full_ring_takes_nothing_until_it_is_read() {
        let (mut writer, mut reader) = ring();
        let bytes = vec![3; RING_BYTES + 1];
        assert_eq!(writer.write(&bytes).expect("room"), RING_BYTES);
        let full = writer.write(&bytes).expect_err("no room");
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert_eq!(read(&mut reader, 5), [3; 5]);
        assert_eq!(writer.write(&bytes).expect("room"), 5);
    }

    #[test]
    fn ends_that_cannot_be_are_found() {
        let (mut writer, mut reader) = ring();
        writer
            .ring
            .written()
            .store(RING_BYTES as u64 + 1, Ordering::Relaxed);
        assert!(reader.read(&mut [MaybeUninit::uninit(); 8]).is_err());
        writer.ring.read().store(1, Ordering::Relaxed);
        assert!(writer.write(&[1]).is_err(), "more is read than was written");
    }

    #[test]
    fn other_files_are_no_rings() {
        let program = std::env::current_exe().and_then(std::fs::File::open);
        let program = program.expect("this test").into();
        let pid = std::process::id();
        assert!(Reader::open(pid, system::number(&program)).is_err());
        assert!(Reader::open(pid, u32::MAX).is_err());
        let short = system::memory(4096).expect("memory");
        assert!(Reader::open(pid, system::number(&short)).is_err());
    }
}
