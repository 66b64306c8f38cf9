//! Memory of a rank that runs a schedule.

use super::Kind;

/// The bytes that a stage keeps of one microbatch.
///
/// A forward leaves `activation` behind. The input gradient gives it up, and leaves `saved_for_weight`, the part of it
/// that the weight gradient reads, and `gradient_for_weight`, the gradients of results that it reads; the weight
/// gradient gives those up. A whole backward gives up `activation`.
///
/// Counted between actions: what one gives up is held to its end, what it leaves behind is held from its end, but for
/// `activation`, which is held from the start of the forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bytes {
    /// The bytes that a forward keeps for the backward.
    pub activation: u64,
    /// The part of it that the weight gradient needs.
    pub saved_for_weight: u64,
    /// The bytes that the input gradient keeps for the weight gradient besides.
    pub gradient_for_weight: u64,
}

impl Bytes {
    /// Counts microbatches of a stage from their forward to their input gradient.
    pub const UNTIL_BACKWARD: Self = Self {
        activation: 1,
        saved_for_weight: 0,
        gradient_for_weight: 0,
    };
    /// Counts microbatches of a stage from their forward to their weight gradient.
    pub const UNTIL_WEIGHT: Self = Self {
        activation: 1,
        saved_for_weight: 1,
        gradient_for_weight: 0,
    };

    /// Returns what is held after an action if `held` was before it.
    pub(super) fn after(self, kind: Kind, held: u64) -> u64 {
        let split = self.saved_for_weight + self.gradient_for_weight;
        // A rank gives up only what an earlier action of it has left: a valid order never gets below zero.
        match kind {
            Kind::Forward => held + self.activation,
            Kind::Backward => held + split - self.activation,
            Kind::Weight => held - split,
            Kind::Full => held - self.activation,
        }
    }
}
