//! The backend of programs of Burn 0.21, which names that of the ranks.

use burn_dist_door::Elements;
use burn_flex::Flex;
use burn_ir::BackendIr;

use super::Ranks;

/// A backend whose tensors live on a device mesh: records the program, partitions it, and runs each rank's part on `B`.
///
/// Nests inside `Autodiff`: `Autodiff<Dist<Flex>>`. `Autodiff` records gradients as ordinary operations, which `Dist`
/// then partitions with the rest; the other order would differentiate each rank's part on its own. Fusion would go
/// inside, so that what a rank runs between two collectives is fused; but over burn-fusion 0.21 some programs on
/// several ranks give wrong values, and the backends that this crate's features name go without it.
///
/// Quantized tensors are whole on every rank; what is computed from them is split again.
pub type Dist<B> = burn_dist_door::Dist<Ranks<B>>;

/// Programs whose ranks compute on Flex.
pub(crate) type OnFlex = Ranks<Flex>;

impl<B: BackendIr> Elements for Ranks<B> {
    type FloatElem = B::FloatElem;
    type IntElem = B::IntElem;
    type BoolElem = B::BoolElem;
}
