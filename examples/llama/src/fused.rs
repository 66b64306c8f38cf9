//! Causal attention as one operation, with its gradient as another: what flash attention is to a plan.
//!
//! Neither leaves scores behind, so memory is linear in the sequence. Inside, a rank still computes them whole: kernels
//! that do not are the backend's.
//!
//! Source: Dao, "FlashAttention-2" (arXiv:2307.08691): the backward makes the weights again; flops as counted there,
//! half of them for the causal mask.

use std::any::Any;

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::activation::softmax;
use burn::tensor::backend::{Backend, BackendTypes};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, Tensor, TensorPrimitive};
use burn_dist::custom::{
    BackendIr, CustomOp, CustomTensor, Execute, FloatClass, OpRule, RuleBuilder, Shapes,
    TensorInfo, Work, call,
};

use crate::mesh::{MeshInner, TrainBackend};

/// Attends over the sequence; a query sees the keys before it and its own.
///
/// One operation on the mesh, and as many as it takes on any other backend.
///
/// # Shapes
/// `q` and the result: `[b, k, n, s, e]`; `key`, `value`: `[b, k, 1, s, e]`.
pub fn attention<B: Backend>(
    q: Tensor<B, 5>,
    key: Tensor<B, 5>,
    value: Tensor<B, 5>,
) -> Tensor<B, 5> {
    // Which backend it is decides at run time: models are generic over all.
    let inputs: Box<dyn Any> = Box::new((q, key, value));
    let inputs = match inputs.downcast::<Three<TrainBackend>>() {
        Ok(inputs) => return same(on_mesh(*inputs)),
        Err(inputs) => inputs,
    };
    let inputs = match inputs.downcast::<Three<MeshInner>>() {
        Ok(inputs) => {
            let (q, key, value) = *inputs;
            let inputs = [q, key, value].map(|tensor| tensor.into_primitive().tensor());
            return same(tensor::<MeshInner>(forward(inputs)));
        }
        Err(inputs) => inputs,
    };
    let (q, key, value) = *inputs.downcast::<Three<B>>().expect("they were put in");
    attend(q, key, value)
}

type Three<B> = (Tensor<B, 5>, Tensor<B, 5>, Tensor<B, 5>);

/// A tensor of a backend that is `B`, under another name.
fn same<A: Backend, B: Backend>(tensor: Tensor<A, 5>) -> Tensor<B, 5> {
    let tensor: Box<dyn Any> = Box::new(tensor);
    *tensor
        .downcast()
        .expect("the result is on the backend of the inputs")
}

fn tensor<B: Backend>(primitive: FloatTensor<B>) -> Tensor<B, 5> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

fn weights<B: Backend>(q: Tensor<B, 5>, key: Tensor<B, 5>) -> Tensor<B, 5> {
    let [_, _, _, s, _] = q.dims();
    let hidden = Tensor::<B, 2, Bool>::tril_mask([s, s], 0, &q.device()).unsqueeze::<5>();
    let scores = q.matmul(key.swap_dims(3, 4));
    softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 4)
}

fn attend<B: Backend>(q: Tensor<B, 5>, key: Tensor<B, 5>, value: Tensor<B, 5>) -> Tensor<B, 5> {
    weights(q, key).matmul(value)
}

/// Causal attention; on a rank, on the rows and heads that it holds.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Attention;

/// Its gradients, of `q`, `key`, `value`, its result, and the gradient of that.
#[derive(Clone, Debug, PartialEq, Hash)]
struct AttentionBackward;

/// `2 s e` flops per query and product, halved for the mask.
fn flops(shapes: &Shapes<'_>, products: f64) -> Option<f64> {
    let q = shapes.inputs.first()?;
    let queries: usize = q.iter().product();
    Some(products * queries as f64 * *q.get(3)? as f64)
}

impl CustomOp for Attention {
    const ID: &'static str = "llama.attention";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        vec![inputs[0].clone()]
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let notation = "b k - - -, b k - - -, b k - - - -> b k - - -";
        RuleBuilder::notation(shapes, notation).build()
    }

    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        flops(shapes, 2.0)
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Compute
    }

    fn work(&self) -> Work {
        Work::Layer
    }
}

impl CustomOp for AttentionBackward {
    const ID: &'static str = "llama.attention_backward";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        inputs[..3].to_vec()
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let each = "b k - - -";
        let notation = format!("{} -> {}", [each; 5].join(", "), [each; 3].join(", "));
        RuleBuilder::notation(shapes, &notation).build()
    }

    /// Scores again, and two products for each of the two of the forward.
    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        flops(shapes, 5.0)
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Compute
    }
}

fn floats<B: Backend, const N: usize>(tensors: Vec<CustomTensor<B>>) -> [FloatTensor<B>; N] {
    let floats: Vec<_> = tensors.into_iter().map(CustomTensor::into_float).collect();
    floats
        .try_into()
        .unwrap_or_else(|_| panic!("recorded with {N} inputs"))
}

fn made<B: Backend, const N: usize>(tensors: [Tensor<B, 5>; N]) -> Vec<CustomTensor<B>> {
    let primitives = tensors.into_iter();
    let primitives = primitives.map(|tensor| tensor.into_primitive().tensor());
    primitives.map(CustomTensor::<B>::Float).collect()
}

