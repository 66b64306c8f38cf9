use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
#[parallel(colwise)]
struct Model<B: Backend> {
    up: Linear<B>,
}

fn main() {}
