//! (to come)

pub mod execute;
