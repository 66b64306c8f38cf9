//! The operations of Burn, as the planner sees them.

pub(crate) mod dtype;
