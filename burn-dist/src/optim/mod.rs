//! Around Burn's optimizers: what looks at all parameters at once.
//!
//! Plain Burn operations, so everything here runs on any backend; on a mesh the planner keeps each rank to its own
//! part.

mod clip;
mod ema;
mod finite;
mod scaler;

pub use clip::{clip_grad_norm, clip_grad_value, grad_norm};
pub use ema::Ema;
pub use finite::{GradientCheck, NonFinite, NonFiniteGradient};
pub use scaler::LossScaler;
