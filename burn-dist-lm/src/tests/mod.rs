//! Tests of the trainer with a decoder.

mod checkpoints;
mod lora;
mod options;
mod stages;
mod train;
mod validation;
