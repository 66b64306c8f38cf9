//! Mixtures of experts. Shape letters: `b` batch, `s` sequence, `d` width; `g` groups of tokens, `t` tokens of a group,
//! `e` experts, `k` choices of a token, `p` pairs of a token and a choice, `c` slots of an expert in a group, `f` width
//! inside an expert.
//!
//! Experts are split over `ep`, or over the axes that a plan says ([`Plan::experts`](crate::Plan::experts)): tokens go
//! to their experts, and back, by two all-to-alls.

mod config;
mod layer;
mod routing;
#[cfg(test)]
mod tests;

pub use config::{Capacity, MixtureConfig};
pub use layer::{Experts, FeedForward, Mixed, Mixture};
pub use routing::{Choices, Routing};
