//! NCCL itself, loaded when it is first needed.
//!
//! The functions are looked up by name, and called with signatures that are compared with cudarc's bindings when this
//! is compiled. Not called through those bindings, for three reasons: they panic where the library or a symbol is
//! missing, they know no `libnccl.so.2` (the name that libnccl2 installs), and they read results as enums, which a
//! newer library may leave.

use super::api::{Code, Handle, Nccl, UniqueId};
use super::library;
use super::neighbours::Neighbours;
use super::op::{Element, Op};
use crate::GpuError;
use crate::device::{Address, Stream};
use cudarc::nccl::sys;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawId {
    internal: [c_char; UniqueId::BYTES],
}

/// The first part of `ncclConfig_t`: what it was in 2.18, and the traffic class, which 2.26 has put where 2.18 had
/// padding. NCCL copies as many bytes as `size` says and takes its own values for the rest; 2.26 reads the traffic
/// class whatever `version` says.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
}

/// `NCCL_API_MAGIC`.
const MAGIC: c_uint = 0xcafe_beef;

/// `NCCL_CONFIG_UNDEF_INT`: NCCL's own choice.
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    /// NCCL's own choices, but for blocking.
    fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: library::NEEDED.code(),
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

/// Assumptions about NCCL's types, against cudarc's bindings.
const _: () = {
    use std::mem::offset_of;
    type Real = sys::ncclConfig_t;
    assert!(size_of::<Config>() <= size_of::<Real>());
    assert!(offset_of!(Config, size) == offset_of!(Real, size));
    assert!(offset_of!(Config, magic) == offset_of!(Real, magic));
    assert!(offset_of!(Config, version) == offset_of!(Real, version));
    assert!(offset_of!(Config, blocking) == offset_of!(Real, blocking));
    assert!(offset_of!(Config, cga_cluster_size) == offset_of!(Real, cgaClusterSize));
    assert!(offset_of!(Config, min_ctas) == offset_of!(Real, minCTAs));
    assert!(offset_of!(Config, max_ctas) == offset_of!(Real, maxCTAs));
    assert!(offset_of!(Config, net_name) == offset_of!(Real, netName));
    assert!(offset_of!(Config, split_share) == offset_of!(Real, splitShare));
    // Without padding, of which NCCL would read what nobody has written.
    assert!(offset_of!(Config, traffic_class) == 44 && size_of::<Config>() == 48);

    assert!(size_of::<RawId>() == size_of::<sys::ncclUniqueId>());
    assert!(align_of::<RawId>() == align_of::<sys::ncclUniqueId>());

    assert!(size_of::<sys::ncclResult_t>() == size_of::<c_int>());
    assert!(sys::ncclResult_t::ncclSuccess as i32 == Code::SUCCESS.0);
    assert!(sys::ncclResult_t::ncclInProgress as i32 == Code::IN_PROGRESS.0);

    use super::op::Fold;
    use sys::ncclDataType_t as Type;
    use sys::ncclRedOp_t as RedOp;
    assert!(size_of::<Type>() == size_of::<c_int>() && size_of::<RedOp>() == size_of::<c_int>());
    assert!(Type::ncclInt8 as i32 == Element::I8 as i32);
    assert!(Type::ncclUint8 as i32 == Element::U8 as i32);
    assert!(Type::ncclInt32 as i32 == Element::I32 as i32);
    assert!(Type::ncclUint32 as i32 == Element::U32 as i32);
    assert!(Type::ncclInt64 as i32 == Element::I64 as i32);
    assert!(Type::ncclUint64 as i32 == Element::U64 as i32);
    assert!(Type::ncclFloat16 as i32 == Element::F16 as i32);
    assert!(Type::ncclFloat32 as i32 == Element::F32 as i32);
    assert!(Type::ncclFloat64 as i32 == Element::F64 as i32);
    assert!(Type::ncclBfloat16 as i32 == Element::BF16 as i32);
    assert!(RedOp::ncclSum as i32 == Fold::Sum as i32);
    assert!(RedOp::ncclProd as i32 == Fold::Prod as i32);
    assert!(RedOp::ncclMax as i32 == Fold::Max as i32);
    assert!(RedOp::ncclMin as i32 == Fold::Min as i32);
    assert!(RedOp::ncclAvg as i32 == Fold::Avg as i32);
};

