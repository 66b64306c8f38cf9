use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model<B: Backend> {
    #[parallel(output = "[-, {tp}]")]
    up: Linear<B>,
}

fn main() {}
