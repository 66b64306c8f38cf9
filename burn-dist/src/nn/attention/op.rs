//! Attention and its backward, as operations on a mesh.

use burn_backend::tensor::FloatTensor;
use burn_dist_kernels::attention::{Origin, Places};
use burn_dist_plan::layout::Spaced;
use burn_dist_plan::op::LocalView;
use burn_dist_plan::rule::{RuleBuilder, Shapes};
use burn_ir::BackendIr;

use super::types::{AttentionInputs, Dropped, KeyBlock, Scores};
use crate::ops::custom::CustomTensor;

/// Attention.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct Attention {
    pub(super) scores: Scores,
    pub(super) has_mask: bool,
    pub(super) has_bias: bool,
    /// The keys, if they are a block of all.
    pub(super) block: Option<KeyBlock>,
}

/// Its gradients, of its inputs, its results and the gradient of the first of them.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct AttentionBackward {
    pub(super) forward: Attention,
    pub(super) with_bias: bool,
    /// True if it only adds up gradients of keys and values: two of each.
    pub(super) adds: bool,
}

impl Attention {
    pub(super) fn num_inputs(&self) -> usize {
        3 + self.num_pairs() + usize::from(self.has_seed())
    }

    /// Inputs that have an element for each query and key.
    pub(super) fn num_pairs(&self) -> usize {
        usize::from(self.has_mask) + usize::from(self.has_bias)
    }

    pub(super) fn has_seed(&self) -> bool {
        self.scores.dropout.is_some()
    }

    /// Batch `b`, heads `g` with groups `n`, queries `q`, keys `k`.
    pub(super) fn inputs_notation(&self) -> String {
        let pairs = ", b g n q -".repeat(self.num_pairs());
        let seed = if self.has_seed() { ", -" } else { "" };
        format!("b g n q -, b g k -, b g k -{pairs}{seed}")
    }

    /// Keys that are split as queries are go round.
    pub(super) fn rule(&self, shapes: &Shapes<'_>, notation: &str) -> RuleBuilder {
        let rule = RuleBuilder::notation(shapes, notation).broadcast();
        let rule = rule.spaced('q').along('k', 'q');
        match self.has_seed() {
            // A weight is dropped by where it is.
            true => rule.spaced('b').spaced('g').spaced('n'),
            false => rule,
        }
    }

    /// Returns the attention of the queries that a rank holds.
    pub(super) fn of_rank(&self, view: &LocalView<'_>) -> Self {
        let mut here = self.clone();
        if self.scores.depend_on_positions() {
            let queries = view.spaced_on(view.rank, 0, 3);
            here.scores.offset += (queries.start * self.scores.step) as isize;
            here.scores.step *= queries.step;
        }
        here.scores.dropout = self.dropped(view, view.spaced_on(view.rank, 1, 2));
        here
    }

    /// Returns which weights of a rank's queries are dropped, with some keys.
    pub(super) fn dropped(&self, view: &LocalView<'_>, keys: Spaced) -> Option<Dropped> {
        let dropped = self.scores.dropout?;
        let places = |of: Spaced| Places {
            start: of.start,
            step: of.step,
        };
        let of_queries = |dim: usize| places(view.spaced_on(view.rank, 0, dim));
        Some(Dropped {
            origin: Origin {
                batch: of_queries(0),
                heads: of_queries(1),
                group: of_queries(2),
                queries: of_queries(3),
                keys: places(keys),
                ..dropped.origin
            },
            ..dropped
        })
    }

    /// The flops of as many products of queries and the keys that they see.
    pub(super) fn flops(&self, shapes: &Shapes<'_>, products: f64) -> Option<f64> {
        let [q, _, v, ..] = shapes.inputs[..] else {
            return None;
        };
        let [batch, groups, group, queries, width] = q[..] else {
            return None;
        };
        let [.., keys, value_width] = v[..] else {
            return None;
        };
        let pairs = self.scores.visible().pairs(queries, keys) as f64;
        Some(products * (batch * groups * group) as f64 * pairs * (width + value_width) as f64)
    }

    pub(super) fn inputs<B: BackendIr>(&self, tensors: &mut Tensors<B>) -> AttentionInputs<B> {
        AttentionInputs {
            q: tensors.float(),
            k: tensors.float(),
            v: tensors.float(),
            mask: self.has_mask.then(|| match tensors.next() {
                CustomTensor::Bool(mask) => mask,
                _ => unreachable!("a mask is recorded as bools"),
            }),
            bias: self.has_bias.then(|| tensors.float()),
            seed: self.has_seed().then(|| match tensors.next() {
                CustomTensor::Int(seed) => seed,
                _ => unreachable!("a seed is recorded as ints"),
            }),
        }
    }
}

/// Inputs, in order.
pub(super) struct Tensors<B: BackendIr>(pub(super) std::vec::IntoIter<CustomTensor<B>>);

impl<B: BackendIr> Tensors<B> {
    pub(super) fn next(&mut self) -> CustomTensor<B> {
        self.0
            .next()
            .expect("an operation has the inputs it was recorded with")
    }

    pub(super) fn float(&mut self) -> FloatTensor<B> {
        self.next().into_float()
    }
}
