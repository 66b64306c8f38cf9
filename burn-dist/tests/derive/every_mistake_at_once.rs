use burn::module::Module;
use burn::nn::Linear;
use burn_dist::Parallelize;

#[derive(Module, Debug, Parallelize)]
#[parallel(uint)]
struct Model {
    #[parallel(colwize)]
    up: Linear,
    #[parallel(rowwise, heads)]
    down: Linear,
}

// The stub impl keeps this from being a further error.
fn plan(model: &Model) -> burn_dist::Plan {
    model.plan()
}

fn main() {}
