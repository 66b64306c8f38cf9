//! Defects of programs that call NCCL, on two devices.

use cuda_in_software::{Done, Gpu, add_one, filled, floats, follow, launch, new_stream, shape};
use cudarc::driver::result::stream;
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{self, ncclComm_t};
use std::mem::MaybeUninit;
use std::thread;
use std::time::Duration;

/// Floats that a member sends.
const COUNT: usize = 64;

/// Longer than the machine needs.
const LATE: Duration = Duration::from_millis(50);

/// A member, on a thread of its own.
struct Member {
    rank: u64,
    comm: ncclComm_t,
    stream: CUstream,
}

impl Member {
    fn gather(&self, from: u64, to: u64, count: usize) {
        let float = sys::ncclDataType_t::ncclFloat32;
        let (from, to) = (from as *const _, to as *mut _);
        // SAFETY: whether the memory is there is what is tested.
        let put =
            unsafe { sys::ncclAllGather(from, to, count, float, self.comm, self.stream.cast()) };
        assert_eq!(put, sys::ncclResult_t::ncclSuccess);
    }

    fn wait(&self) -> Done {
        // SAFETY: the stream is there.
        unsafe { stream::synchronize(self.stream) }
    }
}

/// Runs a program on two devices, and returns the first error.
fn on_two(program: impl Fn(&Member) -> Done + Sync) -> Done {
    let mut id = MaybeUninit::uninit();
    // SAFETY: the pointer is to an identity.
    let id = unsafe {
        assert_eq!(
            sys::ncclGetUniqueId(id.as_mut_ptr()),
            sys::ncclResult_t::ncclSuccess
        );
        id.assume_init()
    };
    let member = |rank: i32| {
        Gpu::open(rank);
        let mut comm = MaybeUninit::uninit();
        // SAFETY: the pointer is to a handle.
        let comm = unsafe {
            let joined = sys::ncclCommInitRank(comm.as_mut_ptr(), 2, id, rank);
            assert_eq!(joined, sys::ncclResult_t::ncclSuccess);
            comm.assume_init()
        };
        let (rank, stream) = (rank as u64, new_stream());
        program(&Member { rank, comm, stream })
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| member(1));
        let one = member(0);
        one.and(other.join().expect("no panic"))
    })
}

/// One member gathers half as many floats as the other.
pub(super) fn unlike(wrong: bool) -> Done {
    on_two(|of| {
        let count = if wrong && of.rank == 1 {
            COUNT / 2
        } else {
            COUNT
        };
        of.gather(filled(&[1.0; COUNT]), floats(2 * COUNT), count);
        of.wait()
    })
}

/// What is received has room for one member's floats.
pub(super) fn short(wrong: bool) -> Done {
    on_two(|of| {
        let room = if wrong { COUNT } else { 2 * COUNT };
        of.gather(filled(&[1.0; COUNT]), floats(room), COUNT);
        of.wait()
    })
}

/// A kernel of another stream reads what is gathered.
pub(super) fn read_too_soon(wrong: bool) -> Done {
    on_two(|of| {
        let (all, to, reader) = (floats(2 * COUNT), floats(2 * COUNT), new_stream());
        let kernel = add_one();
        of.gather(filled(&[1.0; COUNT]), all, COUNT);
        if !wrong {
            follow(of.stream, reader)?;
        } else {
            // Late, so that the order is right by chance.
            thread::sleep(LATE);
        }
        launch(kernel, shape(1, 128), reader, &[all, to, 2 * COUNT as u64])?;
        // SAFETY: the stream is there.
        unsafe { stream::synchronize(reader) }
    })
}

/// What is sent is written again while it may still be sent.
pub(super) fn written_too_soon(wrong: bool) -> Done {
    on_two(|of| {
        let (mine, more, writer) = (filled(&[1.0; COUNT]), filled(&[1.0; COUNT]), new_stream());
        let kernel = add_one();
        of.gather(mine, floats(2 * COUNT), COUNT);
        if !wrong {
            follow(of.stream, writer)?;
        } else {
            thread::sleep(LATE);
        }
        launch(kernel, shape(1, 64), writer, &[more, mine, COUNT as u64])?;
        // SAFETY: the stream is there.
        unsafe { stream::synchronize(writer)? };
        of.wait()
    })
}
