use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model<B: Backend> {
    #[parallel(unit, strategy = "zero3", precision = "bf8")]
    up: Linear<B>,
}

fn main() {}
