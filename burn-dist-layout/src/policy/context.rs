//! How attention gets what other ranks have of a sequence.

/// How attention gets the keys and values of a sequence that is split over ranks: context parallelism.
///
/// Text form: `auto`, `ring`, `gather`.
///
/// # Source
/// Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers" (arXiv:2310.01889), section 3; Llama 3
/// (arXiv:2407.21783), section 3.3.2, which gathers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextParallel {
    /// The one that takes less time, by the links and the work that are known.
    #[default]
    Auto,
    /// Blocks of keys and values go round the ranks, one in flight while another is attended to: a rank never has more
    /// than two.
    Ring,
    /// Keys and values are gathered before.
    Gather,
}

burn_dist_mesh::texts!(
    ContextParallel,
    "does not say how attention gets keys of other ranks: use auto, ring or gather",
    Auto = "auto",
    Ring = "ring",
    Gather = "gather",
);
