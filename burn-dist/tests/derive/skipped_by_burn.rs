use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model {
    up: Linear,
    #[module(skip)]
    #[parallel(replicate)]
    note: Vec<String>,
}

fn main() {}
