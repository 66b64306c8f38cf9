use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(first, last)]
    up: Linear,
    #[parallel(stages = 4)]
    blocks: Vec<Linear>,
}

fn main() {}
