//! The common part of `before` and `after`: generated data and plain progress lines. Neither knows which backend
//! trains.

pub mod data;
pub mod progress;
