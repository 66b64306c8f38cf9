//! Meshes of burn-dist as devices of Burn 0.22.
//!
//! Burn's `Device` and `Tensor` reach a backend through burn-dispatch, which knows a closed list of them. Of the
//! crate named burn-ndarray it asks two names, and nothing else depends on it; so a program that patches it
//!
//! ```toml
//! [patch.crates-io]
//! burn-ndarray = { path = "burn-dist/carriers/burn-ndarray" }
//! ```
//!
//! has meshes behind these names. The real burn-ndarray, which Burn has deprecated, cannot be used in such a program.
//!
//! All of Burn above burn-dispatch is compiled after this crate and what it depends on: the door, and nothing of
//! planner, communication and kernels.

/// The backend of mesh devices. It records; which backend the ranks compute on is chosen when a mesh is built.
pub type NdArray = burn_dist_door::Dist<burn_dist_door::Registered>;

/// The device of a mesh.
pub type NdArrayDevice = burn_dist_door::MeshDevice;
