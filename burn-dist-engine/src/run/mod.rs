//! Execution: one worker thread per local rank runs the tasks of its plan; nothing here decides what a plan could have
//! decided.

mod account;
mod bridge;
mod bytes;
mod describe;
mod device_comm;
mod device_exchange;
mod fault;
#[cfg_attr(
    not(any(test, feature = "cuda")),
    allow(dead_code, reason = "only the feature `cuda` has tensors on GPUs")
)]
mod gpus;
mod host;
mod host_store;
mod observe;
pub mod random;
mod region;
mod runtime;
mod serve;
mod tensors;
mod terms;
mod ticket;
mod times;
mod trace;
mod turn;
mod worker;

pub use account::AccountedMemory;
pub(crate) use bridge::block_of;
pub use fault::Fault;
pub use runtime::RankStats;
pub(crate) use runtime::{HostValue, RunArgs, Runtime, RuntimeParts, StatsTicket};
pub(crate) use ticket::{LocalTicket, ReadTicket, SyncTicket};
pub use times::{AxesTimes, RankTimes};
pub use trace::Trace;
