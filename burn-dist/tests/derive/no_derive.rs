use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug)]
struct Model {
    up: Linear,
}

fn plan(model: &Model) -> burn_dist::Plan {
    Parallelize::plan(model)
}

fn main() {}
