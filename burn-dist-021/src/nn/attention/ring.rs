//! Attention of queries to keys that pass from rank to rank: each rank attends to the block at hand while the next one
//! is being sent.
//!
//! # Source
//! Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers" (arXiv:2310.01889), section 3; Brandon et al.,
//! "Striped Attention" (arXiv:2311.09431), section 3, for queries and keys in stripes; Dao, "FlashAttention-2"
//! (arXiv:2307.08691), section 3.1, for results put together by their log-sum-exp.

use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, TensorMetadata};
use burn_core::tensor::{Bool, Slice, Tensor};
use burn_dist_plan::layout::Spaced;
use burn_ir::BackendIr;

use super::AttentionBackend;
use super::blocks::{float, tensor};
use super::op::{Attention, AttentionBackward, Tensors};
use super::types::{
    AttentionGradients, AttentionInputs, AttentionMade, KeyBlock, Scores, statistics_of,
};
use crate::ops::custom::{Block, CustomOp, CustomSteps, Part};

impl Scores {
    /// Returns the scores of some of the queries with some of the keys, at equal distances: of these, query i and key j
    /// are numbered from zero.
    fn of_block(self, queries: Spaced, keys: Spaced) -> Self {
        if !self.depend_on_positions() {
            return self;
        }
        let step = keys.step as isize;
        assert_eq!(queries.step * self.step, keys.step);
        // How far the first query lies behind the first key.
        let behind = self.offset + (queries.start * self.step) as isize - keys.start as isize;
        let last_seen = behind.div_euclid(step);
        let first_seen = self.window.map(|window| {
            let hidden = behind - window as isize;
            hidden.div_euclid(step) + 1
        });
        let (offset, window) = match (self.causal, first_seen) {
            (true, first) => (
                last_seen,
                first.map(|first| (last_seen + 1 - first) as usize),
            ),
            (false, Some(first)) => (first, Some(1)),
            (false, None) => (0, None),
        };
        Self {
            offset,
            window,
            step: 1,
            ..self
        }
    }
}

/// Returns the keys that come to a rank, in order.
fn coming<O: CustomOp>(steps: &CustomSteps<'_, O>, block: &Block) -> Vec<Spaced> {
    let view = steps.view();
    let homes = block.homes(view).into_iter();
    homes.map(|home| view.spaced_on(home, 1, 2)).collect()
}

/// Returns which block this is of those that come to a rank; `None` if there is nothing to attend to.
fn block_of(all: &[Spaced], come: usize, has_queries: bool) -> Option<KeyBlock> {
    let is_empty = |keys: &Spaced| keys.len == 0;
    (has_queries && !is_empty(&all[come])).then(|| KeyBlock {
        keys: all[come],
        first: all[..come].iter().all(is_empty),
        last: all[come + 1..].iter().all(is_empty),
    })
}

/// Adds the steps of a rank whose keys and values go round.
///
/// Rank r attends to its own keys, then to those of rank r - 1, and so on.
pub(super) fn forward(op: &Attention, steps: &mut CustomSteps<'_, Attention>) -> bool {
    let (Some(mut k), Some(mut v)) = (steps.block(1, 2), steps.block(2, 2)) else {
        return false;
    };
    let view = steps.view();
    let queries = view.spaced_on(view.rank, 0, 3);
    let (out, log_sum_exp) = (steps.output(0), steps.output(1));
    let has_queries = !log_sum_exp.shape().contains(&0);
    let q = steps.input(0);
    let pairs: Vec<Part> = (3..op.num_inputs())
        .map(|index| steps.input(index))
        .collect();
    let all = coming(steps, &k);
    let mut so_far: Option<[Part; 2]> = None;
    for come in 0..all.len() {
        let next = (come + 1 < all.len()).then(|| steps.pass(&[&k, &v]));
        if let Some(block) = block_of(&all, come, has_queries) {
            let made = match block.last {
                true => [out.clone(), log_sum_exp.clone()],
                false => [&out, &log_sum_exp]
                    .map(|part| steps.temp(part.shape().to_vec(), log_sum_exp.dtype())),
            };
            let part = Attention {
                scores: Scores {
                    dropout: op.dropped(view, block.keys),
                    ..op.scores.of_block(queries, block.keys)
                },
                block: Some(block),
                ..op.clone()
            };
            let inputs = [&q, &k.part, &v.part].into_iter().chain(&pairs);
            let inputs: Vec<&Part> = inputs.chain(so_far.iter().flatten()).collect();
            steps.run(part, &inputs, &made.each_ref());
            so_far = Some(made);
        }
        if let Some(next) = next {
            [k, v] = arrived(steps.arrive(next));
        }
    }
    if so_far.is_none() {
        [out, log_sum_exp].iter().for_each(|part| steps.zeros(part));
    }
    true
}

