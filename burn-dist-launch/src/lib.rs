//! How the processes of a program are started, and how they find each other.
//!
//! | module | idea |
//! | --- | --- |
//! | [`cluster_env`] | which of several processes this one is, from what its launcher says |
//! | [`doctor`] | what stopped a run, from the flight records of its processes |
//! | [`rendezvous`] | where processes meet before they have a transport: keys, barriers, and who has vanished (features `mpi`, `cuda`, `cli`) |
//! | [`run`] | the program `burn-dist run` (feature `cli`) |
//!
//! A mesh does all of this by itself; who else needs to know the other processes asks [`world()`]. A program that can
//! resume asks [`restarts`], and one that saves when it is asked to stop has a [`Stop`].

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
#[cfg(feature = "rendezvous")]
mod at_end;
#[cfg(all(feature = "cli", unix))]
pub mod cli;
pub mod cluster_env;
pub mod doctor;
#[cfg(all(feature = "cli", unix))]
mod folder;
#[cfg(feature = "rendezvous")]
pub mod join;
#[cfg(feature = "rendezvous")]
pub mod rendezvous;
mod restarts;
#[cfg(all(feature = "cli", unix))]
pub mod run;
#[cfg(feature = "rendezvous")]
mod seconds;
mod stop;
#[cfg(feature = "rendezvous")]
mod tcp;
mod world;

pub use cluster_env::{ClusterEnv, ClusterEnvError, Launcher, Master};
#[cfg(feature = "rendezvous")]
pub use join::join;
pub use restarts::{RESTART, restarts};
pub use stop::Stop;
pub use world::world;
