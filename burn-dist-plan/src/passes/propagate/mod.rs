//! Propagation: picks a layout for every value of a window and inserts the redistributions, as a program over slots
//! common to all ranks.
//!
//! | file | idea |
//! | --- | --- |
//! | `step` | one operation: its operands, and the step that it becomes |
//! | `view` | all that the choice of a split looks at, as data |
//! | `split`, `options`, `offers` | the splits that an operation is offered, and how long each takes |
//! | `choice` | the one that is taken; why the others are not |
//! | `versions`, `moves` | the layouts in which a value exists, getting it in another one, where partial values go |
//! | `free` | constants, random values and host data: placed by their use |
//! | `module`, `owners` | what parameters ask for, and which parameter or unit a value belongs to |
//! | `operands` | the tensors of an operation |
//!
//! Models repeat their layers, so operations repeat but for names. Equal views are split alike: each is split once.

mod choice;
mod free;
mod module;
mod moves;
mod offers;
mod operands;
mod options;
mod owners;
mod split;
mod step;
#[cfg(test)]
mod tests;
mod versions;
mod view;

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Context, Report, State};
use crate::cost::Network;
use crate::ir::{
    Entry, InputState, Op, OpIndex, Origin, Outlives, Owner, ParamSpec, Program, ProgramStep,
    Reason, Slot, Source, Value, ValueIndex,
};
use crate::layout::{Layout, of_batch};
use crate::mesh::{DType, MeshShape};
use crate::pool::Pool;
use crate::rule::{Assignment, FactorKind, OpRule, Rule};
use crate::{PlanError, PlanOptions};
use moves::Moves;
use operands::Tensors;
use split::Split;
use view::OpView;

/// An output layout that waits for its module's result to be reshaped.
struct Unflattened {
    tag: Arc<ParamSpec>,
    /// Whether it was.
    is_applied: bool,
}

/// Data of which equal values are kept once.
#[derive(Default)]
struct Pools {
    layouts: Pool<Layout>,
    rules: Pool<OpRule>,
    assignments: Pool<Assignment>,
}

impl Pools {
    /// Returns a split of which equal parts are kept once.
    fn split(&mut self, mut split: Split) -> Split {
        for layout in split.inputs.iter_mut().chain(&mut split.outputs) {
            *layout = self.layouts.share(layout.clone());
        }
        split.assignment = split.assignment.map(|of| self.assignments.share(of));
        split
    }
}

pub(super) struct Propagator<'a, O: Clone> {
    mesh: &'a MeshShape,
    options: &'a PlanOptions,
    /// The window, with what is known of it.
    state: &'a State<'a, O>,
    /// What is made of it so far, but for its values.
    program: Program<O>,
    values: Vec<Value>,
    /// By the first of the values that are tied to each other, the first of them whose layout is decided: see
    /// [`Facts::tied_to`](crate::Facts::tied_to).
    tied: Vec<Option<ValueIndex>>,
    /// The random numbers that each operation draws.
    streams: HashMap<OpIndex, u64>,
    /// The slot into which a value from outside is loaded, else [`Slot::MAX`].
    loaded: Vec<Slot>,
    /// Layouts in which tensors were read at indices along a dim, by these: the gradient of that read is best made in
    /// the same.
    mirrors: HashMap<(ValueIndex, usize), Layout>,
    /// Results of modules whose output layout has more dims: it applies once they are reshaped.
    unflattened: HashMap<ValueIndex, Unflattened>,
    moves: Moves<'a>,
    pools: Pools,
    /// The splits that were chosen.
    chosen: FxHashMap<OpView, Split>,
    /// A value that is asked about, and the choice that made it once it is known.
    asked: Option<ValueIndex>,
    why: Option<String>,
    /// Module path of the last parameter used.
    path: Option<Arc<str>>,
    /// The operation at hand.
    now: OpIndex,
}

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let mut propagator = Propagator::new(state, context);
    for index in 0..state.window.ops.len() {
        propagator.operation(index as OpIndex)?;
    }
    let why = propagator.why.take();
    let program = propagator.finish()?;
    state.programs = vec![program];
    Ok(Report {
        why,
        ..Report::default()
    })
}

