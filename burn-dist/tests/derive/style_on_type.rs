use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
#[parallel(colwise)]
struct Model {
    up: Linear,
}

fn main() {}