/// Adds the steps of a rank whose keys, values and their gradients go round.
///
/// A rank keeps the gradients that its own queries make of its own keys. Those that others make begin at the next rank,
/// go round behind the keys, and come home last: each rank adds its own while the keys go on.
pub(super) fn backward(
    op: &AttentionBackward,
    steps: &mut CustomSteps<'_, AttentionBackward>,
) -> bool {
    let (Some(mut k), Some(mut v)) = (steps.block(1, 2), steps.block(2, 2)) else {
        return false;
    };
    let view = steps.view();
    let queries = view.spaced_on(view.rank, 0, 3);
    let num_inputs = op.forward.num_inputs();
    let q = steps.input(0);
    let pairs: Vec<Part> = (3..num_inputs + 3)
        .map(|index| steps.input(index))
        .collect();
    let wide = steps.input(num_inputs + 1).dtype();
    let made = [0, 1, 2].map(|index| steps.output(index));
    let has_queries = !made[0].shape().contains(&0);
    let all = coming(steps, &k);
    let mut of_queries: Option<Part> = None;
    let (mut own, mut passing) = (None, None);
    for come in 0..all.len() {
        let next = (come + 1 < all.len()).then(|| steps.pass(&[&k, &v]));
        let temp = |steps: &mut CustomSteps<'_, _>, like: &Part| {
            steps.temp(like.shape().to_vec(), like.dtype())
        };
        let here = [&k.part, &v.part].map(|part| temp(steps, part));
        match block_of(&all, come, has_queries) {
            Some(block) => {
                let gradient = match block.last {
                    true => made[0].clone(),
                    false => steps.temp(q.shape().to_vec(), wide),
                };
                let part = AttentionBackward {
                    forward: Attention {
                        scores: Scores {
                            dropout: op.forward.dropped(view, block.keys),
                            ..op.forward.scores.of_block(queries, block.keys)
                        },
                        block: Some(block),
                        ..op.forward.clone()
                    },
                    ..op.clone()
                };
                let inputs = [&q, &k.part, &v.part].into_iter().chain(&pairs);
                let inputs: Vec<&Part> = inputs.chain(&of_queries).collect();
                steps.run(part, &inputs, &[&gradient, &here[0], &here[1]]);
                of_queries = Some(gradient);
            }
            None => here.iter().for_each(|part| steps.zeros(part)),
        }
        if come == 0 {
            own = Some(here);
        } else {
            let sums = match passing.take() {
                Some(passing) => {
                    let behind = arrived(steps.arrive(passing)).map(|block| block.part);
                    let sums = [0, 1].map(|index| temp(steps, &here[index]));
                    add(op, steps, [&here, &behind], &sums);
                    sums
                }
                None => here,
            };
            let [of_keys, of_values] = sums;
            passing = Some(steps.pass(&[&k.with(of_keys), &v.with(of_values)]));
        }
        if let Some(next) = next {
            [k, v] = arrived(steps.arrive(next));
        }
    }
    if let (Some(own), Some(passing)) = (own, passing) {
        let behind = arrived(steps.arrive(passing)).map(|block| block.part);
        add(
            op,
            steps,
            [&own, &behind],
            &[made[1].clone(), made[2].clone()],
        );
    }
    if of_queries.is_none() {
        steps.zeros(&made[0]);
    }
    true
}

fn arrived(blocks: Vec<Block>) -> [Block; 2] {
    blocks.try_into().expect("two were passed on")
}

/// Adds up gradients of keys, and of values.
fn add(
    op: &AttentionBackward,
    steps: &mut CustomSteps<'_, AttentionBackward>,
    [a, b]: [&[Part; 2]; 2],
    sums: &[Part; 2],
) {
    if sums.iter().all(|part| part.shape().contains(&0)) {
        return sums.iter().for_each(|part| steps.zeros(part));
    }
    let adds = AttentionBackward {
        adds: true,
        ..op.clone()
    };
    let [a, b] = [a, b].map(<[Part; 2]>::each_ref);
    steps.run(adds, &[a, b].concat(), &sums.each_ref());
}

