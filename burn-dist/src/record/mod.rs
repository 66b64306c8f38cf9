//! (to come)

#[cfg(test)]
pub(crate) mod samples;
pub mod visit;
