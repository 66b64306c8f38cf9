//! Runs of operations that repeat are planned once.
//!
//! A *run* is the operations of one visit of a unit. Models repeat their layers: the run of one layer differs from that
//! of the next in names alone. [`Key`] is all that planning reads of a run, [`Names`] is what tells runs of one key
//! apart: numbers of values, slots and scalars, paths of parameters. The first run of a key is planned operation by
//! operation and kept as a [`Template`]; the others get its steps and the state of its values, under their own names.
//!
//! Left out on purpose: runs with parameters placed in them and with reads or writes at indices (what these leave
//! behind is found by value), and runs that computed a deferred value from outside (its operands are no part of the
//! key). They are planned operation by operation.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};

use super::{Propagator, Unflattened};
use crate::PlanError;
use crate::ir::{
    Adjoint, Mark, Op, OpIndex, Origin, Owner, ParamSpec, ProgramStep, Slot, SlotInfo, Source,
    Stage, ValueIndex, Version,
};
use crate::layout::Layout;

#[cfg(test)]
mod tests;

/// Numbers things in order of first appearance.
struct Numbering<T> {
    order: Vec<T>,
    numbers: FxHashMap<T, u32>,
}

impl<T> Default for Numbering<T> {
    fn default() -> Self {
        Self {
            order: Vec::new(),
            numbers: FxHashMap::default(),
        }
    }
}

impl<T: Clone + Eq + Hash> Numbering<T> {
    fn number(&mut self, thing: &T) -> u32 {
        if let Some(number) = self.numbers.get(thing) {
            return *number;
        }
        let number = self.order.len() as u32;
        self.order.push(thing.clone());
        self.numbers.insert(thing.clone(), number);
        number
    }

    /// Returns what has in `other` the number that `thing` has here.
    fn renamed<'a>(&self, thing: &T, other: &'a Self) -> &'a T {
        &other.order[self.numbers[thing] as usize]
    }
}

/// What tells runs of one key apart.
#[derive(Default)]
struct Names {
    /// Its operations.
    ops: Range<OpIndex>,
    /// The values that its operations read or make.
    values: Numbering<ValueIndex>,
    /// The slots in which values from outside are.
    slots: Numbering<Slot>,
    /// What is known of parameters.
    specs: Numbering<Arc<ParamSpec>>,
    /// The first of the values that are tied to each other.
    ties: Numbering<ValueIndex>,
    /// Its first scalar.
    scalar: Option<u64>,
}

/// All that planning reads of a run. Values, slots and specs are numbers of its [`Names`].
#[derive(PartialEq, Hash)]
struct Key<O> {
    ops: Vec<O>,
    reduces_first: Vec<bool>,
    values: Vec<ValueKey>,
    /// Without path and unit, and on the first stage.
    specs: Vec<ParamSpec>,
}

/// All that planning reads of a value.
#[derive(PartialEq, Eq, Hash)]
struct ValueKey {
    /// Which operation a deferred one waits for is left out.
    source: Source,
    is_loaded: bool,
    /// Those that exist. The first one always does: nothing but what is gathered of it is given up.
    versions: Vec<(Arc<Layout>, u32)>,
    preferred: Arc<Layout>,
    origin: Option<Origin>,
    few_rows: Option<usize>,
    met: bool,
    tag: Option<u32>,
    view_of: Option<u32>,
    home: Option<Arc<Layout>>,
    owner: Owner,
    single_use: bool,
    /// Whether it is used after the run, and if so, whether it is given up until then where it is gathered.
    given_up: Option<bool>,
    of_layer: bool,
    backward: bool,
    gradient_of: Option<Activation>,
    unflattened: Option<u32>,
    /// The value that it is a reshape of: a module that works on flattened tokens has its layouts.
    reshape_of: Option<Activation>,
    /// Which values are tied to each other, and the layout that this decides.
    tie: (u32, Option<Arc<Layout>>),
}

/// The activation that a value is the gradient of.
#[derive(PartialEq, Eq, Hash)]
enum Activation {
    /// One of the values of the run.
    Inside(u32),
    /// Another one, whose first version has this layout.
    Outside(Option<Arc<Layout>>),
}

/// What a run has made of a value.
struct After {
    source: Source,
    /// Those that existed when the run began, and those that it has made.
    versions: Vec<Version>,
    preferred: Arc<Layout>,
    origin: Option<Origin>,
    few_rows: Option<usize>,
    met: bool,
    /// The number of the spec, and whether the layout was applied.
    unflattened: Option<(u32, bool)>,
}

/// A planned run.
struct Template<O> {
    key: Key<O>,
    names: Names,
    steps: Range<usize>,
    slots: Range<usize>,
    after: Vec<After>,
    /// See [`Accumulated`](crate::ir::Accumulated).
    added: u64,
}

