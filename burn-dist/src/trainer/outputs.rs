//! Drawings and traces that a run leaves when they are asked for.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::mesh::{Explanation, Mesh};
use super::plot::{self, MemoryPlot};
use super::report::bytes_text;
use super::voice::out;
use crate::clock::Simulation;
use crate::schedule::Timeline;
use crate::train::files::write_whole;

/// Refuses a chart of a mesh that has nothing to draw.
///
/// # Errors
/// If the mesh has no stages.
pub fn check_chart(chart: Option<&PathBuf>, mesh: &Mesh) -> anyhow::Result<()> {
    if chart.is_some() && !mesh.has_stages() {
        bail!(
            "--chart draws stages, and the mesh {} has none: try --mesh pp=2",
            mesh.name()
        );
    }
    Ok(())
}

/// Draws timelines of stages.
///
/// # Errors
/// If the file cannot be written.
pub fn draw_chart(path: &Path, timelines: &[(&str, &Timeline)]) -> anyhow::Result<()> {
    let drawn = Timeline::svg_of(timelines);
    let written = write_whole(path, |to| to.write_all(drawn.as_bytes()));
    written.with_context(|| format!("cannot write the chart {}", path.display()))
}

/// The name of a file that every process writes: `trace.json`, `trace-1.json`, `trace-2.json`.
fn of_process(path: &Path, process: usize) -> PathBuf {
    if process == 0 {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{process}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Writes what the ranks of this process did when, in a file of its own.
///
/// # Errors
/// If it cannot be written.
pub fn save_trace(path: &Path, mesh: &Mesh) -> anyhow::Result<()> {
    let path = of_process(path, mesh.processes().process());
    let left_out = mesh.save_trace(&path)?;
    if left_out > 0 {
        out!("the trace shows the first steps; {left_out} later events did not fit");
    }
    out!("trace: {}", path.display());
    Ok(())
}

/// Draws when the ranks of this process worked on which microbatch, below what was planned.
///
/// # Errors
/// If it cannot be written.
pub fn save_chart(path: &Path, mesh: &Mesh, planned: Option<&Explanation>) -> anyhow::Result<()> {
    let path = of_process(path, mesh.processes().process());
    let simulations = planned.iter().flat_map(|plan| &plan.simulations);
    let planned = simulations.filter_map(Simulation::pipeline).next();
    let measured = mesh.pipeline();
    let named = [("planned, on h100", &planned), ("measured", &measured)];
    let timelines = named
        .iter()
        .filter_map(|(name, of)| Some((*name, of.as_ref()?)));
    draw_chart(&path, &timelines.collect::<Vec<_>>())?;
    out!("chart: {}", path.display());
    Ok(())
}

/// Draws what the fullest rank held, and what the plan predicted: in the process that has this
/// rank.
///
/// # Errors
/// If the file cannot be written, or another process does not say what its ranks held.
pub fn draw_memory(
    path: &Path,
    model: &str,
    mesh: &Mesh,
    plan: &Explanation,
) -> anyhow::Result<()> {
    let here = mesh.accounted();
    let peaks = here.iter().map(|(rank, held)| (*rank, held.peak.total()));
    let all = mesh.processes().gather(peaks.collect::<Vec<_>>())?;
    let Some((rank, _)) = all.into_iter().flatten().max_by_key(|(_, peak)| *peak) else {
        bail!("no step has run: there is no memory to draw");
    };
    let Some((_, held)) = here.iter().find(|(here, _)| *here == rank) else {
        return Ok(());
    };
    let cause = held.peak_cause.to_string();
    let title = format!(
        "{} on mesh {}: rank {rank} holds {} at most",
        model,
        mesh.name(),
        bytes_text(held.peak.total())
    );
    let drawing = MemoryPlot {
        title: &title,
        held: &held.timeline,
        predicted: plan.timelines.get(rank),
        cause: &cause,
    };
    plot::write_memory(path, &drawing)?;
    out!("memory: {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_a_file_of_its_own() {
        let name = |path: &str, process| of_process(Path::new(path), process);
        assert_eq!(name("out/trace.json", 0), Path::new("out/trace.json"));
        assert_eq!(name("out/trace.json", 12), Path::new("out/trace-12.json"));
        assert_eq!(name("trace", 1), Path::new("trace-1"));
    }
}
