//! A line of Burn, as far as it walks over modules.

use super::ModuleTree;

/// A line of Burn: what a plan of it can be resolved for.
///
/// `M` is a module, `B` the backend that it names; lines whose modules name none have `()` there.
pub trait Line<M: ?Sized, B> {
    /// Returns the tree of a module. Nothing in it is initialised, moved or changed.
    fn tree(module: &M) -> ModuleTree;
}
