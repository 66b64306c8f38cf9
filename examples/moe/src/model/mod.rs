//! The model. Shape letters: `b` batch, `s` sequence, `d` width, `h` heads, `v` vocabulary; `g` groups of tokens, `t`
//! tokens of a group, `e` experts, `k` choices of a token, `p` pairs of a token and a choice, `c` slots of an expert in a
//! group, `f` width inside an expert.

mod block;
mod config;
mod decoder;
mod layer;
mod routing;

pub use block::{Attention, Block, FeedForward};
pub use config::{Capacity, Config};
pub use decoder::{Decoder, Losses};
pub use layer::{Experts, Mixed, Mixture};
pub use routing::{Choices, Routing};