impl<B: BackendIr> Execute<B> for Attention {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<B>>,
        _: &<B as BackendTypes>::Device,
    ) -> Vec<CustomTensor<B>> {
        let [q, key, value] = floats(inputs).map(tensor::<B>);
        made([attend(q, key, value)])
    }
}

impl<B: BackendIr> Execute<B> for AttentionBackward {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<B>>,
        _: &<B as BackendTypes>::Device,
    ) -> Vec<CustomTensor<B>> {
        let [q, key, value, out, gradient] = floats(inputs).map(tensor::<B>);
        let weights = weights(q.clone(), key.clone());
        // The n query heads of a group share its key and value.
        let to_value = weights.clone().swap_dims(3, 4).matmul(gradient.clone());
        let to_weights = gradient.clone().matmul(value.swap_dims(3, 4));
        let to_scores = weights * (to_weights - (gradient * out).sum_dim(4));
        let to_key = to_scores.clone().swap_dims(3, 4).matmul(q);
        made([
            to_scores.matmul(key),
            to_key.sum_dim(2),
            to_value.sum_dim(2),
        ])
    }
}

fn forward(inputs: [FloatTensor<MeshInner>; 3]) -> FloatTensor<MeshInner> {
    let inputs = inputs.map(CustomTensor::<MeshInner>::Float).into();
    let [out] = floats(call(Attention, inputs).expect("the id is ours"));
    out
}

#[derive(Debug)]
struct Gradient;

impl Backward<MeshInner, 3> for Gradient {
    type State = ([NodeId; 3], FloatTensor<MeshInner>);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<MeshInner>(&ops.node);
        let (inputs, out) = ops.state;
        let [q, key, value]: [FloatTensor<MeshInner>; 3] =
            inputs.map(|node| checkpointer.retrieve_node_output(node));
        let inputs = [q, key, value, out, gradient].map(CustomTensor::<MeshInner>::Float);
        let made = call(AttentionBackward, inputs.into()).expect("the id is ours");
        let made: [FloatTensor<MeshInner>; 3] = floats(made);
        for (parent, gradient) in ops.parents.into_iter().zip(made) {
            if let Some(node) = parent {
                grads.register::<MeshInner>(node.id, gradient);
            }
        }
    }
}

fn on_mesh((q, key, value): Three<TrainBackend>) -> Tensor<TrainBackend, 5> {
    let [q, key, value]: [FloatTensor<Autodiff<MeshInner>>; 3] =
        [q, key, value].map(|tensor| tensor.into_primitive().tensor());
    let prepared = Gradient
        .prepare::<NoCheckpointing>([q.node.clone(), key.node.clone(), value.node.clone()])
        .compute_bound()
        .stateful();
    let out = match prepared {
        OpsKind::Tracked(mut prepared) => {
            let nodes = [&q, &key, &value].map(|input| prepared.checkpoint(input));
            let out = forward([q.primitive, key.primitive, value.primitive]);
            prepared.finish((nodes, out.clone()), out)
        }
        OpsKind::UnTracked(prepared) => {
            prepared.finish(forward([q.primitive, key.primitive, value.primitive]))
        }
    };
    tensor::<TrainBackend>(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::flex::{Flex, FlexDevice};
    use burn::tensor::{TensorData, Tolerance};
    use burn_dist::DeviceMesh;
    use burn_dist::custom::check;

    fn values(shape: [usize; 5], seed: usize) -> TensorData {
        let count = shape.iter().product::<usize>();
        let value = |i: usize| ((i * 37 + seed * 11) % 23) as f32 / 11.0 - 1.0;
        TensorData::new((0..count).map(value).collect::<Vec<_>>(), shape)
    }

    /// `[b, k, n, s, e]` of queries, keys and values.
    fn inputs() -> [TensorData; 3] {
        [
            values([2, 2, 3, 5, 4], 1),
            values([2, 2, 1, 5, 4], 2),
            values([2, 2, 1, 5, 4], 3),
        ]
    }

    #[test]
    fn every_split_gives_the_same() {
        let mut inputs = inputs().to_vec();
        let device = FlexDevice;
        assert!(check::<Flex, _>(&Attention, inputs.clone(), 1e-5, &device).unwrap() > 4);
        inputs.extend([values([2, 2, 3, 5, 4], 4), values([2, 2, 3, 5, 4], 5)]);
        assert!(check::<Flex, _>(&AttentionBackward, inputs, 1e-5, &device).unwrap() > 4);
    }

    /// As one operation on a mesh, and operation by operation on one device.
    #[test]
    fn it_has_the_gradients_of_its_parts() {
        fn run<B: burn::tensor::backend::AutodiffBackend>(device: &B::Device) -> Vec<TensorData> {
            let [q, key, value] =
                inputs().map(|data| Tensor::<B, 5>::from_data(data, device).require_grad());
            let out = attention(q.clone(), key.clone(), value.clone());
            let grads = (out.clone() * out.clone()).sum().backward();
            let of = |tensor: Tensor<B, 5>| tensor.grad(&grads).expect("a gradient").into_data();
            vec![out.into_data(), of(q), of(key), of(value)]
        }
        let mesh = DeviceMesh::parse("fsdp=2").expect("a mesh");
        let on_mesh = run::<TrainBackend>(&mesh.device());
        let alone = run::<Autodiff<Flex>>(&FlexDevice);
        for (one, other) in on_mesh.iter().zip(&alone) {
            one.assert_approx_eq::<f32>(other, Tolerance::absolute(1e-4));
        }
    }
}
