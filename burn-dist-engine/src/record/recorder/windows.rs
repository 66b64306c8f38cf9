//! The end of a window: what was recorded is planned, and the plan handed to the ranks.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use burn_ir::{BackendIr, ScalarIr, TensorId, TensorIr};
use rustc_hash::FxHasher;

use super::{Live, Recorder, ValueName};
use crate::burn::data::*;
use crate::comm::{PartPrint, WindowPrint};
use crate::layout::{Rows, repeated};
use crate::ops::{check_known, on_bytes};
#[cfg(any(test, feature = "text-form"))]
use crate::plan::check_form;
use crate::plan::{
    Entry, Float8Layer, Input, InputState, PlanError, PlanOptions, Redundancy, Regions, Window,
    explain_plan, plan, simulate, text_after, why,
};
use crate::record::canonical::canonicalize;
use crate::record::hold_note::HoldNote;
use crate::record::log::Taken;
use crate::run::{Fault, HostValue, ReadTicket, RunArgs};
use crate::warn::warn;

/// Windows remembered as known to other processes; the digests of forgotten ones are sent again.
const KNOWN_MAX: usize = 1 << 16;

/// Hashes what a window is bound to: scalars, values of earlier windows, and data that enters; and the option of the
/// mesh that decides by which functions it is computed.
fn hash_values(
    scalars: &[ScalarIr],
    names: &[ValueName],
    host: &[HostValue],
    regions: Regions,
) -> u64 {
    let mut hasher = FxHasher::default();
    regions.hash(&mut hasher);
    scalars.hash(&mut hasher);
    names.hash(&mut hasher);
    for value in host.iter().filter(|value| value.rows.is_none()) {
        value.data.bytes().hash(&mut hasher);
    }
    hasher.finish()
}

impl<B: BackendIr> Recorder<B> {
    /// Runs all that is recorded, because the program asks for it.
    pub(super) fn flush_all(&mut self) {
        if !self.log.ops().is_empty()
            && let Some(note) = self.holds.first().cloned()
        {
            self.warn_of_hold(&note, "a sync, a report or a seed");
        }
        let taken = self.log.take_all();
        self.program_waits(taken.ops.len());
        self.flush(taken, Vec::new());
    }

    /// Runs what `tensor` needs, and all that the calling thread has recorded.
    pub(super) fn flush_needed(&mut self, tensor: &TensorIr) {
        let taken = self.log.take_for(std::slice::from_ref(tensor));
        self.program_waits(taken.ops.len());
        self.flush(taken, Vec::new());
    }

    /// Runs what `reads` need, and all that the calling thread has recorded.
    pub(super) fn flush_for(&mut self, reads: Vec<TensorIr>) -> Vec<ReadTicket> {
        let taken = self.log.take_for(&reads);
        let mine = self.holds.iter().find(|note| note.is_mine()).cloned();
        if let (Some(note), false) = (mine, taken.ops.is_empty()) {
            let shapes = reads
                .iter()
                .map(|tensor| format!("{:?}", tensor.shape.to_vec()));
            let shapes: Vec<String> = shapes.collect();
            self.warn_of_hold(
                &note,
                &format!("the read of a tensor of shape {}", shapes.join(", ")),
            );
        }
        self.program_waits(taken.ops.len());
        self.flush(taken, reads)
    }

    /// Plans the window and starts it; returns a ticket for each read. Errors end the mesh: later reads return them.
    pub(super) fn flush(&mut self, taken: Taken, reads: Vec<TensorIr>) -> Vec<ReadTicket> {
        if self.ended.is_some()
            || (taken.ops.is_empty() && taken.dropped.is_empty() && reads.is_empty())
        {
            return Vec::new();
        }
        self.entered = 0;
        match self.run(taken, reads) {
            Ok(tickets) => tickets,
            Err(fault) => {
                let fault = match &self.runtime {
                    Some(runtime) => runtime.poison(fault),
                    None => fault,
                };
                self.end(fault);
                Vec::new()
            }
        }
    }

