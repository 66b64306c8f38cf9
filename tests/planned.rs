//! What a training step of a Llama does, planned and not run.

use burn_dist::explanation::Explanation;
use burn_dist::{DeviceMeshBuilder, Parallelize, ParallelizeWith, Plan};

use crate::llama::{self, RandomTokens, Size, optimizer};

/// Returns the plan of a steady step of `(seq, batch)`, of a model whose own plan is amended: the first one makes the
/// parameters and the optimizer's state.
pub(crate) fn llama_step(
    size: Size,
    mesh: DeviceMeshBuilder,
    amend: impl FnOnce(Plan) -> Plan,
    (seq, batch): (usize, usize),
) -> Explanation {
    let mesh = mesh.dry_run().build().expect("a mesh");
    let device = mesh.device().autodiff();
    let config = size.config();
    let mut source = RandomTokens {
        batch,
        seq,
        vocab: config.vocab,
        state: 0,
    };
    let model = config.init(&device);
    let plan = amend(model.plan());
    let model = model.parallelize_with(&mesh, &plan).expect("it fits");
    let mut optimizer = optimizer();
    let first = source.next_batch();
    let (model, _) = llama::step(model, &mut optimizer, &first, 1e-4, &device);
    let (_, explanation) = burn_dist::explain(&device, || {
        let batch = source.next_batch();
        let (model, loss) = llama::step(model, &mut optimizer, &batch, 1e-4, &device);
        (model, loss.into_data())
    });
    explanation
}
