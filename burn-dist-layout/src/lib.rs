//! Layouts: who holds which part of a tensor, as plain data, how to get from one to another, and what users choose.
//!
//! | module | idea |
//! | --- | --- |
//! | this one | [`Layout`]: blocks, rest, reshapes, rows of a batch, the text form |
//! | [`redistribute`] | the collectives between two layouts |
//! | [`cost`] | how long moves and operations take, in nanoseconds |
//! | [`policy`] | how to train on a mesh: what users choose |
//! | [`bytes`] | amounts for people |
//!
//! A [`Layout`] gives every tensor dim a list of mesh axes that split it, as Shardy does, instead of every mesh axis a
//! placement, as DTensor does: a weight split by tensor parallelism and then by FSDP along the same dim is just `[{tp,
//! fsdp}, -]`. A dim may be a product of factors with their own axes, so that reshapes keep every shard in place. Any
//! size splits over any axis: chunks are `ceil(n / k)`, and the last ones are shorter or empty.
//!
//! [`Layout::elements`] defines what a layout means; [`redistribute`] plans the collectives between two layouts.
//!
//! Left out on purpose: pipeline stages (a stage is a sub-mesh with layouts of its own), and any knowledge of dtypes or
//! operations.

#![forbid(unsafe_code)]

mod build;
pub mod bytes;
pub mod cost;
mod error;
#[cfg(test)]
mod laws;
mod local;
pub mod policy;
pub mod redistribute;
mod reshape;
mod rest;
mod rows;
mod runs;
mod simplify;
mod text;
mod types;
#[cfg(test)]
mod worlds;

pub use error::LayoutError;
pub use local::{Spaced, chunk};
pub use policy::unit::Policy;
pub use rows::{Rows, by_rows, of_batch, repeated};
pub use runs::runs;
pub use simplify::simplify;
pub use text::LayoutText;
/// The parts of a [`LayoutText`], for code that is generated.
#[doc(hidden)]
pub mod written {
    pub use crate::text::{
        AxisParts, AxisText, DimText, FactorParts, FactorText, LayoutParts, PartialText,
    };
}

pub use types::{DimLayout, Factor, Layout, Partial};
