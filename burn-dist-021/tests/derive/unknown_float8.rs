use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model<B: Backend> {
    #[parallel(precision = "float8=delayed")]
    up: Linear<B>,
    #[parallel(precision = "float8,float8=off")]
    down: Linear<B>,
}

fn main() {}
