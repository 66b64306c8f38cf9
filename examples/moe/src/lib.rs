//! A mixture-of-experts decoder in plain Burn style, and the task that it is trained on.

pub mod model;
