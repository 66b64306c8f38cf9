//! The end of a training command: its report, and the files that it leaves.

use std::collections::BTreeMap;
use std::path::Path;

use super::Session;
use crate::train::run::RunFolder;
use crate::trainer::checkpoints::Keeper;
use crate::trainer::exit::End;
use crate::trainer::model::Model;
use crate::trainer::outputs::{draw_memory, save_chart, save_trace};
use crate::trainer::plot::{self, Curve};
use crate::trainer::report::{
    MeshSince, RankReport, Report, StepTimes, Traffic, ValidationLoss, Weights, write_json,
};
use crate::trainer::run::Trace;
use crate::trainer::voice::{complain, say, speaks};

impl<M: Model> Session<'_, M> {
    /// With `--memory`, draws what the fullest rank held.
    ///
    /// # Errors
    /// As [`draw_memory`].
    pub fn draw_memory(&self) -> anyhow::Result<()> {
        match (&self.args.output.memory, &self.predicted) {
            (Some(path), Some(plan)) => draw_memory(path, &self.job.name, &self.mesh, plan),
            _ => Ok(()),
        }
    }

    /// A report of what is known after training, of the ranks of all processes.
    ///
    /// # Errors
    /// If another process does not say what its ranks did.
    pub fn report(
        &self,
        command: &'static str,
        base: &Trace,
        trace: &Trace,
    ) -> anyhow::Result<Report> {
        let measured = if trace.losses.is_empty() { base } else { trace };
        let here = measured.ranks.iter().zip(&measured.times);
        let here: Vec<_> = here
            .map(|(memory, times)| RankReport {
                memory: memory.clone(),
                times: times.clone(),
            })
            .collect();
        let here = (here, measured.collectives.clone());
        let all = self.mesh.processes().gather(here)?;
        let mut collectives: BTreeMap<String, Traffic> = BTreeMap::new();
        for (kind, traffic) in all.iter().flat_map(|(_, collectives)| collectives) {
            collectives.entry(kind.clone()).or_default().add(traffic);
        }
        let ranks: Vec<RankReport> = all.into_iter().flat_map(|(ranks, _)| ranks).collect();
        let times: Vec<_> = ranks.iter().map(|rank| rank.times.clone()).collect();
        Ok(Report {
            command,
            world_size: self.mesh.world_size(),
            mesh: self.mesh.name(),
            meshes: match trace.meshes.is_empty() {
                true => &base.meshes,
                false => &trace.meshes,
            }
            .iter()
            .map(|(first_step, mesh)| MeshSince {
                first_step: *first_step,
                mesh: mesh.clone(),
            })
            .collect(),
            size: self.job.name.clone(),
            seed: self.step.seed,
            weights: self.job.weights.as_ref().map(|folder| Weights {
                from: folder.path.display().to_string(),
                verified: false,
            }),
            num_params: self.num_params,
            tokens_per_step: measured.tokens_per_step,
            step_flops: self.predicted.as_ref().map(|plan| plan.model_flops),
            interrupted: base.interrupted || trace.interrupted,
            pretrain_losses: base.losses.clone(),
            losses: trace.losses.clone(),
            validation_losses: trace
                .validation
                .iter()
                .map(|&(step, loss)| ValidationLoss { step, loss })
                .collect(),
            tokens_per_second: measured.tokens_per_second(),
            step_ms_median: measured.step_ms_median(),
            times: StepTimes::mean(&times),
            ranks,
            collectives,
            plan: self.mesh.plan(),
            redundancy: self.mesh.redundancy(),
            more: BTreeMap::new(),
        })
    }

    /// Writes what else the command line asks for: the report, the trace, the plot. All are tried, and all errors are
    /// printed, those of what has been `tried` already too; the first one is returned.
    ///
    /// # Errors
    /// If one of them cannot be written, or the last checkpoint was not.
    pub fn finish(
        &self,
        report: &Report,
        tried: impl IntoIterator<Item = anyhow::Result<()>>,
        keeper: &mut Keeper,
    ) -> anyhow::Result<End> {
        let folder = self.folder.as_ref();
        let (output, mesh) = (&self.args.output, &self.mesh);
        let json = output.json.clone();
        let json = match json.or(folder.map(RunFolder::report)) {
            Some(path) if speaks() => {
                let path = &path;
                write_json(path, report).inspect(|()| say!("report: {}", path.display()))
            }
            _ => Ok(()),
        };
        let trace = output.trace.as_ref();
        let trace = trace.map_or(Ok(()), |path| save_trace(path, mesh));
        let planned = self.predicted.as_ref();
        let chart = output.chart.as_ref();
        let chart = chart.map_or(Ok(()), |path| save_chart(path, mesh, planned));
        let path = output.plot.clone().or(folder.map(RunFolder::plot));
        let plot = match &path.unwrap_or_else(|| "loss.png".into()) {
            _ if output.no_plot || !speaks() => Ok(()),
            path => draw(path, report).inspect(|()| say!("plot: {}", path.display())),
        };
        let results = [json, trace, chart, plot].into_iter().chain(tried);
        let mut errors = results.filter_map(Result::err);
        let first = errors.next();
        errors.for_each(|error| complain(&error));
        if let Some(first) = first {
            return Err(first);
        }
        // Said by its saves already; what is returned decides the exit code.
        keeper.ended()?;
        if let (true, Some(how_to_resume)) = (report.interrupted, keeper.how_to_resume()) {
            say!("{how_to_resume}");
        }
        // Whoever was asked after the last step has done all.
        let code = self.stop.exit_code().filter(|_| report.interrupted);
        Ok(code.map_or(End::Done, End::Interrupted))
    }
}

fn draw(path: &Path, report: &Report) -> anyhow::Result<()> {
    let validation = report.validation_losses.iter();
    let validation: Vec<(usize, f32)> = validation.map(|held| (held.step, held.loss)).collect();
    let base = Curve {
        name: "pretrain",
        losses: &report.pretrain_losses,
        validation: &[],
    };
    let main = Curve {
        name: report.command,
        losses: &report.losses,
        validation: &validation,
    };
    let curves: Vec<Curve<'_>> = [base, main]
        .into_iter()
        .filter(|curve| !curve.losses.is_empty())
        .collect();
    plot::write(path, &title(report), &curves)
}

/// The model, and the meshes it was trained on: `tiny on mesh fsdp=2, from step 21 on mesh tp=2`.
fn title(report: &Report) -> String {
    let on = report.meshes.iter().map(|since| match since {
        MeshSince {
            first_step: 1,
            mesh,
        } => format!("on mesh {mesh}"),
        MeshSince { first_step, mesh } => format!("from step {first_step} on mesh {mesh}"),
    });
    format!("{} {}", report.size, on.collect::<Vec<_>>().join(", "))
}
