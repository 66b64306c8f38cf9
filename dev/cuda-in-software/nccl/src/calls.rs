//! What programs call: NVIDIA's names and signatures.

use crate::communicator::Communicator;
use crate::hub::{Id, identity};
use crate::issue::{end, issue, start};
use crate::moves::{Fold, Kind, Op, What};
use crate::status::{
    IN_PROGRESS, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, SYSTEM, Status, UNHANDLED_CUDA,
};
use software_environment::{enter, note};
use software_meeting as driver;
use std::ffi::{c_char, c_int, c_uint};

/// `ncclUniqueId`.
#[repr(C)]
struct UniqueId(Id);

/// `ncclConfig_t`, as far as it is read.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

type Comm = *mut Communicator;

/// 2.27.3.
const VERSION: c_int = 22_703;

/// # Safety
/// As NVIDIA's: the pointer is to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Status {
    if let Some(status) = enter("ncclGetVersion") {
        return Status(status as i32);
    }
    // SAFETY: the caller's promise.
    unsafe { put(version, VERSION) }
}

/// Writes a result.
///
/// # Safety
/// The pointer is null or to a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Status {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(status: Status) -> *const c_char {
    note("ncclGetErrorString");
    let text = match status {
        SUCCESS => c"no error",
        IN_PROGRESS => c"NCCL operation in progress",
        INVALID_ARGUMENT => c"invalid argument",
        SYSTEM => c"unhandled system error",
        INTERNAL => c"internal error",
        INVALID_USAGE => c"invalid usage: for example two ranks on one device",
        _ => c"an error of NCCL in software",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: Comm) -> *const c_char {
    note("ncclGetLastError");
    c"".as_ptr()
}

/// # Safety
/// As NVIDIA's: the pointer is to an identity.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Status {
    if let Some(status) = enter("ncclGetUniqueId") {
        return Status(status as i32);
    }
    match identity() {
        // SAFETY: the caller's promise.
        Ok(made) => unsafe { put(id, UniqueId(made)) },
        Err(_) => SYSTEM,
    }
}

/// # Safety
/// As NVIDIA's: the pointers are to a handle and to a configuration.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut Comm,
    members: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> Status {
    if let Some(status) = enter("ncclCommInitRankConfig") {
        return Status(status as i32);
    }
    if members < 1 || !(0..members).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise.
    let waits = unsafe { config.as_ref() }.is_none_or(|config| config.blocking != 0);
    let Some(gpu) = driver::gpu() else {
        return UNHANDLED_CUDA;
    };
    let made = Communicator::join(id.0, members as usize, rank as usize, gpu);
    let made = Box::new(made);
    if waits {
        made.wait();
        if made.has_twins() {
            return INVALID_USAGE;
        }
    }
    let is_ready = made.is_ready();
    // SAFETY: the caller's promise.
    match (is_ready, unsafe { put(to, Box::into_raw(made)) }) {
        (Some(true), SUCCESS) => SUCCESS,
        (Some(false), SUCCESS) => IN_PROGRESS,
        (None, SUCCESS) => SYSTEM,
        (_, status) => status,
    }
}

/// # Safety
/// As NVIDIA's: the pointer is to a handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(
    to: *mut Comm,
    members: c_int,
    id: UniqueId,
    rank: c_int,
) -> Status {
    if let Some(status) = enter("ncclCommInitRank") {
        return Status(status as i32);
    }
    // SAFETY: the caller's promise.
    unsafe { ncclCommInitRankConfig(to, members, id, rank, std::ptr::null()) }
}

