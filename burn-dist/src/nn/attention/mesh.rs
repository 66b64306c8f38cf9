//! On a mesh: what may be split, and the inner backend on what a rank holds.

use burn_backend::BackendTypes;
use burn_backend::tensor::FloatTensor;
use burn_dist_plan::op::{FloatClass, LocalView, Work};
use burn_dist_plan::rule::{FactorKind, OpRule, Shapes};
use burn_flex::Flex;
use burn_ir::BackendIr;
use burn_std::DType;

use super::in_burn::InBurn;
use super::op::{Attention, AttentionBackward, Tensors};
use super::ring;
use super::types::{AttentionBackend, AttentionGradients, AttentionInputs, AttentionMade, Scores};
use crate::mesh::ReduceOp;
use crate::ops::custom::{
    CustomOp, CustomSteps, CustomTensor, Execute, Kernels, TensorInfo, WithKernels,
};
use crate::record::{call, has_kernel};
use crate::{Dist, MeshDevice, Registered};

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

    /// The result as the queries.
    fn lies_as(&self, output: usize) -> Option<usize> {
        (output == 0 && self.block.is_none()).then_some(0)
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

    /// Gradients as what they are of, but for that of the bias.
    fn lies_as(&self, output: usize) -> Option<usize> {
        (output < 3 && self.forward.block.is_none() && !self.adds).then_some(output)
    }
}

impl<B: AttentionBackend + BackendIr + InBurn> Execute<B> for Attention {
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

impl<B: AttentionBackend + BackendIr + InBurn> Execute<B> for AttentionBackward {
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
    fn of(inputs: &AttentionInputs<Dist>, scores: Scores) -> Self {
        Self {
            scores,
            has_mask: inputs.mask.is_some(),
            has_bias: inputs.bias.is_some(),
            block: None,
        }
    }
}

/// Inputs in the order in which they are recorded.
fn recorded(inputs: AttentionInputs<Dist>) -> Vec<CustomTensor<Dist>> {
    let mut all: Vec<CustomTensor<Dist>> = [inputs.q, inputs.k, inputs.v]
        .map(CustomTensor::Float)
        .into();
    all.extend(inputs.mask.map(CustomTensor::Bool));
    all.extend(inputs.bias.map(CustomTensor::Float));
    all.extend(inputs.seed.map(CustomTensor::Int));
    all
}

impl WithKernels for Attention {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

impl WithKernels for AttentionBackward {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

/// Returns whether the ranks of a mesh attend in one operation.
pub(super) fn attends(device: &MeshDevice) -> bool {
    has_kernel::<Registered, Attention>(device)
}

/// On a mesh, the kernels run on what each rank holds.
impl AttentionBackend for Dist {
    fn attention_forward(inputs: AttentionInputs<Self>, scores: Scores) -> AttentionMade<Self> {
        let op = Attention::of(&inputs, scores);
        let made = call(op, recorded(inputs)).unwrap_or_else(|error| panic!("{error}"));
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
        let made = call(op, inputs).unwrap_or_else(|error| panic!("{error}"));
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
