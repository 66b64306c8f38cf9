//! Copies between GPUs that read each other's memory, instead of NCCL's kernels: they take no multiprocessors.
//!
//! | file | what |
//! | --- | --- |
//! | [`api`] | the few calls of CUDA's driver that are used, as a trait |
//! | [`choice`] | the route of a group: a pure function of its members' cards |
//! | [`copies`] | which copies make a collective, and in which order streams do them |
//! | `driver` | CUDA's driver (feature `cuda`) |
//!
//! # What is copied
//! All-gathers, broadcasts, sends and receives, and so also all-to-alls, shifts, and reductions in order, whose terms
//! are sent. Reductions that the device library may fold itself stay NCCL's
//! ([`Reduction`](crate::Reduction)).
//!
//! # Protocol
//! A member *reads* what it gets: it copies from the other's memory into its own. A copy that comes late, or after a
//! fault, then reads what nobody needs, and never writes over somebody else's.
//!
//! ```text
//! host of member m                              stream of member m
//! ----------------                              ------------------
//! enter (crate::streams)                        waits for the backend
//! offer: its operations, ready = event          ready
//! waits for the offers of all members
//! copies: from each member j that it reads of   waits for ready of j, copies
//! offer: read = event                           read
//! waits for all members to have come here
//! leave                                         waits for read of each j that reads of it, left = n
//! ```
//!
//! Setters and waiters:
//!
//! | event | recorded by | waited for by | says |
//! | --- | --- | --- | --- |
//! | ready | each member, once its backend has written what it sends | those who read of it | its memory may be read |
//! | read | each member, behind its copies | those that it has read of | their memory may be written again |
//!
//! - Every event is recorded before an offer with it is seen, and waited for only by those who have seen the offer:
//!   what sets is submitted before what waits, on every GPU. Nothing waits for a host that has not come yet, so a
//!   stream always comes to its end: there is nothing to abort.
//! - Memory that is sent belongs to the call until `left`, behind `read` of all readers; memory that is received
//!   belongs to its member alone.
//! - Events of a call are freed when all members have come to the call after the next, or when the member ends and all
//!   others have passed the call or have ended too: by then nobody gives a stream another wait for them.
//! - A member that does not come is a time-out by name on those that wait for it (`nccl/neighbours.rs`). After a
//!   fault each member waits for its stream's end and for the others' to come to theirs before it gives memory back.
//!
//! # What is not here
//! Copies between processes, whose pools cannot be mapped by others: see [`crate::symmetric`]. No machine with two GPUs
//! has run the copies.

pub mod api;
pub mod choice;
pub mod copies;
#[cfg(feature = "cuda")]
pub mod driver;
#[cfg(test)]
mod tests;
