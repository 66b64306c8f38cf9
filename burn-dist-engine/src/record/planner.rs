//! The planner of one mesh: what windows become, and what lives between them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use burn_backend::DType;
use burn_ir::{BackendIr, ScalarIr, TensorId};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::canonical::{Bindings, canonicalize};
use super::closed::{Closed, End};
use super::log::Taken;
use super::loose::Loose;
use super::on_host::{OnHost, Part, batch_layout};
use super::parts::Placement;
use crate::burn::data::*;
use crate::comm::{PartPrint, WindowPrint};
use crate::layout::{Layout, Rows, repeated};
use crate::mesh::MeshShape;
use crate::ops::dtype::of_burn;
use crate::ops::{check_known, on_bytes};
use crate::options::MeshOptions;
#[cfg(any(test, feature = "text-form"))]
use crate::plan::check_form;
use crate::plan::explain::{Ask, Explanation};
use crate::plan::task::Plan;
use crate::plan::{
    CacheStats, Entry, Float8Layer, Input, InputState, Origin, PlanCache, PlanError, PlanOptions,
    Redundancy, Regions, ValueIndex, Window, explain_plan, fuzz, plan, simulate, text_after, why,
};
use crate::run::{Fault, HostValue, ReadTicket, RunArgs, Runtime};
use crate::warn::warn;
use burn_dist_plan::{Role, Stage};

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

/// A tensor that lives between windows.
enum Live {
    /// On the host: no operation has used it yet.
    Host(OnHost),
    /// On the ranks.
    Placed {
        layout: Arc<Layout>,
        /// Its role in training.
        role: Role,
        /// The kind of values it is computed from, if its layout is not decided.
        origin: Option<Origin>,
        /// The stage whose ranks have it; `None` if all do.
        stage: Option<Stage>,
        name: ValueName,
    },
}

/// Names a value, whatever its id: the same in all processes that run the same program.
#[derive(Clone, Copy, Debug, Hash)]
enum ValueName {
    /// A value of a window.
    In(u64, ValueIndex),
    /// Put on the ranks part by part, as the tensor of this number.
    Put(u64),
}

/// The work of a recorder so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecorderStats {
    /// Windows, and how often their plan was known.
    pub cache: CacheStats,
    /// Time spent bringing windows into canonical form, looking plans up and making them.
    pub plan_time: Duration,
    /// Operations recorded.
    pub ops: u64,
    /// Work that ranks repeat, of all windows that were run.
    pub redundancy: Redundancy,
}

/// A window in canonical form, and what this run of it is bound to.
struct Bound {
    window: Window,
    /// Its plan, if that is known.
    known: Option<Arc<Plan>>,
    bindings: Bindings,
    host: Vec<HostValue>,
    /// Values of earlier windows.
    names: Vec<ValueName>,
    /// Tensors that the program dropped meanwhile.
    dropped: Vec<TensorId>,
    answers: Vec<Sender<ReadTicket>>,
    end: End,
}

/// Plans the windows of a mesh whose ranks compute on `B`, and hands the plans to them.
pub(super) struct Planner<B: BackendIr> {
    mesh: MeshShape,
    options: Arc<MeshOptions>,
    plan_options: PlanOptions,
    pub runtime: Option<Runtime<B>>,
    /// Why nothing runs any more.
    ended: Option<Fault>,
    live: FxHashMap<TensorId, Live>,
    /// Tensors that the program needs no more, once operations have run that are still recorded.
    last_uses: Vec<TensorId>,
    cache: PlanCache,
    /// Windows that differ by where they slice; `None` on one rank, where starts are slots of all.
    loose: Option<Loose>,
    /// The window at hand, if its plan is not known.
    paused: Option<Box<Bound>>,
    seed: u64,
    streams: u64,
    /// Tensors put on the ranks part by part.
    put: u64,
    /// Windows run, and the hashes of those that other processes know.
    windows: u64,
    known: FxHashSet<u64>,
    stats: RecorderStats,
    /// Set once the user was warned that ranks repeat work.
    warned: bool,
    /// Set once the user was warned that nothing computes in float8 though units ask for it.
    warned_of_float8: bool,
    explanation: Option<Explanation>,
    /// Figures that are asked for beside it.
    asked: Ask,
}

impl<B: BackendIr> Planner<B> {
    /// A planner for the ranks that `runtime` runs; `ended` if nothing does.
    pub(super) fn new(
        mesh: MeshShape,
        options: Arc<MeshOptions>,
        plan_options: PlanOptions,
        runtime: Option<Runtime<B>>,
        ended: Option<Fault>,
    ) -> Self {
        Self {
            loose: (mesh.num_ranks() > 1).then(Loose::default),
            mesh,
            plan_options,
            runtime,
            ended,
            live: FxHashMap::default(),
            last_uses: Vec::new(),
            cache: PlanCache::new(options.plan_cache_bytes_max),
            paused: None,
            seed: 0,
            streams: 0,
            put: 0,
            windows: 0,
            known: FxHashSet::default(),
            stats: RecorderStats::default(),
            warned: false,
            warned_of_float8: false,
            explanation: None,
            asked: Ask::default(),
            options,
        }
    }

