use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(unit, strategy = "zero3", precision = "bf8")]
    up: Linear,
}

fn main() {}
