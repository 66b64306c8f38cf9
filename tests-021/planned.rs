//! What a training step of a Llama does, planned and not run.

use burn::backend::{Autodiff, Flex};
use burn_dist::explanation::Explanation;
use burn_dist::{DeviceMeshBuilder, Dist, Parallelize, ParallelizeWith, Plan};

use crate::llama::{self, RandomTokens, Size, optimizer};

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
        state: 0,
    };
    let shape = device.shape().expect("a mesh").clone();
    let model = config.init::<B>(&device);
    let plan = amend(model.plan());
    let model = model.parallelize_with(&shape, &plan).expect("it fits");
    let mut optimizer = optimizer::<B>();
    let first = source.next_batch();
    let (model, _) = llama::step(model, &mut optimizer, &first, 1e-4, &device);
    let (_, explanation) = burn_dist::explain::<B, _>(&device, || {
        let batch = source.next_batch();
        let (model, loss) = llama::step(model, &mut optimizer, &batch, 1e-4, &device);
        (model, loss.into_data())
    });
    explanation
}
