//! From a global operation to the local operations of one rank.
