//! Messages over MPI, through [rsmpi](https://docs.rs/mpi).
//!
//! Reductions run in rank order in the engine, which no reduction of MPI promises; so what MPI carries are the pieces, from the process that has them to those that need
//! them. All calls are made by one thread: `MPI_THREAD_FUNNELED` is enough.
//!
//! A message is a *head* and, if it has more than a few kilobytes, a *body* that follows under another tag, straight into the buffer that the reduction reads.

use super::carrier::{Carrier, Parcel};
use crate::comm::Block;
use crate::comm::buffer::{Buffer, Pool};
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::Communicator;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::raw::{c_int, c_void};
use std::sync::Arc;

/// Bodies of at most this many bytes travel with their heads.
const INLINE_BYTES_MAX: usize = 4 << 10;

/// MPI counts in `int`s: longer bodies are cut.
const PIECE_BYTES_MAX: usize = 1 << 30;

/// Freed buffers kept for later bodies.
const POOL_BYTES_MAX: usize = 512 << 20;

const HEAD: c_int = 1;
const BODY: c_int = 2;

/// What a head ends with: the length of the body, and whether it is in the head.
const TRAILER_BYTES: usize = 9;

/// Why there is no MPI.
pub(super) fn connect() -> Result<(Mpi, usize, usize), String> {
    let (universe, threading) = mpi::initialize_with_threading(mpi::Threading::Funneled).ok_or(
        "MPI has been initialised by someone else: let burn-dist do it, before any other use",
    )?;
    if threading < mpi::Threading::Funneled {
        return Err(format!(
            "this MPI gives {threading:?} where MPI_THREAD_FUNNELED is needed: use one that is built with threads"
        ));
    }
    let world = universe.world();
    let (process, size) = (world.rank() as usize, world.size() as usize);
    // SAFETY: MPI is initialised, and the handler is one of its own.
    unsafe { ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN) };
    let carrier = Mpi {
        sending: Vec::new(),
        arriving: (0..size).map(|_| VecDeque::new()).collect(),
        next: 0,
        pool: Pool::new(POOL_BYTES_MAX),
        failed: None,
        num_here: world.split_shared(world.rank()).size() as usize,
        _universe: universe,
    };
    Ok((carrier, process, size))
}

/// Something MPI is sending; it stays where it is until MPI is done.
struct Sending {
    _head: Option<Vec<u8>>,
    _body: Option<Block>,
    request: ffi::MPI_Request,
}

/// A message whose body is on its way.
struct Arriving {
    head: Vec<u8>,
    /// Its buffer and what MPI still has to write; `None` once it is whole.
    body: Result<Block, (Buffer, Vec<ffi::MPI_Request>)>,
}

pub(super) struct Mpi {
    sending: Vec<Sending>,
    /// By sender, in order.
    arriving: Vec<VecDeque<Arriving>>,
    /// The sender that is looked at first.
    next: usize,
    pool: Arc<Pool>,
    failed: Option<String>,
    num_here: usize,
    /// Finalised, in this thread, when everything else is done.
    _universe: Universe,
}

impl Mpi {
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
                ffi::RSMPI_COMM_WORLD,
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