/// Returns the sums of the first two and the last two of four tensors, in turn.
pub(super) fn sums<B: AttentionBackend + BackendIr>(
    tensors: &mut Tensors<B>,
) -> [FloatTensor<B>; 2] {
    let [a, b, c, d] = [(); 4].map(|()| tensors.float());
    [B::float_add(a, c), B::float_add(b, d)]
}

/// Returns the columns of a block of what there is of every pair of a query and a key.
fn columns(keys: Spaced) -> [Slice; 5] {
    let end = keys.start + (keys.len - 1) * keys.step + 1;
    let columns = Slice::new(keys.start as isize, Some(end as isize), keys.step as isize);
    [
        Slice::full(),
        Slice::full(),
        Slice::full(),
        Slice::full(),
        columns,
    ]
}

/// Returns the inputs with the columns of a block.
fn of_block<B: Backend>(inputs: AttentionInputs<B>, keys: Spaced) -> AttentionInputs<B> {
    let stretches = |size: usize| size == 1;
    AttentionInputs {
        mask: inputs.mask.map(|mask| {
            let mask = Tensor::<B, 5, Bool>::from_primitive(mask);
            let mask = match stretches(mask.dims()[4]) {
                true => mask,
                false => mask.slice(columns(keys)),
            };
            mask.into_primitive()
        }),
        bias: inputs.bias.map(|bias| {
            let bias = tensor::<B, 5>(bias);
            float(match stretches(bias.dims()[4]) {
                true => bias,
                false => bias.slice(columns(keys)),
            })
        }),
        ..inputs
    }
}

/// Attends to a block, and puts that together with what was attended to before, which are the next tensors.
pub(super) fn attend<B: AttentionBackend + BackendIr>(
    inputs: AttentionInputs<B>,
    scores: Scores,
    block: KeyBlock,
    so_far: &mut Tensors<B>,
) -> AttentionMade<B> {
    let dtype = inputs.q.dtype();
    let wide = statistics_of::<B>(&inputs.q);
    let made = B::attention_forward(of_block(inputs, block.keys), scores);
    let mut out = tensor::<B, 5>(made.out).cast(wide);
    let mut log_sum_exp = tensor::<B, 4>(made.log_sum_exp);
    if !block.first {
        let before = (tensor(so_far.float()), tensor(so_far.float()));
        (out, log_sum_exp) = together(before, (out, log_sum_exp));
    }
    AttentionMade {
        out: float(if block.last { out.cast(dtype) } else { out }),
        log_sum_exp: float(log_sum_exp),
    }
}

/// Returns the result over two sets of keys, of the results over each and the logarithms of their sums.
fn together<B: Backend>(
    (out_a, sum_a): (Tensor<B, 5>, Tensor<B, 4>),
    (out_b, sum_b): (Tensor<B, 5>, Tensor<B, 4>),
) -> (Tensor<B, 5>, Tensor<B, 4>) {
    let largest = sum_a.clone().max_pair(sum_b.clone());
    // A query that sees no key has no largest score.
    let sees_none = largest.clone().equal_elem(f64::NEG_INFINITY);
    let largest = largest.mask_fill(sees_none, 0.0);
    let weight_a = (sum_a - largest.clone()).exp();
    let weight_b = (sum_b - largest.clone()).exp();
    let sum = weight_a.clone() + weight_b.clone();
    let is_zero = sum.clone().equal_elem(0.0);
    let divisor = sum.clone().mask_fill(is_zero, 1.0);
    let share = |weight: Tensor<B, 4>| (weight / divisor.clone()).unsqueeze_dim::<5>(4);
    let out = out_a * share(weight_a) + out_b * share(weight_b);
    (out, largest + sum.log())
}

/// Returns the gradients of a block of keys and values, and of the queries: with what other blocks gave, which is the
/// next tensor.
pub(super) fn backpropagate<B: AttentionBackend + BackendIr>(
    inputs: AttentionInputs<B>,
    made: AttentionMade<B>,
    gradient: FloatTensor<B>,
    scores: Scores,
    block: KeyBlock,
    so_far: &mut Tensors<B>,
) -> AttentionGradients<B> {
    let dtype = inputs.q.dtype();
    let wide = statistics_of::<B>(&inputs.q);
    let inputs = of_block(inputs, block.keys);
    let made = B::attention_backward(inputs, made, gradient, scores, false);
    let mut q = tensor::<B, 5>(made.q).cast(wide);
    if !block.first {
        q = q + tensor(so_far.float());
    }
    AttentionGradients {
        q: float(if block.last { q.cast(dtype) } else { q }),
        ..made
    }
}
