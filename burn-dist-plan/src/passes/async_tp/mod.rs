//! Products beside the transfers that they wait for: async tensor parallelism.
//!
//! | what | what becomes of it on the p ranks of an axis |
//! | --- | --- |
//! | all-gather of x, products of it | every rank shifts its own block of x to the others. It computes the rows of its own block first, then those of each block as it arrives |
//! | product, reduce-scatter of it | every rank computes the rows of one other rank after the other, its own last, and shifts them there while it computes the next ones |
//!
//! A rank receives as many bytes as before. What arrives of a sum is added in the one order of sums, so that no value
//! changes: the steps of a rank are those of `lower/chunks.rs`.
//!
//! Products that sum over the dim along which their operand is gathered stay as they are, and so does what is gathered
//! or scattered over several nodes.
//!
//! Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
//! Models" (ASPLOS 2023), section 5.

mod find;
mod report;

use std::sync::Arc;

use super::{Context, Report, State};
use crate::cost::{DeviceCosts, Network, work_ns};
use crate::error::PlanError;
use crate::facts::Visits;
use crate::ir::{Chunked, LocalStep, Move, OnNodes, Op, Program, ProgramStep, Slot};
use crate::layout::redistribute::StepKind;
use crate::mesh::{Axis, AxisIndex, AxisRole, MeshShape, Rank, Topology};
use crate::policy::AsyncTp;
use find::{Flow, Found, Site};

pub use report::Overlap;

/// The axes of a mesh along which chunks may be shifted, and when they are.
struct Pass<'a> {
    mesh: &'a MeshShape,
    topology: &'a Topology,
    /// See [`PlanOptions::device_costs`](crate::PlanOptions::device_costs).
    devices: Option<&'a DeviceCosts>,
    network: Network<'a>,
    visits: &'a Visits,
}

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let &Context { mesh, options, .. } = context;
    let mut report = Report::default();
    let mut axes = mesh.model_axes().into_iter();
    if !axes.any(|axis| mesh.size(axis) > 1) {
        return Ok(report);
    }
    let (topology, devices) = (&options.topology, options.device_costs.as_ref());
    let pass = Pass {
        mesh,
        topology,
        devices,
        network: Network::new(mesh, &options.links, topology).or_devices(devices),
        visits: &state.visits,
    };
    for program in &mut state.programs {
        report.overlaps.extend(pass.run(program));
    }
    Ok(report)
}

