use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
#[parallel(uint)]
struct Model<B: Backend> {
    #[parallel(colwize)]
    up: Linear<B>,
    #[parallel(rowwise, heads)]
    down: Linear<B>,
}

// The stub impl keeps this from being a further error.
fn plan<B: Backend>(model: &Model<B>) -> burn_dist::Plan {
    model.plan()
}

fn main() {}
