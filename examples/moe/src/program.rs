//! The program: options of the model, its rows, and texts about it.

use burn_dist::mesh::MeshShape;
use burn_dist::trainer::args::{MixtureArgs, StepArgs};
use burn_dist::trainer::job::{Job, StepRows};
use burn_dist::trainer::progress::{Shown, Text};
use burn_dist::trainer::task::{Rows, Task};
use clap::Args;

use crate::data::{Batch, Ciphers};
use crate::model::{Config, Decoder};
use crate::train::Figures;

/// The model.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Axes that experts are split over in the place of ep, the first major: fsdp, or fsdp,cp.
    #[arg(long, value_name = "AXES")]
    pub experts_over: Option<String>,
    /// The experts of each block.
    #[command(flatten)]
    pub mixture: MixtureArgs,
    /// Width of the residual.
    #[arg(long, default_value_t = Config::default().mixture.width)]
    pub width: usize,
    /// Number of blocks.
    #[arg(long, default_value_t = Config::default().layers)]
    pub layers: usize,
    /// Heads of attention.
    #[arg(long, default_value_t = Config::default().heads)]
    pub heads: usize,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 32)]
    pub seq: usize,
}

impl Task for Options {
    type Model = Decoder;

    const MESH: Option<&'static str> = Some("ep=2");
    const STEPS: usize = 200;
    const BATCH: usize = 16;
    const PEAK: f64 = 5e-3;
    const LOG_EVERY: usize = 20;
    const HELP: &'static [(&'static str, &'static str)] = &[(
        "mesh",
        "Axes of the mesh, such as ep=4 or fsdp=2,ep=2; experts are split over ep: ep=2 by default",
    )];

    fn config(&self, _: &StepArgs) -> anyhow::Result<Config> {
        let config = Config {
            layers: self.layers,
            heads: self.heads,
            mixture: self.mixture.config(self.width, self.seq)?,
            experts_over: self.experts_over.clone(),
            ..Config::default()
        };
        config.validate()?;
        Ok(config)
    }

    fn name(&self) -> String {
        format!("{} experts", self.mixture.experts)
    }

    fn each(&self) -> (usize, &'static str) {
        (self.seq, "tokens")
    }

    fn rows(&self, seed: u64) -> Rows<Batch> {
        let (ciphers, seq) = (Ciphers::new(seed), self.seq);
        let name = format!("ciphers of seed {seed}, rows of {seq}");
        Rows::new(&name, move |numbers| ciphers.rows(numbers, seq))
    }

    /// The slots of experts, and what the empty ones cost.
    fn introduction(&self, job: &Job<Decoder>) -> Option<String> {
        let mixture = &job.config.mixture;
        let tokens = self.seq / mixture.groups;
        Some(format!(
            "{} experts, {} of them for each token, {} slot(s) of each for every {tokens} tokens: {:.2} times the work \
             of the chosen pairs",
            mixture.experts,
            mixture.top_k,
            mixture.slots(tokens),
            mixture.padding(self.seq)
        ))
    }

    /// The part of a step that is tokens sent to experts and back.
    fn about(&self, job: &Job<Decoder>, mesh: &MeshShape) -> anyhow::Result<String> {
        let axes = match &self.experts_over {
            Some(over) => mesh.group(over)?,
            None => mesh.expert_axes(),
        };
        let parts = mesh.group_size(&axes);
        let rows = (job.rows.batch, self.seq);
        let bytes = job
            .config
            .mixture
            .exchanged_bytes(rows, parts, size_of::<f32>());
        Ok(format!(
            "{}, over {parts} rank(s)\ntokens on their way: {bytes} bytes over all ranks for each of dispatch and \
             combine, forward and backward, in each of {} block(s)",
            self.introduction(job).unwrap_or_default(),
            self.layers
        ))
    }

    fn line(&self, job: &Job<Decoder>) -> Option<Text> {
        let (config, rows) = (job.config.clone(), job.rows);
        Some(Box::new(move |shown| line(shown, &config, rows)))
    }
}

/// The figures of a step, as text: of the load, the share that each expert of the first block was chosen for.
fn line(shown: &Shown<'_>, config: &Config, rows: StepRows) -> String {
    let figures = Figures::of(shown.loss, shown.figures);
    let pairs = (rows.batch * rows.each * config.mixture.top_k) as f32;
    let dropped = figures.dropped / (pairs * config.layers as f32);
    let load = figures.load.iter();
    let load = load.map(|chosen| format!("{:.0}", 100.0 * chosen / pairs));
    format!(
        "step {:>5}  loss {:.4}  cross entropy {:.4}  balance {:.3}  dropped {:.1} %  load {} %  {:.0} tokens/s",
        shown.done,
        figures.loss,
        figures.cross_entropy,
        figures.balance,
        100.0 * dropped,
        load.collect::<Vec<_>>().join("/"),
        shown.tokens_per_second
    )
}

#[cfg(test)]
mod tests {
    use burn_dist::trainer::command_line::CommandLine;
    use burn_dist::trainer::program::Program;
    use burn_dist::trainer::task::Line;

    use super::*;

    #[test]
    fn every_option_stands_in_a_section() {
        let config = Line::<Options>::config(Program::default());
        assert_eq!(config.faults(), Vec::<String>::new());
    }
}
