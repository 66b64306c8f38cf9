//! The model. Shape letters: `b` batch, `s` sequence, `d` width, `h` heads, `v` vocabulary.

mod block;
mod config;
mod decoder;

pub use block::{Attention, Block};
pub use config::Config;
pub use decoder::{Decoder, Losses};
