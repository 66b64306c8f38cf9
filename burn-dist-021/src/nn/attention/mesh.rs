//! On a mesh: what may be split, and the inner backend on what a rank holds.

use burn_backend::BackendTypes;
use burn_backend::tensor::FloatTensor;
use burn_dist_plan::op::{FloatClass, LocalView, Work};
use burn_dist_plan::rule::{FactorKind, OpRule, Shapes};
use burn_ir::BackendIr;
use burn_std::DType;

use super::AttentionBackend;
use super::op::{Attention, AttentionBackward, Tensors};
use super::ring;
use super::types::{AttentionGradients, AttentionInputs, AttentionMade, Scores};
use crate::Dist;
use crate::mesh::ReduceOp;
use crate::ops::custom::{CustomOp, CustomSteps, CustomTensor, Execute, TensorInfo};
use crate::record::call;

fn statistics(q: &TensorInfo) -> TensorInfo {
    TensorInfo {
        shape: q.shape[..4].to_vec(),
        dtype: match q.dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        },
    }
}

impl CustomOp for Attention {
    const ID: &'static str = "burn_dist.attention";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        let (q, v) = (&inputs[0], &inputs[2]);
        let mut out = q.clone();
        out.shape[4] = v.shape[3];
        vec![out, statistics(q)]
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let notation = format!("{} -> b g n q -, b g n q", self.inputs_notation());
        self.rule(shapes, &notation).build()
    }

    fn passes_blocks(&self) -> bool {
        true
    }

    fn steps(&self, steps: &mut CustomSteps<'_, Self>) -> bool {
        ring::forward(self, steps)
    }

    fn localize(&self, view: &LocalView<'_>) -> Self {
        self.of_rank(view)
    }

    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        self.flops(shapes, 2.0)
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Compute
    }

    fn work(&self) -> Work {
        Work::Layer
    }

    fn statistic_output(&self) -> Option<usize> {
        Some(1)
    }
}

impl CustomOp for AttentionBackward {
    const ID: &'static str = "burn_dist.attention_backward";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        let mut made = inputs[..3].to_vec();
        if self.with_bias {
            let (q, k) = (&inputs[0], &inputs[1]);
            let mut bias = q.clone();
            bias.shape[4] = k.shape[2];
            made.push(bias);
        }
        made
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let bias = if self.with_bias { ", b g n q -" } else { "" };
        let inputs = self.forward.inputs_notation();
        let outputs = format!("b g n q -, b g k -, b g k -{bias}");
        let notation = format!("{inputs}, b g n q -, b g n q, b g n q - -> {outputs}");
        // Keys and values collect the gradients of all queries, and of the heads that share them.
        let summed = FactorKind::Reduce(ReduceOp::Sum);
        let rule = self.forward.rule(shapes, &notation);
        let rule = rule.kind('n', summed).kind('q', summed);
        match self.with_bias {
            // The gradient of a bias has all keys of a query.
            true => rule.kind('k', FactorKind::Whole).build(),
            false => rule.build(),
        }
    }

    fn passes_blocks(&self) -> bool {
        true
    }

    fn steps(&self, steps: &mut CustomSteps<'_, Self>) -> bool {
        ring::backward(self, steps)
    }

    fn localize(&self, view: &LocalView<'_>) -> Self {
        Self {
            forward: self.forward.of_rank(view),
            ..self.clone()
        }
    }

    /// Scores again, and two products for each of the two of the forward.
    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        self.forward.flops(shapes, 5.0)
    }

    /// The scores.
    fn remade_flops(&self, shapes: &Shapes<'_>) -> f64 {
        self.forward.flops(shapes, 1.0).unwrap_or(0.0)
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Compute
    }

    fn statistic_input(&self) -> Option<usize> {
        Some(self.forward.num_inputs() + 1)
    }
}

