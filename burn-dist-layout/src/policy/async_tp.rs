//! Products in chunks beside tensor-parallel transfers.

/// Overlap of a gather along a tensor-parallel axis and the products that need it, or of a product and its
/// reduce-scatter: in as many chunks as the axis has ranks, each computed while the next one is in flight.
///
/// It changes no value: the same products of the same rows, and sums in the same order. Only what stays inside nodes is
/// cut into chunks, and never along a dim over which a product sums. As text: `auto`, `on`, `off`.
///
/// # Source
/// Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models"
/// (ASPLOS 2023), section 5; PyTorch's async tensor parallelism over symmetric memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AsyncTp {
    /// Where the link of the axis is known and it takes less time so.
    #[default]
    Auto,
    /// Wherever it can be done.
    On,
    /// Nowhere.
    Off,
}

burn_dist_mesh::texts!(
    AsyncTp,
    "does not say whether products run beside the transfers that they wait for: use auto, on or off",
    Auto = "auto",
    On = "on",
    Off = "off",
);
