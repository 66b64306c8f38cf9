//! Layers that are one operation: on a mesh a rule says what of them may be split.

mod attention;
mod mha;

pub use attention::{AttentionOptions, attention, grouped_attention};
pub use mha::{FusedAttention, MhaInput};