    /// Returns whether nothing runs any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns what has stopped the mesh, if anything has.
    pub(super) fn fault(&self) -> Option<Fault> {
        let of_ranks = self.runtime.as_ref().and_then(Runtime::fault);
        of_ranks.or_else(|| self.ended.clone())
    }

    /// Ends the mesh.
    pub(super) fn end(&mut self, fault: Fault) {
        if self.ended.is_none() {
            self.ended = Some(fault);
        }
        // burn-router keeps the recorder for the life of the process: nothing of size may stay here.
        self.live = FxHashMap::default();
        self.last_uses = Vec::new();
        self.paused = None;
        self.cache.clear();
        self.loose = self.loose.take().map(|_| Loose::default());
        // Nor may it keep the engine of the processes alive.
        Arc::make_mut(&mut self.options).world = None;
    }

    /// Returns the ranks, or what has stopped them.
    pub(super) fn running(&self) -> Result<&Runtime<B>, Fault> {
        match (&self.ended, &self.runtime) {
            (Some(fault), _) => Err(fault.clone()),
            (None, Some(runtime)) => Ok(runtime),
            (None, None) => Err(Fault::bug("a mesh without workers")),
        }
    }

    /// Returns where a tensor is, if a window has used or made it.
    pub(super) fn placement(&self, id: TensorId) -> Option<Placement> {
        match self.live.get(&id)? {
            Live::Host(_) => None,
            Live::Placed {
                layout,
                role,
                stage,
                ..
            } => Some(Placement {
                layout: layout.clone(),
                stage: stage.clone(),
                role: role.clone(),
            }),
        }
    }

    /// Hands the parts of a tensor to the ranks: `None` to those of other stages.
    pub(super) fn put(
        &mut self,
        id: TensorId,
        parts: Vec<Option<B::Handle>>,
        placement: Placement,
        dtype: DType,
    ) -> Result<(), Fault> {
        let runtime = self.running()?;
        runtime.put(id, parts, &placement.layout, dtype);
        self.put += 1;
        let Placement {
            layout,
            stage,
            role,
        } = placement;
        self.live.insert(
            id,
            Live::Placed {
                layout,
                role,
                origin: None,
                stage,
                name: ValueName::Put(self.put),
            },
        );
        Ok(())
    }

    /// Returns what random numbers follow from: the seed, and how many streams were drawn from it.
    pub(super) fn random_state(&self) -> (u64, u64) {
        (self.seed, self.streams)
    }

    /// Goes on with other random numbers.
    pub(super) fn set_random_state(&mut self, (seed, streams): (u64, u64)) {
        (self.seed, self.streams) = (seed, streams);
    }

    pub(super) fn stats(&self) -> RecorderStats {
        RecorderStats {
            cache: self.cache.stats(),
            ..self.stats.clone()
        }
    }

    /// Starts collecting what the plans of the following windows do, and what is asked beside that.
    pub(super) fn explain(&mut self, ask: Ask, float8_by: String) {
        self.asked = ask;
        // Plans that were made before do not tell all.
        self.plan_options.is_explained = true;
        self.cache.clear();
        let explanation = Explanation::new(self.mesh.to_string());
        let explanation = explanation.with_links(&self.options.links);
        let explanation = explanation.with_float8_by(float8_by);
        let explanation = explanation.with_topology(&self.plan_options.topology);
        let (asked, regions) = (self.options.regions, self.plan_options.regions);
        self.explanation = Some(match asked.filter(|asked| *asked != regions) {
            Some(asked) => explanation.without_regions(asked),
            None => explanation,
        });
    }

    /// Returns what was collected since [`Self::explain`].
    pub(super) fn explained(&mut self) -> Option<Explanation> {
        self.plan_options.is_explained = false;
        self.explanation.take()
    }

