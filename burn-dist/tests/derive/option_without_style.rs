use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(output = "[-, {tp}]")]
    up: Linear,
}

fn main() {}