    /// Hashes the parts of data, entered process by process, that other processes have too.
    fn hash_parts(&self, window: &Window, host: &[HostValue]) -> Vec<PartPrint> {
        let mut parts = Vec::new();
        let ranks = &self.plan_options.ranks;
        let here = match (ranks.first(), ranks.last()) {
            (Some(first), Some(last)) => first.0..last.0 + 1,
            _ => return parts,
        };
        // Both are in the order of the window's inputs.
        let mut inputs = window.inputs.iter();
        for value in host {
            let input = inputs.find(|input| input.value == value.value);
            let (Some(rows), Some(Input { state, dtype, .. })) = (&value.rows, input) else {
                continue;
            };
            let InputState::Host { preferred, .. } = state else {
                continue;
            };
            let width: usize = value.data.shape().iter().skip(1).product();
            for part in repeated(preferred, &self.mesh, here.clone()) {
                let Some(place) = rows.place(part.start) else {
                    continue;
                };
                let mut hasher = FxHasher::default();
                let start = place * width * dtype.size();
                let bytes = part.len() * width * dtype.size();
                value.data.bytes()[start..start + bytes].hash(&mut hasher);
                parts.push(PartPrint {
                    value: value.value,
                    row: part.start as u64,
                    hash: hasher.finish(),
                });
            }
        }
        parts
    }

    /// Says once that a window ended which was held open.
    fn warn_of_hold(&mut self, note: &HoldNote, what: &str) {
        if !std::mem::replace(&mut self.warned_of_hold, true) {
            tracing::warn!(
                mesh = %self.mesh,
                "{what} {note} ends the window there: what was recorded so far runs alone, and the ranks of a \
                 pipeline wait for each other. Read after the step"
            );
        }
    }

    /// Says once that ranks repeat much of the work of a window. Random layouts are meant to.
    fn warn_of_redundancy(&mut self, redundancy: &Redundancy) {
        if self.warned || self.options.fuzz_layouts.is_some() {
            return;
        }
        if let Some(warning) = redundancy.warning() {
            self.warned = true;
            tracing::warn!(mesh = %self.mesh, "{warning}");
        }
    }

    /// Says once that units ask for float8 and no layer computes in it.
    fn warn_of_float8(&mut self, layers: &[Float8Layer]) {
        let Some(reason) = layers.first().and_then(|layer| layer.skipped.as_ref()) else {
            return;
        };
        let is_known = self.warned_of_float8 || self.options.fuzz_layouts.is_some();
        if is_known || layers.iter().any(|layer| layer.skipped.is_none()) {
            return;
        }
        self.warned_of_float8 = true;
        warn(&format!(
            "float8 is asked for on mesh {}, and none of {} linear layer(s) computes in it; {}: {reason}",
            self.mesh,
            layers.len(),
            layers[0].path
        ));
    }