    /// Returns the layout in which data enters if nothing else decides; quantized data is whole everywhere.
    fn entry_layout(&self, data: &TensorData, origin: Origin) -> Layout {
        let shape = data.shape().to_vec();
        if matches!(data.dtype(), DType::QFloat(_)) {
            return Layout::replicated(&shape);
        }
        if let Some(seed) = self.options.fuzz_layouts {
            return fuzz::layout_of_data(
                &self.mesh,
                &shape,
                of_burn(data.dtype()),
                data.bytes(),
                seed,
            );
        }
        match origin {
            Origin::Data => batch_layout(&self.mesh, self.options.input, &shape),
            Origin::Constants => Layout::replicated(&shape),
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

    /// Plans a window and starts it.
    pub(super) fn plan(&mut self, closed: Closed) {
        if let Some(bound) = self.bound(closed) {
            self.run(bound);
        }
    }

    /// Plans a window and starts it; pauses before that if its plan is not known and nobody waits for it.
    pub(super) fn plan_known(&mut self, closed: Closed) {
        match self.bound(closed) {
            Some(bound) if bound.known.is_none() && !bound.end.is_awaited() => {
                self.paused = Some(Box::new(bound));
            }
            Some(bound) => self.run(bound),
            None => {}
        }
    }

    /// Returns whether a window waits for [`Self::go_on`].
    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Plans the window that waits for it.
    pub(super) fn go_on(&mut self) {
        if let Some(bound) = self.paused.take() {
            self.run(*bound);
        }
    }

    /// Brings a window into canonical form. Errors end the mesh: reads are answered with them.
    fn bound(&mut self, closed: Closed) -> Option<Bound> {
        let start = Instant::now();
        let answers = closed.answers.clone();
        let bound = match &self.ended {
            Some(fault) => Err(fault.clone()),
            None => self.bind(closed),
        };
        self.stats.plan_time += start.elapsed();
        let failed = |fault| self.fails(fault, answers);
        bound.map_err(failed).ok()
    }

    fn fails(&mut self, fault: Fault, answers: Vec<Sender<ReadTicket>>) {
        if !self.has_ended() {
            let fault = match &self.runtime {
                Some(runtime) => runtime.poison(fault),
                None => fault,
            };
            self.end(fault);
        }
        let fault = self.ended.clone().expect("it has ended above");
        for answer in answers {
            let _ = answer.send(ReadTicket::failed(fault.clone()));
        }
    }

    fn bind(&mut self, closed: Closed) -> Result<Bound, Fault> {
        let Taken {
            ops,
            mut dropped,
            held,
            entered,
        } = closed.taken;
        let has_bytes = self.plan_options.float8_store.dtype == crate::mesh::DType::U8;
        let checked = check_known(&ops).and_then(|()| on_bytes::check(&ops, has_bytes));
        checked.map_err(|error| Fault::Plan(Arc::new(error)))?;
        self.stats.ops += ops.len() as u64;
        for (id, on_host) in entered {
            // A window before this one may have brought it to the ranks.
            self.live.entry(id).or_insert(Live::Host(on_host));
        }
        dropped.append(&mut self.last_uses);
        let mut host: Vec<(Arc<TensorData>, Option<Rows>)> = Vec::new();
        let mut names = Vec::new();
        let (mut window, mut bindings) = canonicalize(
            ops,
            &dropped,
            &held,
            &closed.reads,
            self.loose.is_none(),
            |tensor| match self.live.get(&tensor.id) {
                Some(Live::Placed {
                    layout,
                    role,
                    origin,
                    stage,
                    name,
                }) => {
                    names.push(*name);
                    Ok(InputState::Placed {
                        layout: layout.clone(),
                        role: role.clone(),
                        origin: *origin,
                        stage: stage.clone(),
                    })
                }
                Some(Live::Host(OnHost { data, origin, part })) => {
                    host.push((data.clone(), part.as_ref().map(|part| part.rows.clone())));
                    Ok(match part {
                        Some(Part { layout, .. }) => InputState::Host {
                            preferred: layout.clone(),
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
        // What operations use that are still recorded dies with them.
        self.last_uses.append(&mut bindings.held);
        let (later, dropped) = dropped.into_iter().partition(|id| held.contains(id));
        self.last_uses.extend::<Vec<TensorId>>(later);
        if let Some(loose) = &mut self.loose {
            loose.loosen(&mut window, &mut bindings.scalars);
        }
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
        Ok(Bound {
            known: self.cache.find(&window),
            window,
            bindings,
            host,
            names,
            dropped,
            answers: closed.answers,
            end: closed.end,
        })
    }

    fn run(&mut self, bound: Bound) {
        let start = Instant::now();
        let answers = bound.answers.clone();
        match self.start(bound) {
            Ok(tickets) => {
                for (answer, ticket) in answers.iter().zip(tickets) {
                    // Whoever asked may have gone.
                    let _ = answer.send(ticket);
                }
            }
            Err(fault) => self.fails(fault, answers),
        }
        self.stats.plan_time += start.elapsed();
    }

    /// Hands the plan of a window to the ranks; returns a ticket for each of its reads.
    fn start(&mut self, bound: Bound) -> Result<Vec<ReadTicket>, Fault> {
        let Bound {
            window,
            known,
            bindings,
            host,
            names,
            dropped,
            end,
            ..
        } = bound;
        if let End::Early(plans) = &end {
            plans.count(known.is_some());
        }
        let ended: Vec<TensorId> = window
            .inputs
            .iter()
            .filter(|input| window.dies[input.value as usize])
            .map(|input| bindings.ids[input.value as usize])
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
                values: hash_values(scalars, &names, &host, self.plan_options.regions),
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
        for id in dropped {
            if let Some(Live::Placed { .. }) = self.live.remove(&id) {
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
        let runtime = self.running()?;
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