/// A type that goes over the C interface as another one of ours does.
///
/// `binding` is cudarc's type for it, which `functions!` compares with the real signature.
trait Ours {
    type Binding;
}

macro_rules! ours {
    ($($ours:ty => $binding:ty),* $(,)?) => {
        $(impl Ours for $ours { type Binding = $binding; })*
    };
}

/// An argument of a C enum.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Type(c_int);

/// The same as [`Type`].
#[repr(transparent)]
#[derive(Clone, Copy)]
struct RedOp(c_int);

/// A communicator.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Comm(*mut c_void);

/// A CUDA stream.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Queue(*mut c_void);

/// A result.
type Res = c_int;

ours! {
    usize => usize,
    c_int => c_int,
    Type => sys::ncclDataType_t,
    RedOp => sys::ncclRedOp_t,
    Comm => sys::ncclComm_t,
    Queue => sys::cudaStream_t,
    RawId => sys::ncclUniqueId,
    *const c_void => *const c_void,
    *mut c_void => *mut c_void,
    *mut c_int => *mut c_int,
    *mut Comm => *mut sys::ncclComm_t,
    *mut RawId => *mut sys::ncclUniqueId,
    *mut Config => *mut sys::ncclConfig_t,
    *mut Res2 => *mut sys::ncclResult_t,
}

/// A result behind a pointer.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Res2(c_int);

macro_rules! functions {
    ($($field:ident = $name:ident($($arg:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> Res,)*
            error_string: unsafe extern "C" fn(Res) -> *const c_char,
            last_error: unsafe extern "C" fn(Comm) -> *const c_char,
        }

        impl Functions {
            /// Looks all functions up.
            fn find(library: &Library) -> Result<Self, String> {
                // SAFETY: the signatures are those of cudarc's bindings, which are made from nccl.h; see below.
                unsafe {
                    Ok(Self {
                        $($field: symbol(library, stringify!($name))?,)*
                        error_string: symbol(library, "ncclGetErrorString")?,
                        last_error: symbol(library, "ncclGetLastError")?,
                    })
                }
            }
        }

        // The same signatures as in cudarc, argument by argument.
        $(const _: unsafe fn($(<$arg as Ours>::Binding),*) -> sys::ncclResult_t = sys::$name;)*
        const _: unsafe fn(sys::ncclResult_t) -> *const c_char = sys::ncclGetErrorString;
        const _: unsafe fn(sys::ncclComm_t) -> *const c_char = sys::ncclGetLastError;
    };
}

functions! {
    version = ncclGetVersion(*mut c_int);
    unique_id = ncclGetUniqueId(*mut RawId);
    init = ncclCommInitRankConfig(*mut Comm, c_int, RawId, c_int, *mut Config);
    async_error = ncclCommGetAsyncError(Comm, *mut Res2);
    group_start = ncclGroupStart();
    group_end = ncclGroupEnd();
    finalize = ncclCommFinalize(Comm);
    destroy = ncclCommDestroy(Comm);
    abort = ncclCommAbort(Comm);
    all_gather = ncclAllGather(*const c_void, *mut c_void, usize, Type, Comm, Queue);
    broadcast = ncclBroadcast(*const c_void, *mut c_void, usize, Type, c_int, Comm, Queue);
    all_reduce = ncclAllReduce(*const c_void, *mut c_void, usize, Type, RedOp, Comm, Queue);
    reduce_scatter = ncclReduceScatter(*const c_void, *mut c_void, usize, Type, RedOp, Comm, Queue);
    reduce = ncclReduce(*const c_void, *mut c_void, usize, Type, RedOp, c_int, Comm, Queue);
    send = ncclSend(*const c_void, usize, Type, c_int, Comm, Queue);
    recv = ncclRecv(*mut c_void, usize, Type, c_int, Comm, Queue);
}

/// # Safety
/// The symbol is a function of type `F`.
unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    match found {
        Ok(function) => Ok(*function),
        Err(error) => Err(format!("it has no {name} ({error})")),
    }
}

