//! Names of Burn that differ by its line, one name for both.
//!
//! | file | line |
//! | --- | --- |
//! | `v022` | the current one, 0.22 |
//! | `v021` | 0.21 |
//!
//! Which operations a line has is in [`table`](crate::ops), and whole families of one line are files of their
//! own; no other file tells lines apart.

use std::any::Any;

#[cfg(burn_021)]
mod v021;
#[cfg(not(burn_021))]
mod v022;

#[cfg(burn_021)]
pub(crate) use v021::*;
#[cfg(not(burn_021))]
pub(crate) use v022::*;

/// Moves `value` out as a `T`, if that is what it is.
pub(crate) fn downcast<S: 'static, T: 'static>(value: S) -> Result<T, S> {
    let mut value = Some(value);
    match (&mut value as &mut dyn Any).downcast_mut::<Option<T>>() {
        Some(found) => Ok(found.take().expect("put in above")),
        None => Err(value.take().expect("put in above, not taken")),
    }
}
