use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    up: Linear<B>,
}

fn plan<B: Backend>(model: &Model<B>) -> burn_dist::Plan {
    Parallelize::plan(model)
}

fn main() {}