/// NCCL, and the library that it lives in.
struct Loaded {
    functions: Functions,
    neighbours: Neighbours,
    /// Kept open as long as its functions may be called.
    _library: Library,
}

/// Returns NCCL, which is loaded once per process.
///
/// # Errors
/// [`GpuError::NcclMissing`] and [`GpuError::NcclUnusable`].
pub fn nccl() -> Result<Arc<dyn Nccl>, GpuError> {
    static NCCL: OnceLock<Result<Arc<Loaded>, GpuError>> = OnceLock::new();
    let nccl = NCCL.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).ok();
        let (name, library) = library::find(variable, |name| {
            // SAFETY: loading NCCL runs its initialisers, which do nothing but set up its own state.
            unsafe { Library::new(name) }.map_err(|error| error.to_string())
        })?;
        library::check_variables(&name, variable)?;
        let functions =
            Functions::find(&library).map_err(|reason| library::unusable(&name, reason))?;
        let mut version = 0;
        // SAFETY: the pointer is to a number.
        let code = unsafe { (functions.version)(&mut version) };
        if code != Code::SUCCESS.0 {
            let reason = format!("it does not say its version (code {code})");
            return Err(library::unusable(&name, reason));
        }
        library::check(&name, version)?;
        tracing::debug!(library = %name, version = %library::Version::of_code(version), "NCCL");
        Ok(Arc::new(Loaded {
            functions,
            neighbours: Neighbours::default(),
            _library: library,
        }))
    });
    nccl.clone().map(|nccl| nccl as Arc<dyn Nccl>)
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: NCCL returns strings that end with 0 and that live until its next call on this thread.
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .trim()
        .to_string()
}

fn member(index: usize) -> c_int {
    c_int::try_from(index).expect("a mesh has fewer ranks than a C int")
}

impl From<Handle> for Comm {
    fn from(handle: Handle) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(handle.0))
    }
}

fn queue(stream: Stream) -> Queue {
    Queue(std::ptr::with_exposed_provenance_mut(stream.0))
}

/// An address of device memory is a number to the host.
fn source(address: Address) -> *const c_void {
    std::ptr::without_provenance(address.0 as usize)
}

fn target(address: Address) -> *mut c_void {
    std::ptr::without_provenance_mut(address.0 as usize)
}

/// Returns the communicator that NCCL has made, if it has: one that comes with an error reports it as its state, and
/// has to be aborted.
fn made(comm: Comm, code: Code) -> Result<Handle, Code> {
    match comm.0.is_null() {
        true => Err(code),
        false => Ok(Handle(comm.0.expose_provenance())),
    }
}

impl Nccl for Loaded {
    fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    fn unique_id(&self) -> Result<UniqueId, Code> {
        let mut raw = RawId {
            internal: [0; UniqueId::BYTES],
        };
        // SAFETY: the pointer is to an id.
        match Code(unsafe { (self.functions.unique_id)(&mut raw) }) {
            Code::SUCCESS => Ok(UniqueId(raw.internal.map(|byte| byte.to_ne_bytes()[0]))),
            code => Err(code),
        }
    }

    fn init(&self, members: usize, id: &UniqueId, index: usize) -> Result<Handle, Code> {
        let raw = RawId {
            // Signed or not, as the processor has it.
            internal: id.0.map(|byte| c_char::from_ne_bytes([byte])),
        };
        let mut config = Config::non_blocking();
        let mut comm = Comm(std::ptr::null_mut());
        // SAFETY: the pointers are to a communicator's place and to a configuration of the size that it names, which
        // NCCL copies before it returns.
        let code = Code(unsafe {
            (self.functions.init)(&mut comm, member(members), raw, member(index), &mut config)
        });
        made(comm, code)
    }

    fn state(&self, comm: Handle) -> Code {
        let mut state = Res2(Code::SUCCESS.0);
        // SAFETY: the communicator is alive (handles are released with `destroy` and `abort`), and the pointer is to a
        // number.
        match Code(unsafe { (self.functions.async_error)(comm.into(), &mut state) }) {
            Code::SUCCESS => Code(state.0),
            code => code,
        }
    }

