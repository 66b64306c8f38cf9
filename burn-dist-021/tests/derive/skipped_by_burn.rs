use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model<B: Backend> {
    up: Linear<B>,
    #[module(skip)]
    #[parallel(replicate)]
    note: Vec<String>,
}

fn main() {}
