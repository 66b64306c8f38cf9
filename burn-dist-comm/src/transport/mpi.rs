//! Messages over MPI, through [rsmpi](https://docs.rs/mpi).
//!
//! Sums have one order, a balanced tree along each axis, which no reduction of MPI promises; so what MPI moves are the
//! pieces, from the process that has them to those that need them, and these add them up. Calls are made by one thread
//! at a time; with `MPI_THREAD_SERIALIZED` it may be any, with `MPI_THREAD_FUNNELED` it is always the one that set MPI
//! up.
//!
//! A message is a *head* and, if it has more than a few kilobytes, a *body* that follows under another tag, straight
//! into the buffer that the reduction reads.

use super::{Destination, Matcher, Message, Transport, held_max};
use crate::buffer::{Pool, PoolMemory, Region};
use crate::{Block, StartError};
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::Communicator;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::raw::{c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

/// Bodies of at most this many bytes travel with their heads.
const INLINE_BYTES_MAX: usize = 4 << 10;

/// MPI counts in `int`s: longer bodies are cut.
const PIECE_BYTES_MAX: usize = 1 << 30;

/// Freed buffers kept for later bodies.
const POOL_BYTES_MAX: usize = 512 << 20;

const HEAD: c_int = 1;
const BODY: c_int = 2;

/// The end of a head: the length of the body, and whether it is in the head.
const TRAILER_BYTES: usize = 9;

/// Returns whether an MPI may be used by the thread of the engine.
fn has_threads(threading: mpi::Threading) -> Result<(), String> {
    match threading >= mpi::Threading::Funneled {
        true => Ok(()),
        false => Err(format!(
            "this MPI gives {threading:?} where MPI_THREAD_FUNNELED is needed: use one that is built with threads"
        )),
    }
}

/// Bytes that have arrived and wait for a body before them: while there are more, MPI keeps further messages.
const ARRIVING_BYTES_MAX: usize = 1 << 30;

/// Something MPI is sending; it stays where it is until MPI is done.
struct Sending {
    _head: Option<Vec<u8>>,
    _body: Option<Block>,
    bytes: usize,
    request: ffi::MPI_Request,
}

/// A message whose body is in flight.
struct Arriving {
    head: Vec<u8>,
    body: Body,
    /// The bytes of both.
    bytes: usize,
}

enum Body {
    Whole(Block),
    /// Where it goes, and what MPI still has to write.
    Moving(Target, Vec<ffi::MPI_Request>),
    /// So many bytes that MPI has not been asked for: since then, its call may come and have a place for them.
    Held(usize, Instant),
}

impl Body {
    fn bytes(&self) -> usize {
        match self {
            Self::Whole(block) => block.len(),
            Self::Held(bytes, _) => *bytes,
            Self::Moving(..) => 0,
        }
    }
}

/// Where a body goes.
enum Target {
    Buffer(PoolMemory),
    /// Its place in an output.
    Region(Region),
}

impl Target {
    fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::Buffer(buffer) => buffer.as_ptr(),
            Self::Region(region) => region.as_ptr(),
        }
    }
}

/// Messages over MPI, between all processes that its launcher has started.
pub struct Mpi {
    sending: Vec<Sending>,
    /// By sender, in order.
    arriving: Vec<VecDeque<Arriving>>,
    /// Bytes in these.
    arriving_bytes: usize,
    /// The sender that is looked at first.
    next: usize,
    pool: Arc<Pool>,
    failed: Option<String>,
    process: u32,
    is_for_all_threads: bool,
    /// All processes, in order.
    comm: ffi::MPI_Comm,
    /// Asked for what ends it.
    trouble: Box<dyn Fn() -> Option<String> + Send>,
    /// Finalised, in the thread that set it up, when everything else is done.
    universe: Option<Universe>,
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // MPI may go on reading and writing what it was handed until it is finalised.
        std::mem::forget(std::mem::take(&mut self.sending));
        std::mem::forget(std::mem::take(&mut self.arriving));
        // Finalising waits for all processes, and one may be gone.
        if self.failed.is_some() {
            std::mem::forget(self.universe.take());
        }
    }
}

// SAFETY: MPI's handles belong to the process, not to a thread. Which thread may call MPI is what `is_for_all_threads`
// says and the engine keeps to: one at a time, and if that is all that MPI allows, the one that set it up, which is
// also the one that drops this value and so finalises MPI.
unsafe impl Send for Mpi {}

