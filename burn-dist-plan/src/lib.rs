//! What burn-dist decides before anything runs, as plain data.
//!
//! | module | idea |
//! | --- | --- |
//! | [`layout`] | who holds which part of a tensor, and the way from one answer to another |
//! | [`policy`] | how to train on a mesh: what users choose |
//! | [`rule`] | what of an operation may be split, and what that leaves |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod layout;
pub mod policy;
pub mod rule;
