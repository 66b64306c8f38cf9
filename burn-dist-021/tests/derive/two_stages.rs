use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model<B: Backend> {
    #[parallel(first, last)]
    up: Linear<B>,
    #[parallel(stages = 4)]
    blocks: Vec<Linear<B>>,
}

fn main() {}
