//! What burn-dist promises, through its public API, on ranks that are threads.
//!
//! One program: each of its own would compile Burn's generic code once more. What is built with other features too, or
//! needs MPI or a GPU, is in programs of its own beside this one.

mod batches;
mod chaos;
mod checkpoint;
mod faults;
mod items;
mod layouts;
mod loops;
mod memory;
mod mesh;
mod misuse;
mod nodes;
mod offload;
mod ops;
mod partial;
mod planned;
mod precision;
mod recording;
mod rows;
mod sharding;
mod timeline;
mod training;
mod transformer;
mod weights;