impl<'a, O: Op> Propagator<'a, O> {
    fn new(state: &'a State<'a, O>, context: &Context<'a>) -> Self {
        let Context { mesh, options, why } = *context;
        let (window, facts) = (&state.window, &state.facts);
        let empty = Value {
            shape: Vec::new(),
            dtype: DType::F32,
            source: Source::Versions,
            versions: Vec::new(),
            preferred: Arc::new(Layout::replicated(&[])),
            origin: None,
            few_rows: None,
            met: false,
            tag: None,
            home: None,
            owner: Owner::default(),
            uses: Vec::new(),
            survives: false,
        };
        let mut values = vec![empty; window.dies.len()];
        let mut streams = HashMap::new();
        for (index, op) in window.ops.iter().enumerate() {
            if op.traits().is_random {
                let stream = streams.len() as u64;
                streams.insert(index as OpIndex, stream);
            }
            for input in op.inputs() {
                values[input.id as usize].uses.push(index as OpIndex);
            }
            for out in op.outputs() {
                let value = &mut values[out.id as usize];
                value.shape = out.shape.to_vec();
                value.dtype = out.dtype;
            }
        }
        for (value, dies) in values.iter_mut().zip(&window.dies) {
            value.survives = !dies;
        }
        for &read in &window.reads {
            values[read as usize].survives = true;
        }
        let owners = owners::owners(window, facts, &state.visits);
        for (value, owner) in values.iter_mut().zip(owners) {
            value.owner = owner;
        }
        let network = Network::new(mesh, &options.links, &options.topology);
        let mut this = Self {
            mesh,
            options,
            state,
            program: Program {
                num_streams: streams.len() as u64,
                ..Program::default()
            },
            tied: vec![None; window.dies.len()],
            values,
            streams,
            loaded: vec![Slot::MAX; window.dies.len()],
            mirrors: HashMap::new(),
            unflattened: HashMap::new(),
            moves: Moves::new(network),
            pools: Pools::default(),
            chosen: FxHashMap::default(),
            asked: why,
            why: None,
            path: None,
            now: 0,
        };
        for input in &window.inputs {
            let value = &mut this.values[input.value as usize];
            value.shape = input.shape.clone();
            value.dtype = input.dtype;
        }
        // Many values are of the update of one parameter.
        let mut homes: FxHashMap<*const ParamSpec, Option<Arc<Layout>>> = FxHashMap::default();
        for (value, param) in facts.update_of.iter().enumerate() {
            this.values[value].tag = facts.roles[value].parameter().cloned();
            this.values[value].home = param.as_ref().and_then(|param| {
                let known = homes.entry(Arc::as_ptr(param));
                let home = || Some(param.home(mesh));
                let rests = |home: &Layout| !param.at_rest || !home.at_rest.is_empty();
                let home = known.or_insert_with(|| home().filter(rests).map(Arc::new));
                let shape = &this.values[value].shape;
                home.clone().map(|home| match home.has_shape(shape) {
                    true => home,
                    false => Arc::new(home.along(shape)),
                })
            });
        }
        for input in &window.inputs {
            let value = &mut this.values[input.value as usize];
            let rows = input.shape.first().copied();
            let few = rows.filter(|_| of_batch(mesh, &input.shape).is_replicated());
            match &input.state {
                InputState::Placed {
                    layout,
                    origin,
                    role: _,
                    stage: _,
                } => {
                    value.origin = origin.filter(|_| options.defer);
                    value.few_rows = few.filter(|_| value.origin == Some(Origin::Data));
                    value.preferred = layout.clone();
                    let slot = this.add_version(input.value, layout.clone());
                    this.loaded[input.value as usize] = slot;
                    this.program.steps.push(ProgramStep::Load {
                        value: input.value,
                        slot,
                    });
                }
                InputState::Host { preferred, entry } => {
                    value.preferred = preferred.clone();
                    match entry {
                        Entry::Free(origin) if options.fuzz.is_none() => {
                            value.source = Source::Host;
                            value.origin = Some(*origin);
                            value.few_rows = few.filter(|_| *origin == Origin::Data);
                        }
                        Entry::Free(_) | Entry::Rows => {
                            if let (Entry::Rows, Some(few)) = (entry, few) {
                                this.program.few_rows = this.program.few_rows.max(few);
                            }
                            let slot = this.add_version(input.value, preferred.clone());
                            this.program.steps.push(ProgramStep::Upload {
                                value: input.value,
                                slot,
                            });
                        }
                    }
                }
            }
        }
        this
    }

