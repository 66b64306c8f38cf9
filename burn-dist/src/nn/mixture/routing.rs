//! Which expert takes which token: the router's choices, and the slots that they get.

use burn_core::tensor::{Bool, IndexingUpdateOp, Int, Tensor};

/// The experts that tokens are sent to, the first choice of all tokens of a group before the second ones.
#[derive(Debug, Clone)]
pub struct Choices {
    /// The expert of each pair of a token and a choice: `[g, k t, 1]`, of `k` major.
    pub expert: Tensor<3, Int>,
    /// The factor of its result: `[g, k t, 1]`.
    pub gate: Tensor<3>,
}

impl Choices {
    /// Picks the `k` likeliest experts of each token. Of several, gates are their probabilities over the sum of these;
    /// the gate of a single one is its probability.
    ///
    /// # Shapes
    /// `probabilities`: `[g, t, e]`.
    /// # Gradient
    /// To the probabilities, through the gates alone.
    /// # Source
    /// Mixtral (arXiv:2401.04088, section 2.1) for several; Switch (arXiv:2101.03961, section 2.1) for one.
    pub fn top_k(probabilities: Tensor<3>, k: usize) -> Self {
        let experts = probabilities.dims()[2];
        let mut left = probabilities.clone().detach();
        let mut chosen: Vec<Tensor<3, Int>> = Vec::with_capacity(k);
        // One after the other: a sort of all would go by way of the host.
        for _ in 0..k {
            let expert = left.clone().argmax(2);
            left = left.mask_fill(is_expert(expert.clone(), experts), -1.0);
            chosen.push(expert);
        }
        let gates = chosen
            .iter()
            .map(|expert| probabilities.clone().gather(2, expert.clone()));
        let gates: Vec<Tensor<3>> = gates.collect();
        let gate = match k {
            1 => gates[0].clone(),
            _ => {
                let sum = gates.iter().cloned().reduce(|sum, gate| sum + gate);
                let sum = sum.expect("a token chooses at least one expert");
                Tensor::cat(
                    gates.into_iter().map(|gate| gate / sum.clone()).collect(),
                    1,
                )
            }
        };
        Self {
            expert: Tensor::cat(chosen, 1),
            gate,
        }
    }
}

/// Where the experts are, as one-hot booleans: `[g, n, 1]` to `[g, n, e]`.
fn is_expert(expert: Tensor<3, Int>, experts: usize) -> Tensor<3, Bool> {
    let [g, n, _] = expert.dims();
    let all = Tensor::<1, Int>::arange(0..experts as i64, &expert.device());
    let all = all.reshape([1, 1, experts]).expand([g, n, experts]);
    expert.expand([g, n, experts]).equal(all)
}

/// Slots of the experts, and which pair of a token and a choice is in which.
///
/// Each expert has `capacity` slots in every group. Pairs get them in order: first choices before second ones, then in
/// the order of the tokens. A pair for whose expert no slot is left is dropped: it adds nothing to the token's result.
///
/// # Source
/// GShard (arXiv:2006.16668, section 2.2, algorithm 1).
#[derive(Debug, Clone)]
pub struct Routing {
    /// The slot of each pair, counted over all experts, 0 of pairs that are dropped: `[g, k t, 1]`.
    pub slot: Tensor<3, Int>,
    /// 1 of pairs that have a slot, 0 of those that are dropped: `[g, k t, 1]`.
    pub kept: Tensor<3>,
    /// 1 at the expert of each pair, dropped or not: `[g, k t, e]`.
    pub chosen: Tensor<3>,
    experts: usize,
    capacity: usize,
}

impl Routing {
    /// Gives the pairs their slots.
    ///
    /// # Shapes
    /// `expert`: `[g, k t, 1]`, as [`Choices::expert`].
    pub fn new(expert: Tensor<3, Int>, experts: usize, capacity: usize) -> Self {
        let chosen = is_expert(expert.clone(), experts).int();
        // How many pairs of the same expert come up to this one.
        let number = (chosen.clone().cumsum(1) * chosen.clone()).sum_dim(2);
        let dropped = number.clone().greater_scalar(capacity as i64);
        let slot = expert * capacity as i64 + number - 1;
        Self {
            slot: slot.mask_fill(dropped.clone(), 0),
            kept: dropped.bool_not().float(),
            chosen: chosen.float(),
            experts,
            capacity,
        }
    }

    /// Copies tokens into the slots of their experts.
    ///
    /// # Shapes
    /// `x`: `[g, t, d]`; output: `[e, g c, d]`, zero in slots without a token.
    pub fn dispatch(&self, x_gtd: Tensor<3>) -> Tensor<3> {
        let [g, t, d] = x_gtd.dims();
        let (e, c) = (self.experts, self.capacity);
        let pairs = self.slot.dims()[1];
        let x_gpd = Tensor::cat(vec![x_gtd.clone(); pairs / t], 1) * self.kept.clone();
        let slot = self.slot.clone().expand([g, pairs, d]);
        let slots = Tensor::zeros([g, e * c, d], &x_gtd.device());
        // No slot has two tokens: what is dropped adds zeros.
        let slots = slots.scatter(1, slot, x_gpd, IndexingUpdateOp::Add);
        slots
            .reshape([g, e, c, d])
            .swap_dims(0, 1)
            .reshape([e, g * c, d])
    }

    /// Adds up what the experts of each token make of it, times the gates.
    ///
    /// # Shapes
    /// `y`: `[e, g c, d]`, as [`Routing::dispatch`] gives it; `gate`: `[g, k t, 1]`; output: `[g, t, d]`.
    pub fn combine(&self, y_egcd: Tensor<3>, gate: Tensor<3>, t: usize) -> Tensor<3> {
        let [e, _, d] = y_egcd.dims();
        let [g, pairs, _] = gate.dims();
        let c = self.capacity;
        let slots = y_egcd
            .reshape([e, g, c, d])
            .swap_dims(0, 1)
            .reshape([g, e * c, d]);
        let y_gpd = slots.gather(1, self.slot.clone().expand([g, pairs, d]));
        let y_gpd = y_gpd * (gate * self.kept.clone());
        y_gpd
            .reshape([g, pairs / t, t, d])
            .sum_dim(1)
            .reshape([g, t, d])
    }
}
