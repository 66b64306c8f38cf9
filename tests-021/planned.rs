//! What a training step of the example's Llama does, planned and not run.

use burn::backend::{Autodiff, Flex};
use burn_dist::explanation::Explanation;
use burn_dist::{DeviceMeshBuilder, Dist, Parallelize, ParallelizeWith, Plan};
use llama::data::batch::{BatchSource, RandomTokens};
use llama::data::rng::Rng;
use llama::model::Size;
use llama::optimizer::optimizer;
use llama::train;

type B = Autodiff<Dist<Flex>>;

/// Returns the plan of a steady step of `(seq, batch)`, of a model whose own plan is amended: the first one makes the
/// parameters and the optimizer's state.
pub(crate) fn llama_step(
    size: Size,
    mesh: DeviceMeshBuilder,
    amend: impl FnOnce(Plan) -> Plan,
    (seq, batch): (usize, usize),
) -> Explanation {
    let device = mesh.dry_run().build().expect("a mesh").device();
    let config = size.config();
    let mut source = RandomTokens {
        batch,
        seq,
        vocab: config.vocab,
        rng: Rng::new(0, 2),
        held: burn_dist::layout::Rows::all(batch),
    };
    let shape = device.shape().expect("a mesh").clone();
    let model = config.init::<B>(&device);
    let plan = amend(model.plan());
    let model = model.parallelize_with(&shape, &plan).expect("it fits");
    let mut optimizer = optimizer::<B>();
    let first = source.next_batch().expect("random tokens");
    let (model, _) = train::step(model, &mut optimizer, &first, 1e-4, &device);
    let (_, explanation) = burn_dist::explain::<B, _>(&device, || {
        let batch = source.next_batch().expect("random tokens");
        let (model, loss) = train::step(model, &mut optimizer, &batch, 1e-4, &device);
        (model, loss.into_data())
    });
    explanation
}
