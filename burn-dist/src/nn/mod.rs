//! Layers: attention as one operation, of which a rule says on a mesh what may be split; mixtures of experts;
//! low-rank adapters beside linear layers.

mod attention;
#[cfg(feature = "train")]
pub(crate) mod int8;
mod lora;
mod mha;
pub mod mixture;

pub use attention::{AttentionOptions, attention, grouped_attention};
pub use lora::{LateLora, adapted_linear, num_trained};
pub use mha::{FusedAttention, MhaInput};
