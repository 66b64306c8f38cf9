//! Why tests run one after the other: Burn alone, without a mesh, loses gradients on several threads.

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;

/// Gradients of three leaves, each used in several concatenations.
fn gradients() -> [f32; 3] {
    let device = Default::default();
    let leaf = || Tensor::<Autodiff<Flex>, 1>::ones([1], &device).require_grad();
    let (x, y, z) = (leaf(), leaf(), leaf());
    let pair = Tensor::cat(vec![x.clone(), y.clone()], 0).sum();
    let all = Tensor::cat(vec![x.clone(), y.clone(), z.clone()], 0).sum();
    let stacked = Tensor::stack::<2>(vec![x.clone(), y.clone()], 0).sum();
    let found = (pair + all + stacked).backward();
    [x, y, z].map(|leaf| leaf.grad(&found).expect("a gradient").into_scalar())
}

#[test]
fn one_thread_finds_every_gradient() {
    for _ in 0..1000 {
        assert_eq!(gradients(), [3.0, 3.0, 1.0]);
    }
}

#[test]
#[ignore = "Burn 0.21.0 loses gradients on several threads (tracel-ai/burn#5573): once this passes, \
            `one_thread_per_process!` can go"]
fn several_threads_find_every_gradient() {
    let rounds = || (0..20_000).all(|_| gradients() == [3.0, 3.0, 1.0]);
    let found: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(rounds)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|joined| joined.unwrap_or(false)).collect()
    });
    assert_eq!(found, [true; 6]);
}
