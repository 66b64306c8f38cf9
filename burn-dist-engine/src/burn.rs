//! Names of Burn that differ by its line, one name for both; those of operations are in `burn-dist-ops`.
//!
//! | file | line |
//! | --- | --- |
//! | `v022` | the current one, 0.22 |
//! | `v021` | 0.21 |

#[cfg(burn_021)]
mod v021;
#[cfg(not(burn_021))]
mod v022;

#[cfg(burn_021)]
pub(crate) use v021::*;
#[cfg(not(burn_021))]
pub(crate) use v022::*;

pub(crate) use crate::ops::burn::{data, downcast, flat_between, with_bias};
