use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(colwise)]
    #[parallel(rowwise)]
    up: Linear,
}

fn main() {}
