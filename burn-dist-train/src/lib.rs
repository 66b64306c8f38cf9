//! The run around a training loop: what torchtitan's and Burn's users expect of a training program, as small parts.
//!
//! Nothing here knows Burn, a mesh or a model; `burn_dist::train` adds what does.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "tokenizers")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokenizers")))]
pub mod chat;
pub mod config;
pub mod corpus;
pub mod files;
pub mod metrics;
pub mod rng;
pub mod run;
#[cfg(feature = "tokenizers")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokenizers")))]
pub mod tokenizer;
