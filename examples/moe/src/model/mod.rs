//! The model. Shape letters: `b` batch, `s` sequence, `d` width, `h` heads, `v` vocabulary; `g` groups of tokens, `t`
//! tokens of a group, `e` experts, `k` choices of a token, `c` slots of an expert in a group, `f` width inside an expert.

mod routing;

pub use routing::{Choices, Routing};
