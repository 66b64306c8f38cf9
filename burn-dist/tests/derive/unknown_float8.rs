use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(precision = "float8=delayed")]
    up: Linear,
    #[parallel(precision = "float8,float8=off")]
    down: Linear,
}

fn main() {}
