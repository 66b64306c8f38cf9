//! The kernels as operations of a mesh.

use std::f64::consts::SQRT_2;

use burn::backend::tensor::FloatTensor;
use burn::backend::{BackendTypes, Flex};
use burn_dist::Dist;
use burn_dist::custom::{
    CustomOp, CustomTensor, Execute, FactorKind, FloatClass, Kernels, Name, OpRule, RuleBuilder,
    Shapes, TensorInfo, Unary, Value, WithKernels, call,
};
use burn_dist::mesh::ReduceOp;

use crate::Backend;

/// `gelu(x + bias)`.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct BiasGelu;

impl CustomOp for BiasGelu {
    const ID: &'static str = "custom_op.bias_gelu";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        vec![inputs[0].clone()]
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        // Every element by itself: rows and columns may be split. It is not linear: terms of a sum are added up before.
        RuleBuilder::notation(shapes, "... i, i -> ... i").build()
    }

    /// With this, ranks on Flex compute it in one kernel with what stands around it, vectorised and on all threads.
    fn formula<'s>(&self, inputs: &[Value<'s>]) -> Option<Vec<Value<'s>>> {
        let x = inputs[0].wide() + inputs[1].wide();
        let below = 0.5 * (1.0 + (x / SQRT_2).unary(Unary::Erf));
        Some(vec![x * below])
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Follow
    }
}

/// The gradients of `x` and `bias`.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct BiasGeluBackward;

impl CustomOp for BiasGeluBackward {
    const ID: &'static str = "custom_op.bias_gelu_backward";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        vec![inputs[0].clone(), inputs[1].clone()]
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        // Rows are summed for the bias: where they are split, each rank has a term of that sum.
        let rows = shapes.inputs[0].len() - 1;
        let rule = RuleBuilder::notation(shapes, "... i, i, ... i -> ... i, i");
        (0..rows)
            .fold(rule, |rule, dim| {
                rule.kind(Name::Dim(dim), FactorKind::Reduce(ReduceOp::Sum))
            })
            .build()
    }

    fn float_class(&self) -> FloatClass {
        FloatClass::Follow
    }
}

impl<B: Backend> Execute<B> for BiasGelu {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<B>>,
        _: &<B as BackendTypes>::Device,
    ) -> Vec<CustomTensor<B>> {
        let [x, bias] = floats(inputs);
        vec![CustomTensor::Float(B::bias_gelu(x, bias))]
    }
}

impl<B: Backend> Execute<B> for BiasGeluBackward {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<B>>,
        _: &<B as BackendTypes>::Device,
    ) -> Vec<CustomTensor<B>> {
        let [x, bias, gradient] = floats(inputs);
        let (to_x, to_bias) = B::bias_gelu_backward(x, bias, gradient);
        vec![CustomTensor::Float(to_x), CustomTensor::Float(to_bias)]
    }
}

/// A mesh picks the one for the backend that its ranks compute on.
impl WithKernels for BiasGelu {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

impl WithKernels for BiasGeluBackward {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

fn floats<B: Backend, const N: usize>(tensors: Vec<CustomTensor<B>>) -> [FloatTensor<B>; N] {
    let floats: Vec<_> = tensors.into_iter().map(CustomTensor::into_float).collect();
    floats
        .try_into()
        .unwrap_or_else(|_| panic!("recorded with {N} inputs"))
}

/// On a mesh, the kernels run on what each rank holds.
impl Backend for Dist {
    fn bias_gelu(x: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let inputs = [x, bias].map(CustomTensor::Float).into();
        let [out] = floats(call(BiasGelu, inputs).expect("the id is ours"));
        out
    }

    fn bias_gelu_backward(
        x: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let inputs = [x, bias, gradient].map(CustomTensor::Float).into();
        let [to_x, to_bias] = floats(call(BiasGeluBackward, inputs).expect("the id is ours"));
        (to_x, to_bias)
    }
}
