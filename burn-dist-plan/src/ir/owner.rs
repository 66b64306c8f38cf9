//! Owners of values: whose policy counts for them.

use std::sync::Arc;

use crate::layout::Policy;
use crate::mesh::{AxisIndex, MeshShape};
use crate::policy::ShardStrategy;

/// The owner of a value, as far as policies are concerned: a parameter, or a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    /// Its policy.
    pub policy: Arc<Policy>,
    /// True if it stays whole, whatever the policy says of shard axes.
    pub is_whole: bool,
}

impl Owner {
    /// Returns what a shard axis does with what belongs to it.
    pub(crate) fn strategy_over(&self, axis: AxisIndex) -> ShardStrategy {
        match self.is_whole {
            true => ShardStrategy::Replicate,
            false => self.policy.strategy_over(axis),
        }
    }

    /// Returns the axes over which what belongs to it rests.
    pub(crate) fn rest_axes(&self, mesh: &MeshShape) -> Vec<AxisIndex> {
        match self.is_whole {
            true => Vec::new(),
            false => self.policy.rest_axes(mesh),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shard axis does what the policy says, but never splits what stays whole.
    #[test]
    fn what_stays_whole_is_replicated() {
        let policy = Arc::new(Policy {
            strategy: ShardStrategy::Optim,
            ..Policy::default()
        });
        for (is_whole, expected) in [
            (false, ShardStrategy::Optim),
            (true, ShardStrategy::Replicate),
        ] {
            let policy = policy.clone();
            let owner = Owner { policy, is_whole };
            assert_eq!(owner.strategy_over(AxisIndex(0)), expected);
        }
    }
}
