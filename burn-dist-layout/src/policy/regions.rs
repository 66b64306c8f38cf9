//! Elementwise work of ranks: as few kernels, or one operation at a time.

/// How the elementwise work of ranks runs; all ranks of a mesh alike.
///
/// [`Regions::On`] and [`Regions::Off`] run the same functions: they give the same, bit by bit. As text: `on`, `off`,
/// `flex`.
///
/// # Source
/// PyTorch's regional compilation: what is equal is compiled once, under FSDP and TP alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Regions {
    /// Operations that stand next to each other are one kernel.
    #[default]
    On,
    /// Each operation is a kernel of its own.
    Off,
    /// Each operation is run by the inner backend, with its functions.
    Flex,
}

burn_dist_mesh::texts!(
    Regions,
    "does not say how elementwise work runs: use on, off or flex",
    On = "on",
    Off = "off",
    Flex = "flex",
);
