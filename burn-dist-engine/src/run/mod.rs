//! Execution: one worker thread per local rank runs the tasks of its plan; nothing here decides what a plan could have
//! decided.

mod account;
mod bridge;
mod bytes;
mod describe;
mod device_comm;
mod device_exchange;
mod fault;
mod fault_cell;
#[cfg_attr(
    not(any(test, feature = "cuda")),
    allow(dead_code, reason = "only the feature `cuda` has tensors on GPUs")
)]
mod gpus;
mod host;
mod host_store;
#[cfg(test)]
mod in_map;
mod job;
mod moved;
mod observe;
mod observer;
mod product;
pub mod random;
mod region;
mod runtime;
mod serve;
mod stats;
mod tensors;
mod terms;
mod threads;
mod ticket;
mod times;
mod trace;
mod turn;
mod worker;

pub use account::AccountedMemory;
pub(crate) use bridge::block_of;
pub use fault::Fault;
pub(crate) use job::{HostValue, RunArgs};
pub(crate) use region::run_alone;
pub(crate) use runtime::{Runtime, RuntimeParts};
pub use stats::RankStats;
pub(crate) use ticket::{LocalTicket, ReadTicket, StatsTicket, SyncTicket};
pub use times::{AxesTimes, RankTimes};
pub use trace::Trace;
