//! Collectives in order with a backend's work, on the device: without the host waiting in between.
//!
//! | file | what |
//! | --- | --- |
//! | [`api`] | the few calls of CUDA's driver that order streams, as a trait |
//! | [`order`] | the words and the open calls of one rank |
//! | [`watcher`] | a thread per rank that sees what a rank which is held up by its device cannot |
//! | `driver` | CUDA's driver (feature `cuda`) |
//! | `machine` | GPUs simulated: streams as queues that run late and in any order, events, words, memory in use |
//!
//! # Streams and words
//! A backend computes on a stream that it keeps to itself; a collective runs on a stream of ours. Between the two there
//! are an event and *words*: 32-bit numbers in host memory that the device maps, of which a rank has one page.
//!
//! | word | written by | waited for by |
//! | --- | --- | --- |
//! | `entered`, one per stream of ours | that stream, when the backend has come as far as the n-th call on it: n | nobody; the host reads from when on a call waits for others |
//! | `left`, one per stream of ours | that stream, when it is done with the n-th call: n | the backend's stream; the host, before it reads values |
//! | `poison`, one | the host | every wait of the backend's stream, beside its word |
//!
//! # A call
//! ```text
//! host                            backend's stream      our stream
//! ----                            ----------------      ----------
//! everything is on the stream     ... pack
//! event of all in the context     .
//! wait, entered = n, call, left   .                     wait for the event, entered = n, collective, left = n
//! wait of the backend             wait until left >= n
//! what uses the result            join, matmul ...
//! ```
//!
//! 1. *Entry.* The backend's work has been handed to the driver (its own queues are empty). An event takes in all that
//!    the context runs, and our stream waits for it: what is sent has been computed, and what will be written is not
//!    read any more. Members in one process then meet on the host ([`crate::nccl`]) before they launch.
//! 2. *Call.* It is put on our stream between `entered = n` and `left = n`; members meet again.
//! 3. *Exit.* The backend gets a wait for `left >= n`. Only now: whatever sets a word is submitted before whatever
//!    waits for it, so that streams which share a queue of the hardware never wait for something behind them. The
//!    write is on its stream when [`Order::leave`](order::Order::leave) returns, and only it gives out the
//!    [`FlagWait`](api::FlagWait).
//!
//! # Memory
//! What a call reads and writes is held, beside its owner's handles, until the host has seen `left >= n`: not only
//! until the exit is enqueued, because a wait may end by poison. A hold does not keep the owner from writing in place.
//! So that little more is held than a plan counts, the host waits at an exit until at most [`order::AHEAD`] calls
//! that have left before are open.
//!
//! # Faults
//! - *Reading.* Before the host reads a value, it waits for all open calls
//!   ([`crate::nccl::groups::Channels::land`]) and then asks for the fault: an aborted collective ends too, and its
//!   words are written. So no value that an abort has let through is handed out.
//! - *Time-out.* The clock of a call runs from when the host has seen `entered = n`: before that, the device computes.
//! - *Held up.* A rank may wait for its device without us: in a full queue of launches, or in a backend's own waits. So
//!   a thread beside it looks at words, communicators and the mesh's fault ([`watcher`]), publishes what it finds, and
//!   aborts: collectives end, our streams go on, words are written, and with them every wait of the backend ends.
//! - *Poison.* Streams that do not come to their end in time are abandoned: `poison` ends the waits of the backend, and
//!   what calls hold is never released.
//!
//! # Where the driver lacks a function
//! Then the host waits before and after each call, as it does everywhere else; a warning says so once.

pub mod api;
#[cfg(feature = "cuda")]
pub mod driver;
#[cfg(any(test, feature = "simulated-gpus"))]
pub mod machine;
pub mod order;
#[cfg(test)]
pub(crate) mod tests;
pub mod watcher;