    fn run(&mut self, taken: Taken, reads: Vec<TensorIr>) -> Result<Vec<ReadTicket>, Fault> {
        let start = Instant::now();
        let Taken { ops, dropped, held } = taken;
        let has_bytes = self.plan_options.float8_store.dtype == crate::mesh::DType::U8;
        let checked = check_known(&ops).and_then(|()| on_bytes::check(&ops, has_bytes));
        checked.map_err(|error| Fault::Plan(Arc::new(error)))?;
        self.stats.ops += ops.len() as u64;
        let mut host: Vec<(Arc<TensorData>, Option<Rows>)> = Vec::new();
        let mut of_inputs = Vec::new();
        let (mut window, mut bindings) = canonicalize(
            ops,
            &dropped,
            &held,
            &reads,
            self.loose.is_none(),
            |tensor| match self.live.get(&tensor.id) {
                Some(Live::Placed {
                    layout,
                    role,
                    origin,
                    stage,
                    name,
                }) => {
                    of_inputs.push(*name);
                    Ok(InputState::Placed {
                        layout: layout.clone(),
                        role: role.clone(),
                        origin: *origin,
                        stage: stage.clone(),
                    })
                }
                Some(Live::Host { data, origin, part }) => {
                    host.push((data.clone(), part.as_ref().map(|part| part.rows.clone())));
                    Ok(match part {
                        Some(part) => InputState::Host {
                            preferred: part.layout.clone(),
                            entry: Entry::Rows,
                        },
                        None => InputState::Host {
                            preferred: Arc::new(self.entry_layout(data, *origin)),
                            entry: Entry::Free(*origin),
                        },
                    })
                }
                None => Err(Fault::unknown_tensor(tensor.id)),
            },
        )?;
        if let Some(loose) = &mut self.loose {
            loose.loosen(&mut window, &mut bindings.scalars);
        }
        let known = self.cache.find(&window);
        let ended: Vec<TensorId> = window
            .inputs
            .iter()
            .filter(|input| window.dies[input.value as usize])
            .map(|input| bindings.ids[input.value as usize])
            .collect();
        let host: Vec<HostValue> = window
            .inputs
            .iter()
            .filter(|input| matches!(input.state, InputState::Host { .. }))
            .zip(host)
            .map(|(input, (data, rows))| HostValue {
                value: input.value,
                data,
                rows,
            })
            .collect();
        if let (Some(explanation), Some(pass)) = (&mut self.explanation, self.asked.after) {
            let text = text_after(&window, &self.mesh, &self.plan_options, pass);
            explanation.after.extend(text);
        }
        #[cfg(any(test, feature = "text-form"))]
        if let (Some(explanation), true) = (&mut self.explanation, self.asked.checks_form) {
            let what = format!("window {} on {}", self.windows, self.mesh);
            let texts = check_form(&window, &self.mesh, &self.plan_options, &what);
            explanation.after.extend(texts);
        }
        if let (Some(explanation), Some(value)) = (&mut self.explanation, self.asked.why) {
            // Of windows that have no such value, there is nothing to say.
            let text = why(&window, &self.mesh, &self.plan_options, value);
            explanation.why.extend(text);
        }
        let number = self.windows;
        self.windows += 1;
        let print = self.options.world.is_some().then(|| {
            let scalars = &bindings.scalars;
            if self.known.len() > KNOWN_MAX {
                self.known.clear();
            }
            WindowPrint {
                number,
                hash: window.hash,
                values: hash_values(scalars, &of_inputs, &host, self.plan_options.regions),
                parts: self.hash_parts(&window, &host),
                digest: self
                    .known
                    .insert(window.hash)
                    .then(|| window.digest().into()),
            }
        });
        let fault = |error: PlanError| Fault::Plan(Arc::new(error));
        let microbatches = self.explanation.as_ref().and(self.asked.microbatches);
        let repeated = microbatches.map(|_| {
            if self.options.dry_run {
                self.cache.clear();
            }
            let options = PlanOptions {
                microbatches,
                ..self.plan_options.clone()
            };
            plan(&window, &self.mesh, &options).map(Arc::new)
        });
        let repeated = repeated.transpose().map_err(fault)?;
        let plan = match (&repeated, known) {
            // Nothing of it will run, so nothing of it is kept for a later window.
            (Some(plan), _) if self.options.dry_run => plan.clone(),
            (_, Some(plan)) => plan,
            (_, None) => {
                let (mesh, options) = (&self.mesh, &self.plan_options);
                self.cache.plan(window, mesh, options).map_err(fault)?
            }
        };
        for id in &ended {
            self.live.remove(id);
        }
        let mut forget = Vec::new();
        // What operations use that are still recorded dies with them.
        for id in &bindings.held {
            self.log.drop_tensor(*id);
        }
        for id in dropped {
            if held.contains(&id) {
                self.log.drop_tensor(id);
            } else if let Some(Live::Placed { .. }) = self.live.remove(&id) {
                forget.push(id);
            }
        }
        for output in &plan.outputs {
            self.live.insert(
                bindings.ids[output.value as usize],
                Live::Placed {
                    layout: output.layout.clone(),
                    role: output.role.clone(),
                    origin: output.origin,
                    stage: output.stage.clone(),
                    name: ValueName::In(number, output.value),
                },
            );
        }
        if let Some(explanation) = &mut self.explanation {
            let plan = repeated.as_ref().unwrap_or(&plan);
            explain_plan(explanation, plan);
            if let Some(hardware) = &self.asked.hardware {
                let ranks = self.plan_options.ranks.iter().copied();
                let ranks: Vec<_> = ranks.zip(plan.ranks.iter().cloned()).collect();
                let simulation = simulate(&ranks, &self.mesh, hardware);
                explanation.simulations.push(simulation);
            }
        }
        self.stats.redundancy += &plan.redundancy;
        self.warn_of_redundancy(&plan.redundancy);
        self.warn_of_float8(&plan.float8);
        let streams = self.streams;
        self.streams += plan.num_streams;
        self.stats.plan_time += start.elapsed();
        let Some(runtime) = &self.runtime else {
            return Err(Fault::bug("a mesh without workers"));
        };
        let tickets = runtime.run(
            &plan,
            RunArgs {
                ids: bindings.ids.into(),
                scalars: bindings.scalars.into_iter().map(Into::into).collect(),
                host: host.into(),
                forget: forget.into(),
                seed: self.seed,
                streams,
                number,
                print,
            },
        );
        Ok(tickets)
    }
}
