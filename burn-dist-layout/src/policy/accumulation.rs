//! When accumulated gradients are reduced.

/// When the gradients of several backward passes that one step of the optimizer uses are reduced over data axes.
///
/// Gradients are added by whatever adds them, such as Burn's `GradientsAccumulator`; this says whether before or after
/// they are reduced. Results differ by rounding alone. As text: `window`, `step`, `microbatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// Gradients that are recorded between two reads are added and then reduced, once; those that live on beyond a read
    /// are reduced at it. So a step that reads nothing but its last loss reduces once, and one that reads every loss
    /// once for each. Gradients are reduced during the backward pass.
    #[default]
    PerWindow,
    /// Once a step (`no_sync` of PyTorch): gradients stay terms of their sum, whole on every rank, until the optimizer
    /// needs them. Least traffic, most memory.
    PerStep,
    /// Each backward pass, before anything is added: between passes every rank keeps its pieces alone (under FSDP).
    /// Most traffic, least memory. A parameter that two modules share is reduced once for each.
    PerMicrobatch,
}

burn_dist_mesh::texts!(
    Accumulation,
    "does not say when accumulated gradients are reduced: use window, step or microbatch",
    PerWindow = "window",
    PerStep = "step",
    PerMicrobatch = "microbatch",
);
