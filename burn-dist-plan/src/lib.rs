//! What burn-dist decides before anything runs, as plain data.
//!
//! [`layout`] says who holds which part of a tensor, and plans the way from one answer to another.

#![forbid(unsafe_code)]

pub mod layout;
