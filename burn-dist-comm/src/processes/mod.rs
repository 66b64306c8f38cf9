//! Ranks of one mesh in several processes.
//!
//! Ranks of one process meet in memory, as in [`local`](super::local). Once all of them have made a call, a thread of
//! its own, the *engine*, sends what the other processes need of their inputs, and waits for what theirs need of the
//! others'. Each process sends a block to each other process once, whatever the number of ranks there, and every
//! reduction runs in rank order: results are bitwise those of a single process.
//!
//! | file | idea |
//! | --- | --- |
//! | `carrier` | what carries messages: MPI, or channels between threads for tests |
//! | `mpi` | messages over MPI (feature `mpi`) |
//! | `message` | what is said about a block on its way |
//! | `peers` | who the other processes are |
//! | `landing` | gathers whose parts arrive in their places |
//! | `share` | which bytes of a collective a process needs |
//! | `windows` | whether all processes run the same program |
//! | `remote`, `call` | what a hub asks of the engine, and a call on its way |
//! | `traffic` | what goes on between the processes |
//! | `watch` | which processes have ended without a word |
//! | `engine` | who sees to it: a thread of its own, and whoever waits |
//! | `world` | the processes, and where ranks live |

mod call;
mod carrier;
mod engine;
mod landing;
mod message;
#[cfg(feature = "mpi")]
mod mpi;
mod peers;
mod remote;
mod share;
#[cfg(test)]
mod tests;
mod traffic;
mod watch;
mod windows;
mod world;

pub use carrier::{Carrier, Destination, Parcel, Placing};
pub use landing::Slot;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use peers::Peer;
pub(crate) use remote::{Opened, Remote};
pub(crate) use windows::Agreement;
pub use windows::{KindName, PartPrint, WindowPrint};
pub use world::{Votes, World};
