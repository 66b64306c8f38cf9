//! How to train on a mesh: what users choose, each with a text form.
//!
//! A [`Policy`] holds all of it, resolved for one unit; it travels with the parameters. A [`UnitPolicy`] is what a user
//! says of a model or of a unit. A policy changes speed and memory; of the values, only [`Precision`] and
//! [`Float8`] change any.

/// The text form of a choice: one name for each variant.
macro_rules! texts {
    ($type:ident, $problem:literal, $($variant:ident = $name:literal),+ $(,)?) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }

        impl FromStr for $type {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, TextError> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(TextError::new(text, $problem)),
                }
            }
        }
    };
}

mod accumulation;
mod async_tp;
mod checkpoint;
mod context;
mod float8;
mod offload;
mod pattern;
mod precision;
mod regions;
mod reshard;
mod resolved;
mod strategy;
mod unit;

pub use accumulation::Accumulation;
pub use async_tp::AsyncTp;
pub use checkpoint::ActivationCheckpoint;
pub use context::ContextParallel;
pub use float8::{Float8, Fp8, Scaling, Scope};
pub use offload::Offload;
pub use pattern::{Pattern, PatternSegment};
pub use precision::{Float, Precision};
pub use regions::Regions;
pub use reshard::Reshard;
pub use resolved::Policy;
pub use strategy::ShardStrategy;
pub use unit::UnitPolicy;
