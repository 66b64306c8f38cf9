//! (to come)

pub mod execute;
pub mod random;