impl<B: AttentionBackend + BackendIr> Execute<B> for Attention {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<B>>,
        _: &<B as BackendTypes>::Device,
    ) -> Vec<CustomTensor<B>> {
        let mut tensors = Tensors(inputs.into_iter());
        let inputs = self.inputs(&mut tensors);
        let made = match self.block {
            Some(block) => ring::attend::<B>(inputs, self.scores, block, &mut tensors),
            None => B::attention_forward(inputs, self.scores),
        };
        vec![
            CustomTensor::Float(made.out),
            CustomTensor::Float(made.log_sum_exp),
        ]
    }
}

impl<B: AttentionBackend + BackendIr> Execute<B> for AttentionBackward {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<B>>,
        _: &<B as BackendTypes>::Device,
    ) -> Vec<CustomTensor<B>> {
        let mut tensors = Tensors(inputs.into_iter());
        if self.adds {
            let sums = ring::sums::<B>(&mut tensors);
            return sums.map(CustomTensor::Float).into();
        }
        let inputs = self.forward.inputs(&mut tensors);
        let made = AttentionMade {
            out: tensors.float(),
            log_sum_exp: tensors.float(),
        };
        let gradient = tensors.float();
        let scores = self.forward.scores;
        let made = match self.forward.block {
            Some(block) => {
                ring::backpropagate::<B>(inputs, made, gradient, scores, block, &mut tensors)
            }
            None => B::attention_backward(inputs, made, gradient, scores, self.with_bias),
        };
        let all = [Some(made.q), Some(made.k), Some(made.v), made.bias];
        all.into_iter().flatten().map(CustomTensor::Float).collect()
    }
}

impl Attention {
    fn of<B: BackendIr>(inputs: &AttentionInputs<Dist<B>>, scores: Scores) -> Self {
        Self {
            scores,
            has_mask: inputs.mask.is_some(),
            has_bias: inputs.bias.is_some(),
            block: None,
        }
    }
}

/// Inputs in the order in which they are recorded.
fn recorded<B: BackendIr>(inputs: AttentionInputs<Dist<B>>) -> Vec<CustomTensor<Dist<B>>> {
    let mut all: Vec<CustomTensor<Dist<B>>> = [inputs.q, inputs.k, inputs.v]
        .map(CustomTensor::Float)
        .into();
    all.extend(inputs.mask.map(CustomTensor::Bool));
    all.extend(inputs.bias.map(CustomTensor::Float));
    all.extend(inputs.seed.map(CustomTensor::Int));
    all
}

/// On a mesh, the kernels run on what each rank holds.
impl<B: AttentionBackend + BackendIr> AttentionBackend for Dist<B> {
    const DROPS: bool = B::DROPS;

    fn attention_forward(inputs: AttentionInputs<Self>, scores: Scores) -> AttentionMade<Self> {
        let op = Attention::of(&inputs, scores);
        let made = call(op, recorded(inputs)).expect("the id is ours, and there are inputs");
        let mut made = made.into_iter().map(CustomTensor::into_float);
        let mut next = || made.next().expect("attention has two results");
        AttentionMade {
            out: next(),
            log_sum_exp: next(),
        }
    }

    fn attention_backward(
        inputs: AttentionInputs<Self>,
        made: AttentionMade<Self>,
        gradient: FloatTensor<Self>,
        scores: Scores,
        with_bias: bool,
    ) -> AttentionGradients<Self> {
        let op = AttentionBackward {
            forward: Attention::of(&inputs, scores),
            with_bias,
            adds: false,
        };
        let mut inputs = recorded(inputs);
        inputs.extend([made.out, made.log_sum_exp, gradient].map(CustomTensor::Float));
        let made = call(op, inputs).expect("the id is ours, and there are inputs");
        let mut made = made.into_iter().map(CustomTensor::into_float);
        let mut next = || made.next().expect("a gradient for each input");
        AttentionGradients {
            q: next(),
            k: next(),
            v: next(),
            bias: with_bias.then(next),
        }
    }
}
