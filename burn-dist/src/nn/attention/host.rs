//! Flex as a backend that attends in one operation: by the kernels in `flex.rs`, which both lines of Burn share.

use burn_backend::tensor::FloatTensor;
use burn_flex::Flex;

use super::flex;
use super::types::{AttentionBackend, AttentionGradients, AttentionInputs, AttentionMade, Scores};

impl AttentionBackend for Flex {
    fn attention_forward(inputs: AttentionInputs<Self>, scores: Scores) -> AttentionMade<Self> {
        flex::attend(inputs, scores)
    }

    fn attention_backward(
        inputs: AttentionInputs<Self>,
        made: AttentionMade<Self>,
        gradient: FloatTensor<Self>,
        scores: Scores,
        with_bias: bool,
    ) -> AttentionGradients<Self> {
        flex::backpropagate(inputs, made, gradient, scores, with_bias)
    }
}