impl Mpi {
    /// Sets MPI up, in the thread that calls. What `trouble` returns, such as who has vanished, ends the transport.
    ///
    /// # Errors
    /// Why there is no MPI.
    pub fn init(trouble: impl Fn() -> Option<String> + Send + 'static) -> Result<Self, StartError> {
        let (universe, threading) = mpi::initialize_with_threading(mpi::Threading::Serialized)
            .ok_or_else(|| {
                StartError::config("MPI has been initialised by someone else: let burn-dist do it, before any other use")
            })?;
        has_threads(threading).map_err(StartError::config)?;
        let world = universe.world();
        // SAFETY: MPI is initialised, and the handler is one of its own.
        unsafe { ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN) };
        Ok(Self {
            sending: Vec::new(),
            arriving: (0..world.size()).map(|_| VecDeque::new()).collect(),
            arriving_bytes: 0,
            next: 0,
            pool: Pool::new(POOL_BYTES_MAX),
            failed: None,
            // SAFETY: MPI is initialised.
            comm: unsafe { ffi::RSMPI_COMM_WORLD },
            trouble: Box::new(trouble),
            process: world.rank() as u32,
            is_for_all_threads: threading >= mpi::Threading::Serialized,
            universe: Some(universe),
        })
    }

    fn check(&mut self, what: &str, code: c_int) {
        if code != ffi::MPI_SUCCESS as c_int && self.failed.is_none() {
            self.failed = Some(format!(
                "MPI failed in {what} with code {code}: has another process ended?"
            ));
        }
    }

    fn isend(&mut self, bytes: &[u8], to: u32, tag: c_int) -> ffi::MPI_Request {
        let mut request = MaybeUninit::uninit();
        // SAFETY: the caller keeps the bytes until the request is done; their number fits an `int`.
        let code = unsafe {
            ffi::MPI_Isend(
                bytes.as_ptr().cast::<c_void>(),
                bytes.len() as c_int,
                ffi::RSMPI_UINT8_T,
                to as c_int,
                tag,
                self.comm,
                request.as_mut_ptr(),
            )
        };
        self.check("MPI_Isend", code);
        match code == ffi::MPI_SUCCESS as c_int {
            // SAFETY: MPI has set it.
            true => unsafe { request.assume_init() },
            // SAFETY: a constant.
            false => unsafe { ffi::RSMPI_REQUEST_NULL },
        }
    }

    /// Returns whether MPI is done with a request.
    fn is_done(&mut self, request: &mut ffi::MPI_Request) -> bool {
        let mut flag = 0;
        // SAFETY: the request is one that MPI has made, or the null request, which is done.
        let code = unsafe { ffi::MPI_Test(request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
        self.check("MPI_Test", code);
        flag != 0
    }

    /// Takes the next head, if one has arrived, and starts receiving its body.
    fn take_head(&mut self, matcher: Matcher) -> bool {
        let (mut flag, mut message) = (0, MaybeUninit::uninit());
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: all pointers are to places of the right type.
        let code = unsafe {
            ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                HEAD,
                self.comm,
                &mut flag,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            )
        };
        self.check("MPI_Improbe", code);
        if flag == 0 || self.failed.is_some() {
            return false;
        }
        // SAFETY: a message was found, so MPI has set both.
        let (mut message, status) = unsafe { (message.assume_init(), status.assume_init()) };
        let mut count = 0;
        // SAFETY: as above.
        let code = unsafe { ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut count) };
        self.check("MPI_Get_count", code);
        let mut head = vec![0; count.max(0) as usize];
        // SAFETY: the buffer has the size of the message.
        let code = unsafe {
            ffi::MPI_Mrecv(
                head.as_mut_ptr().cast::<c_void>(),
                count,
                ffi::RSMPI_UINT8_T,
                &mut message,
                ffi::RSMPI_STATUS_IGNORE,
            )
        };
        self.check("MPI_Mrecv", code);
        let from = status.MPI_SOURCE as usize;
        match self.body_of(&mut head) {
            Some(body) => {
                if let Body::Held(..) = body {
                    // Bodies are received in the order in which they were sent.
                    self.release(from, true, matcher);
                }
                let bytes = head.len() + body.bytes();
                self.arriving_bytes += bytes;
                self.arriving[from].push_back(Arriving { head, body, bytes });
            }
            None => {
                self.failed = Some(format!(
                    "process {from} sent {count} bytes that are no message of burn-dist's: do all processes run the \
                     same version?"
                ));
            }
        }
        true
    }

    /// Cuts the trailer off a head, and the body if it is there.
    fn body_of(&mut self, head: &mut Vec<u8>) -> Option<Body> {
        let at = head.len().checked_sub(TRAILER_BYTES)?;
        let trailer = head.split_off(at);
        let len = u64::from_le_bytes(trailer[..8].try_into().ok()?) as usize;
        let is_inline = trailer[8] == 1;
        if len == 0 {
            return Some(Body::Whole(Block::empty()));
        }
        if is_inline {
            let at = head.len().checked_sub(len)?;
            let body = head.split_off(at);
            return Some(Body::Whole(Block::from(self.pool.copy_of(&body))));
        }
        Some(Body::Held(len, Instant::now()))
    }

    /// Starts to receive the body that is held, if there is one and its call has come, or it has been held too long, or
    /// it `must`.
    fn release(&mut self, from: usize, must: bool, matcher: Matcher) {
        let mut arriving = self.arriving[from].iter().enumerate().rev();
        let held = arriving.find_map(|(at, Arriving { head, body, .. })| match body {
            Body::Held(len, since) => Some((at, head, *len, since)),
            _ => None,
        });
        let Some((at, head, len, since)) = held else {
            return;
        };
        let target = match matcher(head, len) {
            Destination::Region(region) => Target::Region(region),
            Destination::Later if !must && since.elapsed() < held_max(len) => return,
            Destination::Buffer | Destination::Later => Target::Buffer(self.pool.take(len)),
        };
        self.arriving[from][at].body = self.receive_into(target, len, from);
    }

    fn receive_into(&mut self, target: Target, len: usize, from: usize) -> Body {
        let mut requests = Vec::new();
        for start in (0..len).step_by(PIECE_BYTES_MAX) {
            let bytes = PIECE_BYTES_MAX.min(len - start);
            let mut request = MaybeUninit::uninit();
            // SAFETY: the target has `len` bytes, is used by nobody else, and lives until the requests are done.
            let code = unsafe {
                ffi::MPI_Irecv(
                    target.as_ptr().add(start).cast::<c_void>(),
                    bytes as c_int,
                    ffi::RSMPI_UINT8_T,
                    from as c_int,
                    BODY,
                    self.comm,
                    request.as_mut_ptr(),
                )
            };
            self.check("MPI_Irecv", code);
            if self.failed.is_some() {
                // What has been started may still write.
                std::mem::forget(target);
                return Body::Whole(Block::empty());
            }
            // SAFETY: MPI has set it.
            requests.push(unsafe { request.assume_init() });
        }
        Body::Moving(target, requests)
    }

    /// Returns the oldest message of a sender, if it is whole.
    fn take_whole(&mut self, from: usize) -> Option<Message> {
        let mut first = self.arriving[from].pop_front()?;
        if let Body::Moving(_, requests) = &mut first.body {
            let mut left = std::mem::take(requests);
            left.retain_mut(|request| !self.is_done(request));
            *requests = left;
        }
        let body = match first.body {
            Body::Moving(target, requests) if requests.is_empty() && self.failed.is_none() => {
                match target {
                    Target::Region(_) => Block::empty(),
                    // SAFETY: MPI has written all of it, and does not look at it again.
                    Target::Buffer(buffer) => Block::from(unsafe { buffer.finish() }),
                }
            }
            Body::Whole(body) => body,
            body => {
                self.arriving[from].push_front(Arriving { body, ..first });
                return None;
            }
        };
        self.arriving_bytes -= first.bytes;
        Some(Message {
            process: from as u32,
            head: first.head,
            body,
        })
    }
}