    fn group_start(&self) -> Code {
        // SAFETY: no arguments.
        Code(unsafe { (self.functions.group_start)() })
    }

    fn group_end(&self) -> Code {
        // SAFETY: no arguments.
        Code(unsafe { (self.functions.group_end)() })
    }

    unsafe fn issue(&self, comm: Handle, op: &Op, element: Element, stream: Stream) -> Code {
        let (f, comm, stream) = (&self.functions, comm.into(), queue(stream));
        let kind = Type(element as c_int);
        // SAFETY: the memory is the caller's promise; the communicator is alive, and its stream is of the same device.
        Code(unsafe {
            match *op {
                Op::AllGather { send, recv, count } => {
                    (f.all_gather)(source(send), target(recv), count, kind, comm, stream)
                }
                Op::Broadcast {
                    send,
                    recv,
                    count,
                    root,
                } => {
                    let root = member(root);
                    (f.broadcast)(source(send), target(recv), count, kind, root, comm, stream)
                }
                Op::AllReduce {
                    send,
                    recv,
                    count,
                    fold,
                } => {
                    let fold = RedOp(fold as c_int);
                    (f.all_reduce)(source(send), target(recv), count, kind, fold, comm, stream)
                }
                Op::ReduceScatter {
                    send,
                    recv,
                    count,
                    fold,
                } => {
                    let fold = RedOp(fold as c_int);
                    (f.reduce_scatter)(source(send), target(recv), count, kind, fold, comm, stream)
                }
                Op::Reduce {
                    send,
                    recv,
                    count,
                    fold,
                    root,
                } => {
                    let (fold, root) = (RedOp(fold as c_int), member(root));
                    (f.reduce)(
                        source(send),
                        target(recv),
                        count,
                        kind,
                        fold,
                        root,
                        comm,
                        stream,
                    )
                }
                Op::Send { send, count, to } => {
                    (f.send)(source(send), count, kind, member(to), comm, stream)
                }
                Op::Recv { recv, count, from } => {
                    (f.recv)(target(recv), count, kind, member(from), comm, stream)
                }
            }
        })
    }

    fn finalize(&self, comm: Handle) -> Code {
        // SAFETY: the communicator is alive.
        Code(unsafe { (self.functions.finalize)(comm.into()) })
    }

    fn destroy(&self, comm: Handle) -> Code {
        // SAFETY: the communicator is alive, and the caller gives it up.
        Code(unsafe { (self.functions.destroy)(comm.into()) })
    }

    fn abort(&self, comm: Handle) -> Code {
        // SAFETY: as above.
        Code(unsafe { (self.functions.abort)(comm.into()) })
    }

    fn error_text(&self, code: Code) -> String {
        // SAFETY: NCCL has a text for every number.
        text(unsafe { (self.functions.error_string)(code.0) })
    }

    fn last_error(&self, comm: Handle) -> String {
        // SAFETY: the communicator is alive.
        text(unsafe { (self.functions.last_error)(comm.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_nccl_gets_an_error_and_no_panic() {
        // Where it is installed, it is found and is new enough; else the error says what was tried.
        if let Err(error) = nccl() {
            let text = error.to_string();
            assert!(text.contains("libnccl") || text.contains("NCCL"), "{text}");
        }
    }

    #[test]
    fn a_communicator_that_comes_with_an_error_is_not_lost() {
        let mut place = 0_u8;
        let comm = Comm((&raw mut place).cast());
        let handle = made(comm, Code(3)).expect("a communicator");
        assert_eq!(handle.0, comm.0.addr());
        let none = Comm(std::ptr::null_mut());
        assert_eq!(made(none, Code(3)), Err(Code(3)));
    }

    #[test]
    fn a_library_that_is_no_nccl_is_refused_by_name() {
        // Every Linux process has a C library, which has none of NCCL's functions.
        // SAFETY: it is loaded already.
        let library = unsafe { Library::new("libc.so.6") }.expect("a C library");
        let error = Functions::find(&library)
            .err()
            .expect("no function of NCCL");
        assert!(error.contains("it has no ncclGetVersion"), "{error}");
    }
}
