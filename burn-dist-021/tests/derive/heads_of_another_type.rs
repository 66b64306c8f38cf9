use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model<B: Backend> {
    #[parallel(colwise, heads = self.n_heads)]
    up: Linear<B>,
    n_heads: u32,
}

fn main() {}
