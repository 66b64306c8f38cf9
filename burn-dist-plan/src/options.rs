//! Options of a plan, on which it depends besides the window: the mesh's hardware, and how it is debugged. How to train
//! is the [`Policy`](crate::Policy) of each parameter, which is part of the window.

use std::fmt;
use std::ops::Range;

use crate::cost::DeviceCosts;
use crate::ir::Float8Store;
use crate::ir::region::{Formula, Numbering};
use crate::mesh::{BoolStore, Links, Rank, Topology};
use crate::policy::Float;
use crate::policy::Regions;
use crate::storage::Storage;

/// The options that a plan depends on besides the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// True if values that come from nothing wait for their use.
    pub defer: bool,
    /// True if dim 0 of data, and of what is made of it, is split over the data axes where nothing decides.
    pub split_batches: bool,
    /// Seed of fuzz layouts, if on.
    pub fuzz: Option<u64>,
    /// Partial values smaller than this are all-reduced rather than reduce-scattered: latency outweighs bytes. Not
    /// gradients that the window's optimizer uses.
    pub scatter_bytes_min: usize,
    /// Float types that the inner backend does not compute in.
    pub floats_missing: Vec<Float>,
    /// How the inner backend stores values of float8.
    pub float8_store: Float8Store,
    /// True if other processes have ranks too: what is read is gathered, for each of them to see.
    pub everyone_reads: bool,
    /// Which ranks are on one node.
    pub topology: Topology,
    /// Links inside and between nodes, if known: where they say that it takes less time, collectives over several nodes
    /// are composed.
    pub links: Links,
    /// The costs of the devices that ranks run on, if known: they decide what may run beside a transfer.
    pub device_costs: Option<DeviceCosts>,
    /// Collectives over several nodes are composed from this many bytes on, whatever the links.
    pub hierarchy_bytes_min: Option<u64>,
    /// How many microbatches a step is to have that is planned for the [clock](crate::clock) alone: in a window of
    /// fewer one is repeated. Such a plan cannot be run.
    pub microbatches: Option<u32>,
    /// The ranks to plan for.
    pub ranks: Vec<Rank>,
    /// How the inner backend stores bools.
    pub bool_store: BoolStore,
    /// How it stores tensors.
    pub storage: Storage,
    /// How the elementwise work of a rank runs.
    pub regions: Regions,
    /// The kernels that regions run by.
    pub region_kernels: RegionKernels,
    /// Set if plans are to be explained: they then also tell how much memory their regions save.
    pub is_explained: bool,
}

/// The formulas that the kernels of a rank compute: operations with other formulas are left to the inner backend.
#[derive(Clone, Copy)]
pub struct RegionKernels {
    /// Their name, for messages.
    pub name: &'static str,
    /// Returns whether they compute a formula, which draws nothing; `None` if they compute every one.
    pub compute: Option<fn(&Formula) -> bool>,
    /// The random numbers that they draw.
    pub draws: Draws,
}

/// The random numbers that kernels of regions draw; tasks draw others before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    /// None.
    None,
    /// Numbers of parts that have a [`Numbering`], below 2^32.
    Numbered,
    /// All.
    All,
}

impl Draws {
    /// Returns whether the elements of a part of this shape are drawn, whose numbers are in `runs`.
    pub(crate) fn has(self, shape: &[usize], runs: &[Range<usize>]) -> bool {
        match self {
            Self::None => false,
            Self::Numbered => Numbering::new(shape, runs)
                .is_some_and(|numbering| u32::try_from(numbering.last(shape)).is_ok()),
            Self::All => true,
        }
    }
}

impl RegionKernels {
    /// Kernels for every formula that there is.
    pub const ALL: Self = Self {
        name: "all",
        compute: None,
        draws: Draws::All,
    };
}

impl PartialEq for RegionKernels {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for RegionKernels {}

impl fmt::Debug for RegionKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_by_number_are_of_32_bits() {
        let has = |shape: &[usize], runs: &[Range<usize>]| {
            let [none, numbered, all] = [Draws::None, Draws::Numbered, Draws::All];
            assert!(!none.has(shape, runs) && all.has(shape, runs));
            numbered.has(shape, runs)
        };
        let end = 1 << 32;
        assert!(has(&[2, 3], std::slice::from_ref(&(end - 6..end))));
        assert!(!has(&[2, 3], std::slice::from_ref(&(end - 5..end + 1))));
        // Every other pair, as one dim.
        assert!(has(&[2, 2], &[0..2, 4..6]));
        assert!(!has(&[4], &[0..2, 4..6]));
    }
}
