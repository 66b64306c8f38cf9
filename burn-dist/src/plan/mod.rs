//! Planning: from a recorded window to tasks per rank, as pure data.

pub mod localize;