    /// Notes how many rows of data an operation takes, or of a batch that was placed before. Data whose dim 0 is not
    /// the one of the result is a table that rows are combined with.
    fn note_rows(&mut self, rule: &Rule, tensors: &Tensors<'_>, origin: Option<Origin>) {
        let leading = rule.outputs[0].dims.first();
        for (operand, tensor) in rule.inputs.iter().zip(&tensors.inputs) {
            let info = self.value(tensor.id);
            let placed = match info.versions.first() {
                Some(version) => {
                    info.tag.is_none()
                        && info.home.is_none()
                        && !self.state.facts.of_layer[tensor.id as usize]
                        && version.layout.at_rest.is_empty()
                        && version.layout.dims.first().is_some_and(|dim| {
                            dim.axes().any(|axis| self.mesh.role(axis).splits_data())
                        })
                }
                None => false,
            };
            if !placed && info.origin != Some(Origin::Data) {
                continue;
            }
            let is_table = |dim| origin != Some(Origin::Data) && leading != Some(dim);
            let is_rows = |factor: &u8| {
                let kind = rule.factors[*factor as usize].kind;
                matches!(kind, FactorKind::Map | FactorKind::Reduce(_))
            };
            let rows = match operand.dims.first() {
                Some(dim) if is_table(dim) => 0,
                Some(Some(factor)) if is_rows(factor) => info.few_rows.unwrap_or(tensor.shape[0]),
                Some(None) => 1,
                _ => 0,
            };
            match info.few_rows {
                Some(_) => self.program.few_rows = self.program.few_rows.max(rows),
                None => self.program.rows = self.program.rows.max(rows),
            }
        }
    }

    fn value(&self, value: ValueIndex) -> &Value {
        &self.values[value as usize]
    }

    fn finish(mut self) -> Result<Program<O>, PlanError> {
        let (window, facts) = (&self.state.window, &self.state.facts);
        self.now = window.ops.len() as OpIndex;
        self.check_applied()?;
        // What survives is no business of the last module used.
        self.path = None;
        for &value in &window.reads {
            let mut slot = self.settled(value, Reason::Read)?;
            if self.options.everyone_reads {
                let whole = Layout::replicated(&self.value(value).shape);
                slot = self.require(value, &whole.into(), Reason::Read)?;
            }
            self.program.reads.push((slot, value));
        }
        for (value, dies) in (0..).zip(&window.dies) {
            let info = self.value(value);
            if *dies || (info.source == Source::Host && info.versions.is_empty()) {
                continue;
            }
            let slot = self.settled(value, Reason::Survivor)?;
            if slot == self.loaded[value as usize] {
                continue; // Untouched: it stays where it was.
            }
            let info = &self.values[value as usize];
            self.program.outputs.push(Outlives {
                value,
                layout: self.program.slots[slot as usize].layout.clone(),
                role: facts.roles[value as usize].clone(),
                origin: info.origin.filter(|_| !info.met),
            });
            self.program.steps.push(ProgramStep::Store { slot, value });
        }
        let reads = (0..).zip(&self.program.reads);
        let reads = reads.map(|(read, &(slot, _))| ProgramStep::Read { slot, read });
        self.program.steps.extend(reads);
        Ok(Program {
            values: self.values.into(),
            ..self.program
        })
    }
}
