//! Layers that are one operation: on a mesh a rule says what of them may be split.

mod attention;
mod mha;

pub use attention::{
    AttentionBackend, AttentionGradients, AttentionInputs, AttentionMade, AttentionOptions,
    Dropped, Origin, Places, Scores, attention, grouped_attention,
};
pub use mha::{FusedAttention, MhaInput};
