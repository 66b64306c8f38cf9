//! Propagation: picks a layout for every value of a window and inserts the redistributions, as a program over slots
//! common to all ranks.
//!
//! | file | idea |
//! | --- | --- |
//! | `step` | one operation: its operands, and the step that it becomes |
//! | `options`, `choice` | the ways an operation may be split, and the cheapest of them |
//! | `versions` | the layouts in which a value exists, getting it in another one, where partial values go |
//! | `stamp` | operations that repeat but for names, planned once |
//! | `free` | constants, random values and host data: placed by their use |
//! | `module`, `owners` | what parameters ask for, and which parameter or unit a value belongs to |
//! | `operands`, `pool` | the data all of that works on |

mod choice;
mod free;
mod module;
mod operands;
mod options;
mod owners;
mod pool;
mod stamp;
mod step;
mod versions;

use std::collections::HashMap;
use std::sync::Arc;

use super::{Context, Report, State};
use crate::ir::{
    Accumulated, Entry, InputState, Op, OpIndex, Origin, Outlives, Owner, ParamSpec, Program,
    ProgramStep, Reason, Runs, Slot, SlotInfo, Source, Value, ValueIndex, Window,
};
use crate::mesh::DType;

use crate::cost::Network;
use crate::facts::{Facts, Visits};
use crate::layout::redistribute::Step;
use crate::layout::{Layout, of_batch};
use crate::mesh::MeshShape;
use crate::rule::{Assignment, FactorKind, OpRule, Rule};
use crate::{PlanError, PlanOptions};
use operands::{Tensors, tensors};
use pool::Pool;

/// An output layout that waits for its module's result to be reshaped.
struct Unflattened {
    tag: Arc<ParamSpec>,
    /// Whether it was.
    is_applied: bool,
}

pub(super) struct Propagator<'a, O> {
    mesh: &'a MeshShape,
    options: &'a PlanOptions,
    window: &'a Window<O>,
    values: Vec<Value>,
    facts: &'a Facts,
    /// By the first of the values that are tied to each other, the first of them whose layout is decided: see
    /// [`Facts::tied_to`].
    tied: Vec<Option<ValueIndex>>,
    slots: Vec<SlotInfo>,
    steps: Vec<ProgramStep<O>>,
    rules: Vec<Option<Arc<OpRule>>>,
    streams: HashMap<OpIndex, u64>,
    /// The slot into which a value from outside is loaded, else [`Slot::MAX`].
    loaded: Vec<Slot>,
    /// Layouts in which tensors were read at indices along a dim, by these: the gradient of that read is best made in
    /// the same.
    mirrors: HashMap<(ValueIndex, usize), Layout>,
    /// Results of modules whose output layout has more dims: it applies once they are reshaped.
    unflattened: HashMap<ValueIndex, Unflattened>,
    network: Network<'a>,
    layouts: Pool<Layout>,
    rules_known: Pool<OpRule>,
    assignments: Pool<Assignment>,
    redistributions: Pool<Step>,
    /// Nanoseconds of redistributions.
    costs: HashMap<(Arc<Layout>, Layout, usize), f64>,
    visits: &'a Visits,
    /// Operations (casts) that take sums, not terms of sums; empty if there are none.
    reduces_first: &'a [bool],
    accumulated: Accumulated,
    runs: Runs,
    /// The first operation whose deferred result was made since this was reset.
    first_deferred: OpIndex,
    /// Rows of the batch, as far as known.
    rows: usize,
    /// Those of data that has fewer than there are parts.
    few_rows: usize,
    /// Module path of the last parameter used.
    path: Option<Arc<str>>,
    /// The first operation of the run at hand.
    run: OpIndex,
    now: OpIndex,
}

/// The pass: see [`PASSES`](super::PASSES).
pub(super) fn pass<O: Op>(
    state: &mut State<'_, O>,
    context: &Context<'_>,
) -> Result<Report, PlanError> {
    let mut propagator = Propagator::new(&state.window, context, &state.facts, &state.visits);
    propagator.reduces_first = &state.reduces_first;
    propagator.runs()?;
    state.programs = vec![propagator.finish()?];
    Ok(Report::default())
}

