//! Tests of the trainer with a decoder.

mod checkpoints;
mod stages;
mod train;
mod validation;
