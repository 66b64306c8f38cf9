//! Loading: which bytes are needed for the elements that are asked for, and reading just these.

mod checkpoint;
mod file;
mod loading;
mod plan;
mod read;
mod report;
mod request;
#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use loading::{Loaded, Options};
pub use report::{KeyReport, Match, Mismatch};
pub use request::{Convert, Request};

pub(crate) use checkpoint::read_manifest;
pub(crate) use file::{check_header, open as open_file};
pub(crate) use plan::Job;
pub(crate) use read::{Reader, Scratch};
pub(crate) use report::Found;
