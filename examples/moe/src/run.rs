//! A run from the command line: steps until they are done or a signal, and what is printed of them.

use std::time::Instant;

use anyhow::{Context, ensure};
use burn_dist::DeviceMesh;
use burn_dist::launch::Stop;

use crate::cli::TrainArgs;
use crate::data::Ciphers;
use crate::mesh::parallelize;
use crate::model::Config;
use crate::train::{self, Figures};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It took all steps.
    Done,
    /// Ctrl-C or SIGTERM ended it early; with the exit code of that.
    Interrupted(u8),
}

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
    let mut decoder = parallelize(decoder, &mesh, model.experts_over.as_deref())?;
    let stop = Stop::on_signals().context("cannot listen for Ctrl-C and SIGTERM")?;

    println!(
        "mesh {}: {} experts, {} of them for each token, {} slot(s) of each for every {} tokens: {:.2} times the work \
         of the chosen pairs",
        model.mesh,
        config.experts,
        config.top_k,
        config.slots(model.seq / config.groups),
        model.seq / config.groups,
        config.padding(model.seq)
    );
    let mut optim = train::optimizer();
    let mut ciphers = Ciphers::new(model.seed);
    let (mut start, mut since) = (Instant::now(), 0);
    for number in 1..=args.steps {
        let batch = ciphers.batch(model.batch, model.seq);
        let (next, figures) = train::step(decoder, &mut optim, &batch, args.lr, &device);
        decoder = next;
        let figures = Figures::read(figures).with_context(|| format!("step {number} failed"))?;
        let advice = match number {
            1 => "no weight has been changed yet, so --lr is not the cause".to_string(),
            _ => format!("lower --lr (now {})", args.lr),
        };
        ensure!(
            figures.loss.is_finite(),
            "the loss of step {number} is {}: {advice}",
            figures.loss
        );
        since += 1;
        let interrupted = stop.exit_code();
        let is_last = number == args.steps || interrupted.is_some();
        if number == 1 || number % args.every as usize == 0 || is_last {
            let tokens = (since * model.batch * model.seq) as f64;
            let speed = tokens / start.elapsed().as_secs_f64();
            println!(
                "step {number:>5}  {}  {speed:.0} tokens/s",
                line(&figures, &config, model.batch * model.seq)
            );
            (start, since) = (Instant::now(), 0);
        }
        if let Some(code) = interrupted {
            println!("stopped after step {number}");
            return Ok(End::Interrupted(code));
        }
    }
    Ok(End::Done)
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
