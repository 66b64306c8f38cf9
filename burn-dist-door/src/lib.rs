//! The door of [burn-dist](https://docs.rs/burn-dist) into Burn: the device of a mesh, the backend that records onto
//! it, and handles on its tensors.
//!
//! From Burn 0.22 on, a program's tensors name no backend, and a device leads to one that Burn's own dispatch knows. So
//! a crate that the dispatch depends on leads here, and all of burn-tensor, burn-core and burn-nn is compiled above
//! this crate. It is small for that, and knows nothing of planning, communication and kernels: what records is an
//! [`Inner::Recorder`], which the engine brings, or [registers](Registered) when the program runs.
//!
//! | file | idea |
//! | --- | --- |
//! | `device` | a mesh as a Burn device; what of it only the engine knows |
//! | `recorder` | what the engine brings |
//! | `registered` | a recorder that is known only when the program runs |
//! | `client`, `call` | a handle on the recorder, and its lock; a call of a function, recorded under it |
//! | `lock` | the lock under which calls are recorded |
//! | `queue` | how far a program may be ahead of the ranks |
//! | `exchange` | tensors that a thread takes out of Burn's records, and puts into them; from Burn 0.22 on, data of the host whose elements are on a mesh |
//! | `activation` | functions that the burn-ir of Burn 0.21 has no operation for |
//! | `backend` | Burn's functions: forwarded to burn-router, or recorded here |
//! | `burn` | names of Burn that differ by its line, and what its router asks for |
//! | `elements`, `data` | types of elements that a backend names; the parts of data of the host |
//!
//! Differences between lines of Burn are in `burn`, `elements`, `data` and `backend` alone; `cfg(burn_021)` is the line
//! before.

#[cfg(burn_021)]
mod activation;
mod backend;
mod burn;
mod call;
mod client;
mod data;
mod device;
mod elements;
mod exchange;
mod lock;
mod queue;
mod recorder;
mod registered;
#[cfg(test)]
mod tests;

#[cfg(burn_021)]
pub use activation::Activation;
pub use backend::{Dist, MeshTensor};
pub use burn::{HostBridge, MeshChannel, RouterClient};
pub use call::{Argument, Call};
pub use client::{MeshClient, Recording};
#[cfg(burn_021)]
pub use data::DataParts;
pub use device::{Mesh, MeshDevice};
pub use elements::Elements;
pub use exchange::{AnyTensor, Nonce, giving, taking};
#[cfg(not(burn_021))]
pub use exchange::{Resident, Residents, SMALLEST, data_of, taking_residents};
pub use queue::{InFlight, Queue};
pub use recorder::{Inner, Origin, Recorder, Ticket};
pub use registered::{Engine, Registered, register};
