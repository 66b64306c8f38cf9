//! Nothing: see `runtime.rs`.
