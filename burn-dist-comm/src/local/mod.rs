//! Ranks that are threads of one process: how their calls find each other, and how they wait.
//!
//! Inputs are read where they are, and members with equal results share one output, so an all-gather costs one copy of
//! the gathered bytes for the whole process, not one per rank. Small calls are done by the last member to arrive; large
//! ones are cut into units that all waiting members claim. It is stricter than NCCL: calls that do not match are an
//! error that names both, and so are ranks that are late or have left.
//!
//! Where ranks of a group live in other processes, this is above [`processes`](super::processes): it hands calls over
//! that all ranks here have made, and waits for their outcome.
//!
//! # Faults
//! The first error of any rank becomes the fault of the hub: every waiting and every later call of every rank returns
//! it at once.

mod channel;
mod connect;
mod endpoint;
mod flight;
mod hub;
mod options;
mod pending;
mod record_file;
#[cfg(test)]
mod tests;
mod wire;

pub use endpoint::LocalComm;
pub use hub::{Agreed, LocalHub};
pub use options::{Chaos, FlightOptions, LocalOptions};
pub use wire::Network;
