//! How much the engine of a process keeps.

/// How much the engine of a process keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of inputs that came before their call was made here, for each mesh. More is `CommError::TooFarAhead`.
    pub early_bytes_max: usize,
    /// Bytes of what came for meshes that were not made here. More is `CommError::Connection`, which names who sent.
    pub unknown_bytes_max: usize,
    /// Bytes that have not left this process: while there are more, ranks that start calls wait, and then fail with
    /// `CommError::NotSent`.
    pub unsent_bytes_max: usize,
    /// Calls and windows that nobody has seen to: the same.
    pub commands_max: usize,
}

/// A process may be ahead of another one by the collectives of a step of a large model, and a program makes its meshes
/// before it moves much. What is asked of the engine is seen to at once, but for what comes while it copies.
pub(crate) const LIMITS: Limits = Limits {
    early_bytes_max: 8 << 30,
    unknown_bytes_max: 1 << 30,
    unsent_bytes_max: 1 << 30,
    commands_max: 1 << 16,
};