impl Pass<'_> {
    /// Puts what is computed in chunks into a program, and tells of each collective along a tensor-parallel axis what
    /// became of it.
    fn run<O: Op>(&self, program: &mut Program<O>) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        let mut flow = Flow::new(program);
        for index in 0..program.steps.len() {
            let ProgramStep::Move(moved) = &program.steps[index] else {
                continue;
            };
            let Some((kind, axes)) = along(moved) else {
                continue;
            };
            let is_model = |axis: &AxisIndex| self.mesh.role(*axis).splits_model();
            if !axes.iter().all(is_model) {
                continue;
            }
            let names: Vec<&str> = axes.iter().map(|axis| self.mesh.name(*axis)).collect();
            let found = self.chunked(program, &flow, (index, moved, axes));
            let overlap = Overlap {
                kind,
                axis: names.join(","),
                path: moved.path.as_deref().map(str::to_string),
                whole: found.as_ref().err().copied().flatten(),
            };
            match found {
                Ok(found) => flow.take(found),
                // Nobody asked for it.
                Err(None) => continue,
                Err(Some(_)) => {}
            }
            overlaps.push(overlap);
        }
        flow.apply(program);
        overlaps
    }

    /// Returns what is computed in chunks beside the collective at `index`, or why nothing is; `None` if policies do
    /// not want it.
    fn chunked<O: Op>(
        &self,
        program: &Program<O>,
        flow: &Flow<O>,
        (index, moved, axes): (usize, &Move, &[AxisIndex]),
    ) -> Result<Found<O>, Option<&'static str>> {
        // As the unit asks that computes with it.
        let slot = match moved.step.kind {
            StepKind::AllGather { .. } => flow.made_of(program, moved.to).unwrap_or(moved.to),
            _ => moved.from,
        };
        let value = program.slots[slot as usize].value;
        let asked = program.values[value as usize].owner.policy.async_tp;
        if asked == AsyncTp::Off {
            return Err(None);
        }
        let [axis] = *axes else {
            return Err(Some("it goes along several axes"));
        };
        let group = self.mesh.group_of(Rank(0), &[axis]);
        let mut devices = self.devices.iter().filter(|_| asked == AsyncTp::Auto);
        let spans = self.topology.spans(&group) || devices.any(|devices| devices.spans(&group));
        if moved.on_nodes != OnNodes::OneLevel || spans {
            return Err(Some("it goes over several nodes"));
        }
        if asked == AsyncTp::Auto && !self.network.is_known(axis) {
            return Err(Some("nothing is known of its link"));
        }
        let site = Site {
            program,
            flow,
            index,
            moved,
            axis,
            chunks: self.chunks(axis),
            mesh: self.mesh,
            visits: self.visits,
            visit: self.visits.of(moved.at),
        };
        let found = match &moved.step.kind {
            StepKind::AllGather { .. } => site.gathered()?,
            _ => site.scattered()?,
        };
        if asked == AsyncTp::Auto && !self.pays(program, &found.chunked) {
            return Err(Some("in chunks it would take longer"));
        }
        Ok(found)
    }

    /// Returns the mesh with an axis of chunks behind its own, as many as `axis` has ranks.
    fn chunks(&self, axis: AxisIndex) -> Arc<MeshShape> {
        let mut name = "chunk".to_string();
        while self.mesh.axis(&name).is_ok() {
            name.push('s');
        }
        let chunks = Axis::with_role(name, self.mesh.size(axis), AxisRole::Model);
        let axes = self.mesh.axes().iter().cloned().chain([chunks]);
        let mesh = MeshShape::with_roles(axes.collect());
        Arc::new(mesh.expect("a mesh of as many chunks as there are ranks along an axis"))
    }

    /// Returns whether it takes less time in chunks.
    fn pays<O: Op>(&self, program: &Program<O>, chunked: &Chunked<O>) -> bool {
        let bytes = |slot: Slot| {
            let info = &program.slots[slot as usize];
            (info.layout.local_numel_max(self.mesh) * info.dtype.size()) as f64
        };
        let made: f64 = chunked.made().map(bytes).sum();
        let copied = match chunked.gathers() {
            // Results are put together, and where it is needed whole, what was gathered.
            true if chunked.keeps_whole => made + bytes(chunked.moved.to),
            true => made,
            // Operands are cut, and what arrives is added.
            false => chunked.cut().map(bytes).sum::<f64>() + bytes(chunked.moved.from),
        };
        let flops: f64 = chunked.steps.iter().map(|step| self.flops(step)).sum();
        let compute = work_ns(flops, made);
        let dtype = program.slots[chunked.moved.to as usize].dtype;
        let received = chunked
            .moved
            .step
            .step_bytes(self.mesh, Rank(0), dtype.size()) as f64;
        let parts = self.mesh.size(chunked.axis) as u64;
        let transfer = self
            .network
            .transfer_ns(&[chunked.axis], parts - 1, received);
        if let Some(devices) = self.devices {
            let product = |step: &LocalStep<O>, parts: f64| {
                let elem_bytes = match step.op.multiplies_float8() {
                    true => 1,
                    false => step.op.inputs().next().map_or(4, |x| x.dtype.size()),
                };
                parts * devices.product_ns(self.flops(step) / parts, elem_bytes)
            };
            let products = |parts: f64| -> f64 {
                let steps = chunked.steps.iter();
                let steps = steps.filter(|step| step.op.product_flops().is_some());
                steps.map(|step| product(step, parts)).sum()
            };
            let (whole, cut) = (products(1.0), products(parts as f64));
            let in_chunks = cut.max(transfer + cut / parts as f64);
            return in_chunks + devices.copy_ns(copied) < transfer + whole;
        }
        // Either all chunks are computed, or one is before or after all that the link brings.
        let in_chunks = compute.max(transfer + compute / parts as f64);
        in_chunks + work_ns(0.0, copied) < transfer + compute
    }

    /// Returns the flops that a rank spends on an operation, all chunks together.
    fn flops<O: Op>(&self, step: &LocalStep<O>) -> f64 {
        let (Some(flops), Some(out)) = (step.op.product_flops(), step.outputs.first()) else {
            return 0.0;
        };
        let split = out.dims.iter().flat_map(|dim| dim.axes());
        let terms = out.partial.iter().map(|partial| partial.axis);
        let axes = split
            .chain(terms)
            .filter(|axis| usize::from(axis.0) < self.mesh.num_axes());
        flops / self.mesh.group_size(&axes.collect::<Vec<_>>()) as f64
    }
}

/// Returns the name and the axes of a collective that may be done by shifts.
fn along(moved: &Move) -> Option<(&'static str, &[AxisIndex])> {
    match &moved.step.kind {
        StepKind::AllGather { axes, .. } | StepKind::ReduceScatter { axes, .. } => {
            Some((moved.step.kind.name(), axes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
