//! A training step, planned and not run.

use burn::tensor::Device;
use burn_dist::clock::{Hardware, Simulation};
use burn_dist::explanation::Explanation;
use burn_dist::mesh::MeshShape;
use burn_dist::{DeviceMesh, DeviceMeshBuilder};

use crate::cli::{ExplainArgs, ModelArgs};
use crate::data::Ciphers;
use crate::mesh::parallelize;
use crate::model::Config;
use crate::train;

/// Runs `look` on a steady step of a model on a mesh where nothing is computed: the first step makes the parameters and
/// the optimizer's state.
///
/// # Errors
/// If the mesh cannot be, the model does not fit it, or `look` returns one.
pub fn steady<T>(
    mesh: DeviceMeshBuilder,
    config: &Config,
    over: Option<&str>,
    (batch, seq): (usize, usize),
    look: impl FnOnce(&Device, &mut dyn FnMut()) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mesh = mesh.dry_run().build()?;
    let device = mesh.device().autodiff();
    let mut model = Some(parallelize(config.init(&device), &mesh, over)?);
    let mut optim = train::OPTIMIZER.init();
    let mut ciphers = Ciphers::new(0);
    let mut step = || {
        let batch = ciphers.batch(batch, seq);
        let before = model.take().expect("a step leaves a model");
        let (next, figures) = train::step(before, &mut optim, &batch, 1e-3, &device);
        model = Some(next);
        figures.into_data();
    };
    step();
    look(&device, &mut step)
}

/// Returns the plan of a steady step of `(batch, seq)`.
///
/// # Errors
/// If the mesh cannot be, or the model does not fit it.
pub fn step(
    mesh: DeviceMeshBuilder,
    config: &Config,
    over: Option<&str>,
    sizes: (usize, usize),
) -> anyhow::Result<Explanation> {
    steady(mesh, config, over, sizes, |device, step| {
        Ok(burn_dist::explain(device, step).1)
    })
}

/// Returns how long a steady step takes on modelled hardware.
///
/// # Errors
/// Those of [`step`], and if the hardware does not fit the mesh.
pub fn simulate(
    mesh: DeviceMeshBuilder,
    config: &Config,
    over: Option<&str>,
    sizes: (usize, usize),
    hardware: &Hardware,
) -> anyhow::Result<Vec<Simulation>> {
    steady(mesh, config, over, sizes, |device, step| {
        Ok(burn_dist::simulate(device, hardware, step)?.1)
    })
}

/// Number of ranks that share the experts.
fn parts(args: &ModelArgs) -> anyhow::Result<usize> {
    let axes = match &args.experts_over {
        Some(over) => args.mesh.group(over)?,
        None => args.mesh.expert_axes(),
    };
    Ok(args.mesh.group_size(&axes))
}

/// Prints the plan, and what of it is tokens that are sent to experts and back.
///
/// # Errors
/// If the sizes do not fit, or the mesh cannot be.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let model = &args.model;
    let config = model.config()?;
    let mesh = DeviceMesh::builder().axes(&model.mesh);
    let (over, sizes) = (model.experts_over.as_deref(), (model.batch, model.seq));
    let explanation = match &args.after {
        None => step(mesh, &config, over, sizes)?,
        Some(pass) => steady(mesh, &config, over, sizes, |device, step| {
            Ok(burn_dist::explain_after(device, pass, step)?.1)
        })?,
    };
    println!("{explanation}");
    let parts = parts(model)?;
    let bytes = config.exchanged_bytes(model.batch, model.seq, parts, size_of::<f32>());
    println!(
        "experts: {} over {parts} rank(s), {} slot(s) each in each of {} group(s); {:.2} times the work of the chosen \
         pairs",
        config.experts,
        config.slots(model.seq / config.groups),
        config.groups * model.batch,
        config.padding(model.seq)
    );
    println!(
        "tokens on their way: {bytes} bytes over all ranks for each of dispatch and combine, forward and backward, in \
         each of {} block(s)",
        config.layers
    );
    if let Some(hardware) = &args.hardware {
        let takes = |mesh: &MeshShape, over| -> anyhow::Result<f64> {
            let mesh = DeviceMesh::builder().axes(mesh);
            let windows = simulate(mesh, &config, over, sizes, hardware)?;
            Ok(windows.iter().map(Simulation::step_s).sum())
        };
        let one = takes(&MeshShape::parse("1")?, None)?;
        let all = takes(&model.mesh, over)?;
        let ideal = one / model.mesh.num_ranks() as f64;
        println!(
            "on {}: {:.3} ms a step, {:.3} ms on one rank; an even share of that is {:.3} of the time",
            hardware.name,
            1e3 * all,
            1e3 * one,
            ideal / all
        );
    }
    for text in &explanation.after {
        println!("\n{text}");
    }
    Ok(())
}
