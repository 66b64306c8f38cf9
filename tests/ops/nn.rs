//! Layers and losses of burn-nn, which record several operations each.

use burn::nn::loss::{
    BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, HuberLossConfig, MseLoss, Reduction,
};
use burn::nn::{
    BatchNormConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig, RmsNormConfig,
    RotaryEncodingConfig,
};
use burn::tensor::{activation, loss};

use super::harness::cases;

cases! {
    fn layer_norm(c) {
        let x = c.float([3, 5, 4]);
        c.out(LayerNormConfig::new(4).init(&c.device).forward(x));
        let x = c.float([7, 6]);
        c.out(LayerNormConfig::new(6).init(&c.device).forward(x));
    }
    fn rms_norm(c) {
        let x = c.float([3, 5, 4]);
        c.out(RmsNormConfig::new(4).init(&c.device).forward(x));
    }
    fn group_norm(c) {
        let x = c.float([3, 4, 5]);
        c.out(GroupNormConfig::new(2, 4).init(&c.device).forward(x));
        let x = c.float([2, 3, 5]);
        c.out(InstanceNormConfig::new(3).init(&c.device).forward(x));
    }
    fn batch_norm(c) {
        let x = c.float([3, 2, 5]);
        c.out(BatchNormConfig::new(2).init(&c.device).forward(x));
    }
    fn rotary(c) {
        let x = c.float([2, 4, 3, 6]);
        c.out(RotaryEncodingConfig::new(5, 6).init(&c.device).forward(x));
    }
    fn cross_entropy(c) {
        let (logits, targets) = (c.float([6, 5]), c.int(0, 5, [6]));
        c.out(CrossEntropyLossConfig::new().init(&c.device).forward(logits, targets));
    }
    fn cross_entropy_padded(c) {
        let (logits, targets) = (c.float([7, 5]), c.int(0, 5, [7]));
        let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![1, 3]));
        c.out(config.init(&c.device).forward(logits, targets));
    }
    fn cross_entropy_smoothed(c) {
        let (logits, targets) = (c.float([6, 5]), c.int(0, 5, [6]));
        let config = CrossEntropyLossConfig::new().with_smoothing(Some(0.1));
        c.out(config.init(&c.device).forward(logits, targets));
    }
    fn cross_entropy_weighted(c) {
        let (logits, targets) = (c.float([6, 3]), c.int(0, 3, [6]));
        let config = CrossEntropyLossConfig::new().with_weights(Some(vec![1.0, 2.0, 0.5]));
        c.out(config.init(&c.device).forward(logits, targets));
    }
    fn cross_entropy_of_probabilities(c) {
        let (logits, targets) = (c.float([5, 3]), c.constant([5, 3]));
        c.out(loss::cross_entropy_with_logits(logits, activation::softmax(targets, 1)));
    }
    fn other_losses(c) {
        let (x, y) = (c.float([5, 3]), c.float([5, 3]));
        c.out(MseLoss::new().forward(x.clone(), y.clone(), Reduction::Mean));
        c.out(MseLoss::new().forward(x.clone(), y.clone(), Reduction::Sum));
        c.out(HuberLossConfig::new(0.7).init().forward(x.clone(), y, Reduction::Mean));
        let targets = c.int(0, 2, [5, 3]);
        let config = BinaryCrossEntropyLossConfig::new().with_logits(true);
        c.out(config.init(&c.device).forward(x, targets));
    }
    fn glu(c) {
        let x = c.float([3, 6]);
        c.out(activation::glu(x.clone(), 1));
        let y = c.float([4, 3]);
        c.out(activation::glu(y, 0));
    }
    fn second_use_after_read(c) {
        // A value that outlives its window is resolved there, and used again later.
        let (x, y) = (c.float([4, 6]), c.float([6, 3]));
        let z = x.matmul(y);
        c.out(z.clone());
        c.out(activation::softmax(z.clone(), 1));
        let total = z.clone().sum();
        c.out(total.clone());
        c.out(z / (total.unsqueeze() + 50.0));
    }
    fn detached(c) {
        let x = c.float([4, 6]);
        let y = x.clone().exp().detach();
        c.out(x.clone() * y);
        c.out((x.clone() * x.detach()).sum_dim(1));
    }
}