impl<'a, O: Op> Propagator<'a, O> {
    fn new(
        window: &'a Window<O>,
        &Context { mesh, options }: &Context<'a>,
        facts: &'a Facts,
        visits: &'a Visits,
    ) -> Self {
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
            let tensors = tensors(op);
            for (value, ..) in tensors.inputs {
                values[value as usize].uses.push(index as OpIndex);
            }
            for (value, shape, dtype) in tensors.outputs {
                let value = &mut values[value as usize];
                value.shape = shape;
                value.dtype = dtype;
            }
        }
        for (value, dies) in values.iter_mut().zip(&window.dies) {
            value.survives = !dies;
        }
        for &read in &window.reads {
            values[read as usize].survives = true;
        }
        let owners = owners::owners(window, facts, visits);
        for (value, owner) in values.iter_mut().zip(owners) {
            value.owner = owner;
        }
        let mut this = Self {
            mesh,
            options,
            window,
            facts,
            tied: vec![None; window.dies.len()],
            values,
            slots: Vec::new(),
            steps: Vec::new(),
            rules: vec![None; window.ops.len()],
            streams,
            loaded: vec![Slot::MAX; window.dies.len()],
            mirrors: HashMap::new(),
            unflattened: HashMap::new(),
            network: Network::new(mesh, &options.links, &options.topology),
            layouts: Pool::default(),
            rules_known: Pool::default(),
            assignments: Pool::default(),
            redistributions: Pool::default(),
            costs: HashMap::new(),
            visits,
            reduces_first: &[],
            accumulated: Accumulated::default(),
            runs: Runs::default(),
            first_deferred: OpIndex::MAX,
            rows: 0,
            few_rows: 0,
            path: None,
            run: 0,
            now: 0,
        };
        for (value, param) in facts.update_of.iter().enumerate() {
            this.values[value].tag = facts.roles[value].parameter().cloned();
            this.values[value].home = param.as_ref().and_then(|param| {
                let home = param.home(this.mesh);
                (!param.at_rest || !home.at_rest.is_empty()).then(|| Arc::new(home))
            });
        }
        for input in &window.inputs {
            let value = &mut this.values[input.value as usize];
            value.shape = input.shape.clone();
            value.dtype = input.dtype;
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
                    this.steps.push(ProgramStep::Load {
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
                                this.few_rows = this.few_rows.max(few);
                            }
                            let slot = this.add_version(input.value, preferred.clone());
                            this.steps.push(ProgramStep::Upload {
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
    fn note_rows(&mut self, rule: &Rule, tensors: &Tensors, origin: Option<Origin>) {
        let leading = rule.outputs[0].dims.first();
        for (operand, (value, shape, _)) in rule.inputs.iter().zip(&tensors.inputs) {
            let info = self.value(*value);
            let placed = match info.versions.first() {
                Some(version) => {
                    info.tag.is_none()
                        && info.home.is_none()
                        && !self.facts.of_layer[*value as usize]
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
                Some(Some(factor)) if is_rows(factor) => info.few_rows.unwrap_or(shape[0]),
                Some(None) => 1,
                _ => 0,
            };
            match info.few_rows {
                Some(_) => self.few_rows = self.few_rows.max(rows),
                None => self.rows = self.rows.max(rows),
            }
        }
    }

    fn value(&self, value: ValueIndex) -> &Value {
        &self.values[value as usize]
    }

    fn finish(mut self) -> Result<Program<O>, PlanError> {
        self.now = self.window.ops.len() as OpIndex;
        self.check_applied()?;
        // What survives is no business of the last module used.
        self.path = None;
        let mut reads = Vec::new();
        for &value in &self.window.reads {
            let mut slot = self.settled(value, Reason::Read)?;
            if self.options.everyone_reads {
                let whole = Layout::replicated(&self.value(value).shape);
                slot = self.require(value, &whole, Reason::Read)?;
            }
            reads.push((slot, value));
        }
        let mut outputs = Vec::new();
        for (value, dies) in self.window.dies.iter().enumerate() {
            if *dies {
                continue;
            }
            let value = value as ValueIndex;
            if self.value(value).source == Source::Host && self.value(value).versions.is_empty() {
                continue;
            }
            let slot = self.settled(value, Reason::Survivor)?;
            if slot == self.loaded[value as usize] {
                continue; // Untouched: it stays where it was.
            }
            let info = self.value(value);
            outputs.push(Outlives {
                value,
                layout: self.slots[slot as usize].layout.clone(),
                role: self.facts.roles[value as usize].clone(),
                origin: info.origin.filter(|_| !info.met),
            });
            self.steps.push(ProgramStep::Store { slot, value });
        }
        for (index, (slot, _)) in reads.iter().enumerate() {
            self.steps.push(ProgramStep::Read {
                slot: *slot,
                read: index as u32,
            });
        }
        let num_streams = self.streams.len() as u64;
        Ok(Program {
            steps: self.steps,
            slots: self.slots,
            values: self.values.into(),
            outputs,
            reads,
            num_streams,
            accumulated: self.accumulated,
            runs: self.runs,
            rows: self.rows,
            few_rows: self.few_rows,
            coord: 0,
        })
    }
}
