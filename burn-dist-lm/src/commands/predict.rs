//! The work and memory of a step, known before it runs: planned on a mesh that executes nothing.

use burn::module::Module;
use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Context;
use burn_dist::clock::{Hardware, ModuleCosts};
use burn_dist::explanation::Ask;
use burn_dist::explanation::{MemoryClass, MemoryPlan};
use burn_dist::layout::Rows as Held;
use burn_dist::mesh::MeshShape;

use super::session::Shape;
use crate::cli::{MeshArgs, PipelineArgs, StagesBy};
use crate::data::batch::{Batch, BatchSource, PackedIds, RandomTokens};
use crate::data::rng::Rng;
use crate::generate::next_tokens;
use crate::mesh::{Explanation, Mesh};
use crate::optimizer::optimizer;
use crate::report::bytes_text;
use crate::train::{self, Recipe};

/// The work and memory of the steps of a run.
#[derive(Debug, Clone)]
pub(super) struct Predicted {
    /// Memory of the first, which makes the parameters and the optimizer's state.
    pub(super) first: Vec<MemoryPlan>,
    /// Every later one.
    pub(super) steady: Explanation,
}

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
    let device = mesh.device();
    let mut model = mesh.parallelize(shape.config.init(device))?;
    let mut source = RandomTokens {
        batch: 0,
        seq: shape.seq,
        vocab: shape.config.vocab,
        rng: Rng::new(seed, 2),
        held: Held::all(0),
    };
    let mut next = |microbatches: usize| -> anyhow::Result<Batch> {
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
    let mut optim = optimizer();
    let mut plan = |model, (microbatches, ask): (usize, &Ask)| {
        let batch = next(microbatches)?;
        let recipe = Recipe {
            accumulate: microbatches,
            ..Recipe::default()
        };
        let (result, plan) = mesh.explain(ask.clone(), || {
            let hold = mesh.hold();
            let (model, loss) = train::step_with(model, &mut optim, &batch, recipe, 1e-4, device);
            drop(hold);
            loss.try_into_data().map(|_| model)
        })?;
        let model = result.context("the step cannot be planned")?;
        anyhow::Ok((model, plan))
    };
    let first;
    (model, first) = plan(model, (microbatches, &Ask::default()))?;
    // The second is like all later ones.
    let (_model, steady) = plan(model, (shape.accumulate, ask))?;
    Ok(Predicted {
        first: first.memory,
        steady,
    })
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
    let step = step(&Mesh::dry(&one)?, &microbatch, seed, Rows::default(), &ask)?;
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

/// Memory of the ranks as a table: what they hold when they hold most, and the most of each class; ranks with equal
/// lines share their rows.
pub(super) fn table(memory: &[MemoryPlan]) -> String {
    let mut text = format!("memory of a step, as planned\n{:>8} {:>10}", "rank", "peak");
    for class in MemoryClass::ALL {
        let _ = write!(text, " {:>10}", class.name());
    }
    text += "  at\n";
    let mut rows: Vec<(String, Vec<usize>)> = Vec::new();
    for (rank, plan) in memory.iter().enumerate() {
        let cells = |bytes: &BTreeMap<MemoryClass, u64>| {
            let bytes = MemoryClass::ALL.map(|class| bytes.get(&class).copied().unwrap_or(0));
            bytes
                .map(|bytes| format!(" {:>10}", bytes_text(bytes)))
                .concat()
        };
        let row = format!(
            "{:>10}{}  {}\n{:>8} {:>10}{}  each by itself",
            bytes_text(plan.peak_bytes),
            cells(&plan.peak_by_class),
            plan.peak_cause,
            "",
            "at most",
            cells(&plan.class_peaks)
        );
        match rows.iter_mut().find(|(same, _)| *same == row) {
            Some((_, ranks)) => ranks.push(rank),
            None => rows.push((row, vec![rank])),
        }
    }
    for (row, ranks) in rows {
        let runs = ranks.chunk_by(|one, next| one + 1 == *next);
        let runs: Vec<String> = runs
            .map(|run| match run {
                [first, .., last] => format!("{first}..{last}"),
                run => run.iter().map(usize::to_string).collect(),
            })
            .collect();
        let _ = writeln!(text, "{:>8} {row}", runs.join(","));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_are_alike_share_a_row() {
        let plan = |peak_bytes| MemoryPlan {
            peak_bytes,
            ..MemoryPlan::default()
        };
        let text = table(&[plan(1024), plan(1024), plan(2048)]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert!(
            rows[0].contains("0..1") && rows[0].contains("1.0 KiB"),
            "{text}"
        );
        assert!(rows[1].contains("at most"), "{text}");
        assert!(
            rows[2].contains(" 2 ") && rows[2].contains("2.0 KiB"),
            "{text}"
        );
        assert_eq!(rows.len(), 4);
    }
}