/// Returns a hash of the kinds, shapes and types of a run, or `None` if it has to be planned operation by operation.
fn digest<O: Op>(ops: &[O]) -> Option<u64> {
    let mut hasher = FxHasher::default();
    for op in ops {
        let traits = op.traits();
        let by_value = matches!(op.mark(), Some(Mark::Param(_)))
            || traits.indexing.is_some()
            || matches!(
                traits.adjoint,
                Some(Adjoint::Read { .. } | Adjoint::Written { .. })
            );
        if by_value {
            return None;
        }
        op.kind().hash(&mut hasher);
        for tensor in op.inputs().chain(op.outputs()) {
            (tensor.shape, tensor.dtype).hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

impl<O: Op> Propagator<'_, O> {
    /// Plans all operations, run by run.
    pub(super) fn runs(&mut self) -> Result<(), PlanError> {
        let (window, visits) = (self.window, self.visits);
        let ops: Vec<OpIndex> = (0..window.ops.len() as OpIndex).collect();
        let runs: Vec<(Range<OpIndex>, Option<u64>)> = ops
            .chunk_by(|one, next| visits.of(*one) == visits.of(*next))
            .map(|run| {
                let ops = run[0]..run[run.len() - 1] + 1;
                let digest = self.options.stamp.then(|| digest(self.ops(&ops)));
                (ops, digest.flatten())
            })
            .collect();
        let mut repeated: FxHashMap<u64, u32> = FxHashMap::default();
        for digest in runs.iter().filter_map(|(_, digest)| *digest) {
            *repeated.entry(digest).or_default() += 1;
        }
        let mut templates: FxHashMap<u64, Template<O>> = FxHashMap::default();
        for (ops, digest) in runs {
            self.run = ops.start;
            if digest.is_none_or(|digest| repeated[&digest] == 1) {
                self.runs.planned += 1;
                self.operations(&ops)?;
                continue;
            }
            let (key, names) = self.key(ops);
            let mut hasher = FxHasher::default();
            key.hash(&mut hasher);
            let hash = hasher.finish();
            match templates.get(&hash).filter(|known| known.key == key) {
                Some(template) => {
                    self.runs.stamped += 1;
                    self.stamp(template, &names);
                }
                None => {
                    self.runs.planned += 1;
                    let template = self.template(key, names)?;
                    templates.extend(template.map(|template| (hash, template)));
                }
            }
        }
        Ok(())
    }

    fn ops(&self, run: &Range<OpIndex>) -> &[O] {
        &self.window.ops[run.start as usize..run.end as usize]
    }

    fn operations(&mut self, ops: &Range<OpIndex>) -> Result<(), PlanError> {
        for index in ops.clone() {
            self.enter(index);
            self.operation(index)?;
        }
        Ok(())
    }

    fn key(&self, run: Range<OpIndex>) -> (Key<O>, Names) {
        let mut names = Names::default();
        let mut ops = self.ops(&run).to_vec();
        for op in &mut ops {
            op.rewire(|_, wire| wire.id = names.values.number(&wire.id));
            op.rebind(|slot| *slot = slot.wrapping_sub(*names.scalar.get_or_insert(*slot)));
        }
        let reduces_first = run.clone().map(|index| self.reduces_first(index)).collect();
        let values = names.values.order.clone();
        let values = values
            .into_iter()
            .map(|value| self.value_key(value, &run, &mut names))
            .collect();
        let bare = |spec: &Arc<ParamSpec>| ParamSpec {
            path: String::new(),
            unit: None,
            stage: spec.stage.clone().map(|stage| Stage { index: 0, ..stage }),
            ..spec.as_ref().clone()
        };
        let specs = names.specs.order.iter().map(bare).collect();
        names.ops = run;
        let key = Key {
            ops,
            reduces_first,
            values,
            specs,
        };
        (key, names)
    }

    fn value_key(&self, value: ValueIndex, run: &Range<OpIndex>, names: &mut Names) -> ValueKey {
        let (info, at, last) = (self.value(value), value as usize, run.end - 1);
        let reshard = info.owner.policy.reshard;
        let next = info.next_use(last);
        let first = |value: ValueIndex| Some(self.value(value).versions.first()?.layout.clone());
        let slots = &mut names.slots;
        let versions = info.versions_at(run.start);
        let versions =
            versions.map(|version| (version.layout.clone(), slots.number(&version.slot)));
        let versions = versions.collect();
        let waiting = self.unflattened.get(&value);
        ValueKey {
            source: match info.source {
                Source::Deferred { depth, .. } => Source::Deferred { op: 0, depth },
                source => source,
            },
            is_loaded: self.loaded[at] != Slot::MAX,
            versions,
            preferred: info.preferred.clone(),
            origin: info.origin,
            few_rows: info.few_rows,
            met: info.met,
            tag: info.tag.as_ref().map(|spec| names.specs.number(spec)),
            view_of: self.facts.view_of[at]
                .as_ref()
                .map(|spec| names.specs.number(spec)),
            home: info.home.clone(),
            owner: info.owner.clone(),
            single_use: info.single_use(),
            given_up: next.map(|next| self.visits.gives_up(reshard, last, next)),
            of_layer: self.facts.of_layer[at],
            backward: self.facts.backward[at],
            gradient_of: self.facts.gradient_of[at].map(|x| match names.values.numbers.get(&x) {
                Some(number) => Activation::Inside(*number),
                None => Activation::Outside(first(x)),
            }),
            unflattened: waiting.map(|waiting| names.specs.number(&waiting.tag)),
            reshape_of: self.facts.reshape_of[at].map(|of| match names.values.numbers.get(&of) {
                Some(number) => Activation::Inside(*number),
                None => Activation::Outside(Some(Arc::new(self.gathered(of)))),
            }),
            tie: (
                names.ties.number(&self.facts.tied_to[at]),
                self.tied_layout(value),
            ),
        }
    }

    /// Plans a run; returns it for others of its key, if its key is all that it was planned by.
    fn template(&mut self, key: Key<O>, names: Names) -> Result<Option<Template<O>>, PlanError> {
        let start = names.ops.start;
        let (steps, slots) = (self.steps.len(), self.slots.len());
        let added = self.accumulated.added;
        self.first_deferred = OpIndex::MAX;
        self.operations(&names.ops)?;
        if self.first_deferred < start {
            return Ok(None);
        }
        let after = names.values.order.iter().map(|&value| {
            let info = self.value(value);
            let waiting = self.unflattened.get(&value);
            After {
                source: info.source,
                versions: info.versions_at(start).cloned().collect(),
                preferred: info.preferred.clone(),
                origin: info.origin,
                few_rows: info.few_rows,
                met: info.met,
                unflattened: waiting
                    .map(|waiting| (names.specs.numbers[&waiting.tag], waiting.is_applied)),
            }
        });
        Ok(Some(Template {
            after: after.collect(),
            key,
            steps: steps..self.steps.len(),
            slots: slots..self.slots.len(),
            added: self.accumulated.added - added,
            names,
        }))
    }

    /// Plans the run of `names` as the template was. It has no more rows of data than that had.
    fn stamp(&mut self, template: &Template<O>, names: &Names) {
        let from = &template.names;
        let delta = names.ops.start - from.ops.start;
        let created = self.slots.len() - template.slots.start;
        let slot_of = |slot: Slot| match slot as usize {
            _ if slot == Slot::MAX => slot,
            at if at < template.slots.start => *from.slots.renamed(&slot, &names.slots),
            at => (at + created) as Slot,
        };
        let value_of = |value: ValueIndex| *from.values.renamed(&value, &names.values);
        for index in template.slots.clone() {
            let info = &self.slots[index];
            self.slots.push(SlotInfo {
                value: value_of(info.value),
                ..info.clone()
            });
        }
        let paths = names.ops.clone().map(|index| {
            self.enter(index);
            self.rules[index as usize] = self.rules[(index - delta) as usize].clone();
            self.path.clone()
        });
        let paths: Vec<Option<Arc<str>>> = paths.collect();
        let path_at = |at: OpIndex| paths[(at - names.ops.start) as usize].clone();
        for index in template.steps.clone() {
            let mut step = self.steps[index].clone();
            match &mut step {
                ProgramStep::Upload { value, slot } => {
                    *value = value_of(*value);
                    *slot = slot_of(*slot);
                }
                ProgramStep::Random { op, stream, slot } => {
                    *op += delta;
                    *stream = self.streams[op];
                    *slot = slot_of(*slot);
                }
                ProgramStep::Local(step) => {
                    step.op.rewire(|_, wire| wire.id = slot_of(wire.id));
                    let (before, now) = (from.scalar.unwrap_or(0), names.scalar.unwrap_or(0));
                    step.op
                        .rebind(|slot| *slot = slot.wrapping_sub(before).wrapping_add(now));
                    step.of += delta;
                    step.at += delta;
                    step.path = path_at(step.at);
                }
                ProgramStep::Move(step) => {
                    step.from = slot_of(step.from);
                    step.to = slot_of(step.to);
                    step.at += delta;
                    step.path = path_at(step.at);
                }
                _ => unreachable!("no other step is planned for an operation"),
            }
            self.steps.push(step);
        }
        for (after, &value) in template.after.iter().zip(&names.values.order) {
            let info = &mut self.values[value as usize];
            let mut versions = after.versions.iter().map(|version| Version {
                layout: version.layout.clone(),
                slot: slot_of(version.slot),
                until: version.until.map(|until| until + delta),
            });
            let start = names.ops.start;
            let num_known = info.versions_at(start).count();
            if after.versions.len() > num_known {
                info.forget(start);
            }
            let known = info.versions.iter_mut();
            let known = known.filter(|version| version.exists_at(start));
            for (known, version) in known.zip(versions.by_ref().take(num_known)) {
                *known = version;
            }
            info.versions.extend(versions);
            if let Source::Deferred { op, depth } = after.source
                && op >= from.ops.start
            {
                let op = op + delta;
                info.source = Source::Deferred { op, depth };
            }
            info.preferred = after.preferred.clone();
            info.origin = after.origin;
            info.few_rows = after.few_rows;
            info.met = after.met;
            self.note_decided(value);
            if let Some((spec, is_applied)) = after.unflattened {
                let tag = names.specs.order[spec as usize].clone();
                self.unflattened
                    .insert(value, Unflattened { tag, is_applied });
            }
        }
        self.accumulated.added += template.added;
    }
}
