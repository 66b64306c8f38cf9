//! The backend of programs: one for all meshes.

use burn_dist_door::Registered;

/// The backend of programs on device meshes: records the program, partitions it, and runs each rank's part on the backend
/// that was chosen when the mesh was built.
///
/// Autodiff goes around it and records gradients as ordinary operations, which are then partitioned with the rest.
///
/// Quantized tensors are whole on every rank; what is computed from them is split again.
pub type Dist = burn_dist_door::Dist<Registered>;

/// Programs whose ranks compute on Flex.
pub(crate) type OnFlex = Registered;
