//! The part of [burn-dist](https://docs.rs/burn-dist) that its fronts for different lines of Burn share, without Burn.
//!
//! A front has what names Burn's tensors, modules and optimizers; what its users write and what that means for a mesh is
//! the same for all lines, and is here. Users have it through `burn_dist`.
//!
//! | folder | idea |
//! | --- | --- |
//! | `parallel` | a plan: what of a model is split over which axis, and how it is trained |
//! | `data` | which samples a batch has, and loading them ahead |
//! | `checkpoint` | work on several threads, and parameters in 8 bits |

pub mod checkpoint;
pub mod data;
pub mod parallel;

use burn_dist_mesh as mesh;
use burn_dist_plan as plan;
use burn_dist_plan::layout;
