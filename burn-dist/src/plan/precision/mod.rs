//! Mixed precision: a window with 16-bit types where its units ask for them.
//!
//! | file | idea |
//! | --- | --- |
//! | `policy` | what a unit asks for |
//! | `class` | what each operation is computed in |
//! | `rewrite` | the window with its casts |

mod class;
mod policy;
mod rewrite;
#[cfg(test)]
mod tests;

pub use policy::{Float, Precision};
pub(super) use rewrite::precise;