    /// Whether MPI is done with a request.
    fn is_done(&mut self, request: &mut ffi::MPI_Request) -> bool {
        let mut flag = 0;
        // SAFETY: the request is one that MPI has given, or the null request, which is done.
        let code = unsafe { ffi::MPI_Test(request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
        self.check("MPI_Test", code);
        flag != 0 || self.failed.is_some()
    }

    /// Takes the next head, if one has arrived, and starts receiving its body.
    fn take_head(&mut self) -> bool {
        let (mut flag, mut message) = (0, MaybeUninit::uninit());
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: all pointers are to places of the right type.
        let code = unsafe {
            ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                HEAD,
                ffi::RSMPI_COMM_WORLD,
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
        match self.body_of(&mut head, from) {
            Some(body) => self.arriving[from].push_back(Arriving { head, body }),
            None => {
                self.failed = Some(format!(
                    "process {from} sent {count} bytes that are no message of burn-dist's: do all processes run the same version?"
                ));
            }
        }
        true
    }

    /// Cuts the trailer off a head, and the body if it is there; else starts to receive it.
    fn body_of(
        &mut self,
        head: &mut Vec<u8>,
        from: usize,
    ) -> Option<Result<Block, (Buffer, Vec<ffi::MPI_Request>)>> {
        let at = head.len().checked_sub(TRAILER_BYTES)?;
        let trailer = head.split_off(at);
        let len = u64::from_le_bytes(trailer[..8].try_into().ok()?) as usize;
        let is_inline = trailer[8] == 1;
        if len == 0 {
            return Some(Ok(Block::empty()));
        }
        if is_inline {
            let at = head.len().checked_sub(len)?;
            let body = head.split_off(at);
            return Some(Ok(Block::from(Buffer::copy_of(&self.pool, &body))));
        }
        let buffer = self.pool.take(len);
        let mut requests = Vec::new();
        for start in (0..len).step_by(PIECE_BYTES_MAX) {
            let bytes = PIECE_BYTES_MAX.min(len - start);
            let mut request = MaybeUninit::uninit();
            // SAFETY: the buffer has `len` bytes, is used by nobody else, and lives until the requests are done.
            let code = unsafe {
                ffi::MPI_Irecv(
                    buffer.as_ptr().add(start).cast::<c_void>(),
                    bytes as c_int,
                    ffi::RSMPI_UINT8_T,
                    from as c_int,
                    BODY,
                    ffi::RSMPI_COMM_WORLD,
                    request.as_mut_ptr(),
                )
            };
            self.check("MPI_Irecv", code);
            if self.failed.is_some() {
                // What has been started may still write.
                std::mem::forget(buffer);
                return Some(Ok(Block::empty()));
            }
            // SAFETY: MPI has set it.
            requests.push(unsafe { request.assume_init() });
        }
        Some(Err((buffer, requests)))
    }

    /// Returns the oldest message of a sender, if it is whole.
    fn take_whole(&mut self, from: usize) -> Option<Parcel> {
        let mut first = self.arriving[from].pop_front()?;
        if let Err((_, requests)) = &mut first.body {
            let mut left = std::mem::take(requests);
            left.retain_mut(|request| !self.is_done(request));
            *requests = left;
        }
        match first.body {
            Err((buffer, requests)) if requests.is_empty() && self.failed.is_none() => {
                // SAFETY: MPI has written all of it, and does not look at it again.
                let bytes = unsafe { buffer.into_bytes() };
                Some(Parcel {
                    process: from as u32,
                    head: first.head,
                    body: Block::from(bytes),
                })
            }
            Ok(body) => Some(Parcel {
                process: from as u32,
                head: first.head,
                body,
            }),
            body => {
                self.arriving[from].push_front(Arriving {
                    head: first.head,
                    body,
                });
                None
            }
        }
    }
}

impl Carrier for Mpi {
    fn send(&mut self, parcel: Parcel) {
        let Parcel {
            process,
            mut head,
            body,
        } = parcel;
        let is_inline = body.len() <= INLINE_BYTES_MAX;
        if is_inline {
            head.extend_from_slice(body.as_slice());
        }
        head.extend((body.len() as u64).to_le_bytes());
        head.push(is_inline.into());
        let request = self.isend(&head, process, HEAD);
        self.sending.push(Sending {
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
                _head: None,
                _body: Some(body.clone()),
                request,
            });
        }
    }

    fn receive(&mut self) -> Result<Option<Parcel>, String> {
        while self.take_head() {}
        let processes = self.arriving.len();
        for offset in 0..processes {
            let from = (self.next + offset) % processes;
            if let Some(parcel) = self.take_whole(from) {
                self.next = (from + 1) % processes;
                return Ok(Some(parcel));
            }
        }
        match &self.failed {
            Some(reason) => Err(reason.clone()),
            None => Ok(None),
        }
    }

    fn is_sending(&mut self) -> bool {
        let mut sending = std::mem::take(&mut self.sending);
        sending.retain_mut(|sending| !self.is_done(&mut sending.request));
        self.sending = sending;
        !self.sending.is_empty()
    }

    fn num_processes_here(&self) -> usize {
        self.num_here
    }
}
