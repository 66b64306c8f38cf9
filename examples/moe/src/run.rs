//! A run from the command line: its sizes, and what is printed of its steps.

use anyhow::Context;
use burn_dist::DeviceMesh;
use burn_dist::launch::Stop;
use burn_dist::trainer::checkpoints::{Keeper, SoFar};
use burn_dist::trainer::exit::End;
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::metrics::RunMetrics;
use burn_dist::trainer::progress::Progress;
use burn_dist::trainer::run::{self, Phase};
use burn_dist::trainer::schedule::{Decay, Schedule};
use burn_dist::trainer::step::Recipe;
use burn_dist::trainer::voice::say;

use crate::cli::TrainArgs;
use crate::data::Rows;
use crate::mesh::parallelize;
use crate::model::Config;
use crate::train::{Figures, OPTIMIZER};

/// Trains.
///
/// # Errors
/// If sizes do not fit, a rank fails, or the loss is no longer a number.
pub fn run(args: &TrainArgs) -> anyhow::Result<End> {
    let model = &args.model;
    let config = model.config()?;
    let mesh = DeviceMesh::builder().axes(&model.mesh).build()?;
    let device = mesh.device().autodiff();
    device.seed(model.seed);
    let decoder = config.init(&device);
    let decoder = parallelize(decoder, &mesh, model.experts_over.as_deref())?;
    let mesh = Mesh::of(mesh)?;
    let stop = Stop::on_signals().context("cannot listen for Ctrl-C and SIGTERM")?;

    say!(
        "mesh {}: {} experts, {} of them for each token, {} slot(s) of each for every {} tokens: {:.2} times the work \
         of the chosen pairs",
        model.mesh,
        config.experts,
        config.top_k,
        config.slots(model.seq / config.groups),
        model.seq / config.groups,
        config.padding(model.seq)
    );
    let tokens = model.batch * model.seq;
    let progress = Progress::lines(args.steps, args.every as usize, move |shown| {
        let figures = Figures::of(shown.loss, shown.figures);
        let line = line(&figures, &config, tokens);
        let (step, speed) = (shown.done, shown.tokens_per_second);
        format!("step {step:>5}  {line}  {speed:.0} tokens/s")
    });
    let phase = Phase {
        schedule: Schedule {
            warm_up: 0,
            decay: Decay::Constant,
            ..Schedule::new(args.lr, args.steps)
        },
        recipe: Recipe {
            optimizer: OPTIMIZER,
            ..Recipe::default()
        },
        progress: &progress,
        stop: &stop,
        before: &SoFar::of("train"),
        validation: None,
        metrics: &RunMetrics::none(),
    };
    let rows = &mut Rows::new(model.seed, model.batch, model.seq);
    let (_, trace) = run::run(
        decoder,
        rows,
        phase,
        mesh.device(),
        &mesh,
        &mut Keeper::none(),
    )?;
    let code = stop.exit_code().filter(|_| trace.interrupted);
    Ok(code.map_or(End::Done, End::Interrupted))
}

/// The figures of a step of `tokens`, as text: of the load, the share that each expert of the first block was chosen for.
fn line(figures: &Figures, config: &Config, tokens: usize) -> String {
    let pairs = (tokens * config.top_k) as f32;
    let dropped = figures.dropped / (pairs * config.layers as f32);
    let load: Vec<String> = figures
        .load
        .iter()
        .map(|chosen| format!("{:.0}", 100.0 * chosen / pairs))
        .collect();
    format!(
        "loss {:.4}  cross entropy {:.4}  balance {:.3}  dropped {:.1} %  load {} %",
        figures.loss,
        figures.cross_entropy,
        figures.balance,
        100.0 * dropped,
        load.join("/")
    )
}
