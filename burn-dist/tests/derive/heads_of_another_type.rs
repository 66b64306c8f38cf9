use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(colwise, heads = self.n_heads)]
    up: Linear,
    n_heads: u32,
}

fn main() {}
