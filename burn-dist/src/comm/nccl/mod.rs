//! Between GPUs: collectives on device memory by NVIDIA's NCCL.
//!
//! | file | what |
//! | --- | --- |
//! | [`choice`] | which way GPUs talk, and in which order sums run: what users choose |
//! | [`api`] | the few calls of NCCL and of CUDA's driver that are used, as two traits |
//! | [`collectives`] | which calls make a collective: counts and offsets, pure |
//! | [`groups`] | a communicator per group and lane, a stream per lane; launching |
//! | [`watch`] | waiting with a time-out, looking for faults meanwhile |
//! | [`endpoint`] | a [`Communicator`](super::Communicator) of host blocks, staged through device memory |
//! | [`library`] | where NCCL is looked for, and what is said when it is not there |
//! | `driver`, `ffi` | CUDA and NCCL themselves (feature `cuda`) |
//! | `fake` | both, simulated by threads: tests run everything above without a GPU |
//!
//! # Communicators
//! Rank 0 of a group makes a unique id, the others get its 128 bytes through the host's communicator, and all of them initialise a communicator of their own. It is made when the group first
//! communicates. `ncclCommSplit` would be collective over the *parent*: ranks that never meet in a group would have to take part in making it, in one order; with ids, a
//! group is its members' business only. (NCCL user guide: "Creating a communicator", "Creating more communicators".)
//!
//! # Order
//! One rank launches all collectives of a lane on one stream, in the order of the plan, which is common to all ranks. So the first collective that has not finished is at the head of
//! the stream of every member, and runs: there is no deadlock, however many communicators share a GPU. (NCCL user guide: "Using multiple NCCL communicators concurrently".)
//! Where no such order exists (the endpoint, whose groups are independent), each group and lane has a thread and a stream of its own, and NCCL needs room for their kernels side by
//! side.
//!
//! With CubeCL's work the order is kept by the host: it waits until what it has queued is done (`client.sync`), launches, and waits until the collective is done before it hands
//! the result on. Events between the two streams would spare it the first wait, but CubeCL 0.10 keeps its streams to itself, so there is nothing to record one on. Buffers belong
//! to the call until it has finished.
//!
//! # Faults
//! Communicators are non-blocking (`ncclConfig_t::blocking = 0`): no call of NCCL blocks this process, and each is polled with `ncclCommGetAsyncError`. A call that takes too long, an
//! asynchronous error, or a fault of the mesh, wherever it comes from, aborts all communicators of the rank. (NCCL user guide: "Error handling and communicator abort", "Fault tolerance".)
//!
//! # What is not here
//! Registered buffers, one-sided windows, CUDA graphs. GPUs that several ranks share: they exchange handles, or go through the host.

pub(crate) mod api;
mod choice;
pub(crate) mod collectives;
#[cfg(feature = "cuda")]
pub(crate) mod driver;
#[cfg(any(test, feature = "cuda"))]
pub(crate) mod endpoint;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(feature = "cuda")]
pub(crate) mod ffi;
pub(crate) mod groups;
pub(crate) mod library;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use choice::native_fold;
pub use choice::{GpuTransport, Reduction};
#[cfg(feature = "cuda")]
pub use endpoint::NcclComm;