/// # Safety
/// As NVIDIA's: the pointers are to a communicator and to a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(communicator: Comm, to: *mut Status) -> Status {
    if let Some(status) = enter("ncclCommGetAsyncError") {
        return Status(status as i32);
    }
    // SAFETY: the caller's promise.
    unsafe {
        match communicator.as_ref() {
            Some(of) => put(
                to,
                match of.is_ready() {
                    None => SYSTEM,
                    Some(false) => IN_PROGRESS,
                    Some(true) if of.has_twins() => INVALID_USAGE,
                    Some(true) => SUCCESS,
                },
            ),
            None => INVALID_ARGUMENT,
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Status {
    if let Some(status) = enter("ncclGroupStart") {
        return Status(status as i32);
    }
    start()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Status {
    if let Some(status) = enter("ncclGroupEnd") {
        return Status(status as i32);
    }
    end()
}

/// What its streams hold still runs.
#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(communicator: Comm) -> Status {
    if let Some(status) = enter("ncclCommFinalize") {
        return Status(status as i32);
    }
    match communicator.is_null() {
        true => INVALID_ARGUMENT,
        false => SUCCESS,
    }
}

/// # Safety
/// As NVIDIA's: the communicator is given up.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(communicator: Comm) -> Status {
    if let Some(status) = enter("ncclCommDestroy") {
        return Status(status as i32);
    }
    if communicator.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise; it is a box that was made above.
    drop(unsafe { Box::from_raw(communicator) });
    SUCCESS
}

/// What its streams hold ends without the others.
///
/// # Safety
/// As NVIDIA's: the communicator is given up.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(communicator: Comm) -> Status {
    if let Some(status) = enter("ncclCommAbort") {
        return Status(status as i32);
    }
    if communicator.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's promise; it is a box that was made above.
    let of = unsafe { Box::from_raw(communicator) };
    for (key, member) in of.met() {
        driver::leave(&[key], member);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    send: u64,
    recv: u64,
    count: usize,
    kind: c_int,
    communicator: Comm,
    stream: usize,
) -> Status {
    if let Some(status) = enter("ncclAllGather") {
        return Status(status as i32);
    }
    let op = op(What::AllGather, send, recv, count, kind);
    // SAFETY: the caller's promise: the communicator is alive.
    unsafe { issue(communicator, "ncclAllGather", op, 0, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclBroadcast(
    send: u64,
    recv: u64,
    count: usize,
    kind: c_int,
    root: c_int,
    communicator: Comm,
    stream: usize,
) -> Status {
    if let Some(status) = enter("ncclBroadcast") {
        return Status(status as i32);
    }
    let op = op(What::Broadcast(root as usize), send, recv, count, kind);
    // SAFETY: the caller's promise: the communicator is alive.
    unsafe { issue(communicator, "ncclBroadcast", op, root as usize, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    send: u64,
    recv: u64,
    count: usize,
    kind: c_int,
    fold: c_int,
    communicator: Comm,
    stream: usize,
) -> Status {
    if let Some(status) = enter("ncclAllReduce") {
        return Status(status as i32);
    }
    let op = op(What::AllReduce(Fold(fold)), send, recv, count, kind);
    // SAFETY: the caller's promise: the communicator is alive.
    unsafe { issue(communicator, "ncclAllReduce", op, 0, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduceScatter(
    send: u64,
    recv: u64,
    count: usize,
    kind: c_int,
    fold: c_int,
    communicator: Comm,
    stream: usize,
) -> Status {
    if let Some(status) = enter("ncclReduceScatter") {
        return Status(status as i32);
    }
    let op = op(What::ReduceScatter(Fold(fold)), send, recv, count, kind);
    // SAFETY: the caller's promise: the communicator is alive.
    unsafe { issue(communicator, "ncclReduceScatter", op, 0, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduce(
    send: u64,
    recv: u64,
    count: usize,
    kind: c_int,
    fold: c_int,
    root: c_int,
    communicator: Comm,
    stream: usize,
) -> Status {
    if let Some(status) = enter("ncclReduce") {
        return Status(status as i32);
    }
    let what = What::Reduce(Fold(fold), root as usize);
    let op = op(what, send, recv, count, kind);
    // SAFETY: the caller's promise: the communicator is alive.
    unsafe { issue(communicator, "ncclReduce", op, root as usize, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    send: u64,
    count: usize,
    kind: c_int,
    to: c_int,
    communicator: Comm,
    stream: usize,
) -> Status {
    if let Some(status) = enter("ncclSend") {
        return Status(status as i32);
    }
    let op = op(What::Send, send, 0, count, kind);
    // SAFETY: the caller's promise: the communicator is alive.
    unsafe { issue(communicator, "ncclSend", op, to as usize, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    recv: u64,
    count: usize,
    kind: c_int,
    from: c_int,
    communicator: Comm,
    stream: usize,
) -> Status {
    if let Some(status) = enter("ncclRecv") {
        return Status(status as i32);
    }
    let op = op(What::Receive, 0, recv, count, kind);
    // SAFETY: the caller's promise: the communicator is alive.
    unsafe { issue(communicator, "ncclRecv", op, from as usize, stream) }
}

fn op(what: What, send: u64, recv: u64, count: usize, kind: c_int) -> Op {
    Op {
        what,
        send,
        recv,
        count,
        kind: Kind(kind),
    }
}