impl Transport for Mpi {
    fn send(&mut self, message: Message) {
        let Message {
            process,
            mut head,
            body,
        } = message;
        let is_inline = body.len() <= INLINE_BYTES_MAX;
        if is_inline {
            head.extend_from_slice(body.as_slice());
        }
        head.extend((body.len() as u64).to_le_bytes());
        head.push(is_inline.into());
        let request = self.isend(&head, process, HEAD);
        self.sending.push(Sending {
            bytes: head.len(),
            _head: Some(head),
            _body: None,
            request,
        });
        if is_inline {
            return;
        }
        for piece in body.as_slice().chunks(PIECE_BYTES_MAX) {
            let request = self.isend(piece, process, BODY);
            self.sending.push(Sending {
                bytes: piece.len(),
                _head: None,
                _body: Some(body.clone()),
                request,
            });
        }
    }

    fn receive(&mut self, matcher: Matcher) -> Result<Option<Message>, String> {
        if let Some(trouble) = (self.trouble)() {
            self.failed.get_or_insert(trouble);
        }
        while self.arriving_bytes < ARRIVING_BYTES_MAX && self.take_head(matcher) {}
        let processes = self.arriving.len();
        for offset in 0..processes {
            let from = (self.next + offset) % processes;
            self.release(from, false, matcher);
            if let Some(message) = self.take_whole(from) {
                self.next = (from + 1) % processes;
                return Ok(Some(message));
            }
        }
        match &self.failed {
            Some(reason) => Err(reason.clone()),
            None => Ok(None),
        }
    }

    fn unsent_bytes(&mut self) -> usize {
        if self.failed.is_some() {
            return 0; // Nothing is known of what was given to MPI: it stays where it is.
        }
        let mut sending = std::mem::take(&mut self.sending);
        sending.retain_mut(|sending| !self.is_done(&mut sending.request));
        self.sending = sending;
        self.sending.iter().map(|sending| sending.bytes).sum()
    }

    fn is_receiving(&self) -> bool {
        self.arriving.iter().any(|from| !from.is_empty())
    }

    fn is_for_all_threads(&self) -> bool {
        self.is_for_all_threads
    }

    fn process(&self) -> u32 {
        self.process
    }

    fn num_processes(&self) -> usize {
        self.arriving.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mpi_without_threads_is_refused() {
        let error = has_threads(mpi::Threading::Single).expect_err("no threads");
        assert!(
            error.contains("Single where MPI_THREAD_FUNNELED is needed"),
            "{error}"
        );
        has_threads(mpi::Threading::Funneled).expect("enough");
    }
}
