//! Training in one phase, from its data to its end: what most programs do.

use super::{Part, Session};
use crate::trainer::batch::BatchSource;
use crate::trainer::checkpoints::Keeper;
use crate::trainer::exit::End;
use crate::trainer::metrics::RunMetrics;
use crate::trainer::model::Model;
use crate::trainer::progress::Progress;
use crate::trainer::run::Trace;

/// The only phase of a run: its rows, and how it is shown.
pub struct OnePhase<'p, M: Model> {
    /// Its name, which checkpoints and the report have.
    pub name: &'static str,
    /// How many steps it has: see [`Session::steps`].
    pub steps: usize,
    /// Options that the program has chosen, beside those that the trainer knows.
    pub chosen: &'p [(&'p str, usize)],
    /// The rows to train on.
    pub source: &'p mut dyn BatchSource<Batch = M::Batch>,
    /// The rows that are held out, if some are.
    pub held_out: Option<HeldOutRows<'p, M::Batch>>,
    /// Shows how far it is, in place of the usual display.
    pub progress: Option<Progress>,
}

/// Rows that are held out, and how many batches they are.
pub type HeldOutRows<'h, B> = (Box<dyn BatchSource<Batch = B> + 'h>, usize);

impl<M: Model> Session<'_, M> {
    /// Trains in one phase, with the session's configuration, checkpoints and figures, does what the program does at
    /// the `end`, and writes what else the command line asks for.
    ///
    /// # Errors
    /// Those of data, steps and files; that of `end` comes after all else has been written.
    pub fn one_phase(
        &self,
        phase: OnePhase<'_, M>,
        mut keeper: Keeper,
        metrics: &RunMetrics,
        end: impl FnOnce(&M, &Trace) -> anyhow::Result<()>,
    ) -> anyhow::Result<End> {
        let steps = phase.steps;
        let chosen = [&[("steps", steps)], phase.chosen].concat();
        self.save_config(&mut keeper, metrics, &chosen)?;
        let held_out = phase.held_out;
        let validation = held_out.map(|(source, batches)| self.validation(source, batches));
        let part = Part {
            before: self.phase(phase.name),
            steps,
            validation: validation.transpose()?,
            progress: phase.progress,
        };
        let model = self.model(&mut keeper)?;
        let (model, trace) = self.train(model, part, phase.source, &mut keeper, metrics)?;
        let ended = end(&model, &trace);
        let report = self.report(phase.name, &Trace::default(), &trace)?;
        self.finish(&report, [ended, self.draw_memory()], &mut keeper)
    }
}
