//! The work and memory of a step, known before it runs: planned on a mesh that executes nothing.

use anyhow::Context;
use burn::module::Module;
use burn_dist::clock::{Hardware, ModuleCosts};
use burn_dist::explanation::Ask;
use burn_dist::layout::Rows as Held;
use burn_dist::mesh::MeshShape;
use burn_dist::trainer::args::{MeshArgs, PipelineArgs, StagesBy};
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::mesh::{Explanation, Mesh};
use burn_dist::trainer::predict::{self, Predicted};

use super::shape::Shape;
use crate::data::batch::{Batch, PackedIds, RandomTokens};
use crate::data::rng::Rng;
use crate::generate::next_tokens;
use crate::model::Llama;

/// The columns of a step's rows besides tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rows {
    /// Positions count differently: prompts and padding do not.
    pub(super) weighted: bool,
    /// Documents do not see each other.
    pub(super) packed: bool,
}

/// Plans training on a dry mesh, on such `rows`. `ask` is asked of steps but the first.
pub(super) fn step(
    mesh: &Mesh,
    shape: &Shape,
    seed: u64,
    rows: Rows,
    ask: &Ask,
) -> anyhow::Result<Predicted> {
    steps(mesh, shape, seed, rows, (shape.accumulate, ask))
}

/// Plans any step but the first on a dry mesh, and asks `ask` of it.
pub(super) fn steady(
    mesh: &Mesh,
    shape: &Shape,
    seed: u64,
    ask: &Ask,
) -> anyhow::Result<Explanation> {
    // However many microbatches the first has, it leaves the same behind.
    Ok(steps(mesh, shape, seed, Rows::default(), (1, ask))?.steady)
}

/// Plans two steps, the first one of `microbatches`.
fn steps(
    mesh: &Mesh,
    shape: &Shape,
    seed: u64,
    rows: Rows,
    (microbatches, ask): (usize, &Ask),
) -> anyhow::Result<Predicted> {
    let model = mesh.parallelize(shape.config.init(mesh.device()))?;
    let mut source = RandomTokens {
        batch: 0,
        seq: shape.seq,
        vocab: shape.config.vocab,
        rng: Rng::new(seed, 2),
        held: Held::all(0),
    };
    let next = |microbatches: usize| -> anyhow::Result<Batch> {
        source.batch = shape.batch / shape.accumulate * microbatches;
        source.held = Held::all(source.batch);
        let mut batch = source.next_batch()?;
        let num = batch.tokens.len();
        batch.weights = rows.weighted.then(|| vec![0.0; num]);
        batch.packed = rows.packed.then(|| PackedIds {
            documents: vec![0; num],
            positions: vec![0; num],
        });
        Ok(batch)
    };
    predict::steps(mesh, model, next, [microbatches, shape.accumulate], ask)
}

/// Returns the devices with what modules cost on `hardware`, if layers are cut into stages by that.
pub(super) fn costed(
    devices: &MeshArgs,
    shape: &Shape,
    seed: u64,
    hardware: &Hardware,
) -> anyhow::Result<MeshArgs> {
    let mut devices = devices.clone();
    let has_stages = |mesh: &MeshShape| mesh.pipeline_axis().is_some();
    if devices.pipeline.stages_by == StagesBy::Layers
        || !devices.forward.axes.mesh.as_ref().is_some_and(has_stages)
    {
        return Ok(devices);
    }
    let mut one = devices.clone();
    one.forward.axes.mesh = None;
    one.pipeline = PipelineArgs::default();
    let microbatch = Shape {
        batch: shape.batch / shape.accumulate,
        accumulate: 1,
        ..shape.clone()
    };
    let ask = Ask {
        hardware: Some(hardware.clone()),
        ..Ask::default()
    };
    let step = step(
        &Mesh::dry::<Llama>(&one)?,
        &microbatch,
        seed,
        Rows::default(),
        &ask,
    )?;
    devices.pipeline.costs = Some(ModuleCosts::new(&step.steady.simulations));
    Ok(devices)
}

/// Plans the making of one token for each of `rows` rows of `seq` positions, on a dry mesh.
pub(super) fn token(
    mesh: &Mesh,
    shape: &Shape,
    (rows, seq): (usize, usize),
) -> anyhow::Result<Explanation> {
    let device = mesh.device();
    let model = mesh.parallelize(shape.config.init(device))?;
    let model = model.valid();
    let device = &mesh.inference_device();
    let rows = vec![vec![0]; rows];
    let (result, plan) = mesh.explain(Ask::default(), || {
        next_tokens(&model, &rows, seq, 0, 0.0, &mut Rng::new(0, 0), device)
    })?;
    result.context("the model cannot be planned")?;
    Ok(plan)
}
