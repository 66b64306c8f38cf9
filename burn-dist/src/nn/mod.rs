//! Layers: attention as one operation, of which a rule says on a mesh what may be split; mixtures of experts.

mod attention;
mod mha;
pub mod mixture;

pub use attention::{AttentionOptions, attention, grouped_attention};
pub use mha::{FusedAttention, MhaInput};
