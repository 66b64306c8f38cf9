//! Between GPUs: collectives on device memory by NVIDIA's NCCL.
//!
//! | file | what |
//! | --- | --- |
//! | [`choice`] | the transport between GPUs, and the order of sums: what users choose |
//! | [`api`] | the few calls of NCCL and of CUDA's driver that are used, as two traits |
//! | `op` | the collectives of NCCL, as data |
//! | [`collectives`] | which calls make a collective: counts and offsets, pure |
//! | [`groups`] | groups and lanes: members, the route between them, communicators, streams |
//! | [`launching`] | putting calls on the device, by NCCL or as copies ([`crate::peer`], [`crate::symmetric`]) |
//! | [`landing`] | waiting for calls, by the backend's stream ([`crate::streams`]) or by the host |
//! | [`neighbours`] | members of a group that live in one process: they launch and stop together |
//! | [`watch`] | waiting with a time-out, looking for faults meanwhile |
//! | [`ending`] | the end of groups and their communicators: side by side, and with a limit |
//! | [`library`] | where NCCL is looked for, and the error when it is not there |
//! | `driver`, `ffi` | CUDA and NCCL themselves (feature `cuda`) |
//! | `fake` | both, simulated by threads: tests run everything above without a GPU |
//! | `real` | tests of both, on GPUs |
//!
//! # Communicators
//! Rank 0 of a group makes a unique id, the others get its 128 bytes through the host's communicator, and all of them
//! initialise a communicator of their own. It is made when the group first communicates. `ncclCommSplit` would be
//! collective over the *parent*: ranks that never meet in a group would have to take part in making it, in one order;
//! with ids, a group is its members' business only. (NCCL user guide: "Creating a communicator", "Creating more
//! communicators".) A group whose members copy from each other makes one only if something is reduced in it.
//!
//! # Order
//! One rank launches all collectives of a lane on one stream, in the order of the plan, which is common to all ranks.
//! So the first collective that has not finished is at the head of the stream of every member, and runs: there is no
//! deadlock, however many communicators share a GPU. (NCCL user guide: "Using multiple NCCL communicators
//! concurrently".)
//!
//! With CubeCL's work the device keeps the order ([`crate::streams`]): events and words between CubeCL's stream and
//! ours. Where the driver cannot, the host does: it waits until what it has queued is done (`client.sync`), launches,
//! and waits until the collective is done before it hands the result on. Buffers belong to the call until it has
//! finished.
//!
//! # Processes
//! One process per GPU is the recommended shape. Several GPUs in one process work too, with a price: a call of CUDA
//! that allocates memory may wait for what all of the process's GPUs run once they have mapped each other's memory, so
//! the ranks of a process wait for each other before and after each launch ([`neighbours`]), and nothing overlaps with
//! that wait.
//!
//! # Faults
//! Communicators are non-blocking (`ncclConfig_t::blocking = 0`): no call of NCCL blocks this process until a
//! communicator ends, and each is polled with `ncclCommGetAsyncError`. A call that takes too long, an asynchronous
//! error, or a fault of the mesh, wherever it comes from, ends all communicators of the rank. (NCCL user guide: "Error
//! handling and communicator abort", "Fault tolerance".) In this order:
//!
//! 1. The fault is published: an abort waits for others, who have to know of it.
//! 2. All communicators of the rank are aborted at once, with a limit ([`ending`]): `ncclCommAbort` blocks.
//! 3. Memory of open calls is released when the rank's streams have come to their end, and those of its
//!    neighbours in those calls; where that does not happen in time, it is not released at all. Members in other
//!    processes do not matter: they see no buffers of ours, because none are registered, and workspaces stay as long as
//!    they are mapped somewhere.
//!
//! # What is not here
//! Registered buffers, one-sided windows, CUDA graphs. GPUs that several ranks share: they exchange handles, or go
//! through the host.

pub mod api;
mod choice;
pub mod collectives;
#[cfg(feature = "cuda")]
pub mod driver;
mod ending;
#[cfg(any(test, feature = "simulated-gpus"))]
pub mod fake;
#[cfg(feature = "cuda")]
pub mod ffi;
pub mod groups;
mod landing;
mod launching;
pub mod library;
mod neighbours;
pub(crate) mod op;
#[cfg(all(test, feature = "cuda"))]
mod real;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

pub use choice::native_fold;
pub use choice::{GpuTransport, Reduction};
