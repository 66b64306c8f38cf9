//! Work that ranks do more than once: what of the flops of a window several ranks along a mesh axis spend on the same
//! result.
//!
//! An operation uses an axis if its work is split over it, or if ranks along it work on different terms. Along an axis
//! of size n that it does not use, all n ranks compute the same: (n - 1) / n of the work is done more than once.
//!
//! Left out is the update of parameters by the optimizer: elementwise operations that lead to a parameter. The products
//! that make gradients are none of it.
//!
//! The products alone are counted twice: what the model asks for, each once (model flops), and what all ranks execute,
//! what they repeat and what is made again for the backward included (hardware flops).

use std::fmt;

use serde::Serialize;

use crate::facts::Facts;
use crate::ir::flops::flops;
use crate::ir::{Common, LocalStep, Op, Program, collective, is_product};
use crate::mesh::{AxisIndex, MeshShape};
use crate::rule::OpRule;

/// A mesh warns when more than this share of the work of a window is done more than once along an axis.
const SHARE_MAX: f64 = 0.1;

/// Work that ranks along one axis do more than once.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AxisRedundancy {
    /// The axis.
    pub axis: String,
    /// Flops done more than once along it, over all ranks.
    pub flops: f64,
    /// The first operation among these: the first product (of matrices, a convolution, attention), if there is one.
    pub first: Option<String>,
    #[serde(skip)]
    is_product: bool,
    #[serde(skip)]
    is_model: bool,
    /// Whether rows of data are split over it.
    #[serde(skip)]
    is_data: bool,
    /// Whether the work of some product is split over it.
    #[serde(skip)]
    is_split: bool,
}

/// How much of the work is done more than once.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Redundancy {
    /// Flops of all ranks together: of products and of everything else but the optimizer's update.
    pub flops: f64,
    /// Flops of the products alone, each counted once, whoever does it how often, and without what is made again: what
    /// the model asks for.
    pub model_flops: f64,
    /// Flops of the products that all ranks execute, together: what they repeat and what is made again included.
    pub hardware_flops: f64,
    /// The axes of the mesh with more than one rank, in mesh order.
    pub axes: Vec<AxisRedundancy>,
    /// The rows of data, if they are fewer than the ranks that would each have rows of their own, and these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub few_rows: Option<FewRows>,
    /// Whether there are rows of data at all.
    #[serde(skip)]
    has_rows: bool,
}

/// Rows of data that are too few to split: every rank computes all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FewRows {
    /// The most rows of data that a window has.
    pub rows: usize,
    /// The ranks along all axes that split rows, together: as many rows would be enough.
    pub ranks: usize,
}

impl Redundancy {
    /// Returns the share of all flops that are done more than once along an axis, from 0 to 1.
    pub fn share(&self, axis: &str) -> f64 {
        let found = self.axes.iter().find(|found| found.axis == axis);
        match found {
            Some(found) if self.flops > 0.0 => found.flops / self.flops,
            _ => 0.0,
        }
    }

    /// Returns what to say of a window whose ranks repeat too much; nothing of one without products, which is no work
    /// to speak of, and along an axis that splits rows, nothing of one without rows.
    pub fn warning(&self) -> Option<String> {
        let is_told = |axis: &&AxisRedundancy| {
            let has_way_out = axis.is_model || self.has_rows;
            has_way_out && self.hardware_flops > 0.0 && self.share(&axis.axis) > SHARE_MAX
        };
        let texts: Vec<String> = self
            .axes
            .iter()
            .filter(is_told)
            .map(|axis| {
                let percent = 100.0 * self.share(&axis.axis);
                let first = axis.first.as_deref().unwrap_or("an operation");
                let name = &axis.axis;
                let few_rows = self.few_rows.filter(|_| axis.is_data);
                let way_out = match (few_rows, axis.is_model, axis.is_split) {
                    (Some(FewRows { rows, ranks }), ..) => format!(
                        "{rows} row(s) of data cannot be split over the {ranks} ranks that take rows of their own, so \
                         every rank computes all of them: give a step at least {ranks} rows, or the mesh fewer ranks \
                         along {name}"
                    ),
                    (None, true, _) => format!(
                        "split the model over {name}: give its layers a style (`#[parallel(..)]` or a `Plan`) \
                         and call `.parallelize` before it is first used"
                    ),
                    (None, false, false) => format!(
                        "split the batch over {name}: make it from data, its rows as dim 0, or `redistribute` \
                         it, and call `.parallelize` on the model before it is first used"
                    ),
                    (None, false, true) => format!(
                        "the batch is split over {name}, but to gather its few rows is cheaper than to reduce \
                         the gradients of large weights: give a step more rows, or look for what is whole in \
                         `burn_dist::explain`"
                    ),
                };
                format!(
                    "{percent:.0} % of the work is done more than once along {name}, first by {first}: {way_out}"
                )
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

impl std::ops::AddAssign<&Redundancy> for Redundancy {
    fn add_assign(&mut self, other: &Redundancy) {
        self.flops += other.flops;
        self.model_flops += other.model_flops;
        self.hardware_flops += other.hardware_flops;
        self.few_rows = self.few_rows.or(other.few_rows);
        self.has_rows |= other.has_rows;
        for axis in &other.axes {
            match self.axes.iter_mut().find(|mine| mine.axis == axis.axis) {
                Some(mine) => {
                    mine.is_split |= axis.is_split;
                    mine.add(axis.flops, axis.is_product, || axis.first.clone());
                }
                None => self.axes.push(axis.clone()),
            }
        }
    }
}

impl AxisRedundancy {
    fn add(&mut self, flops: f64, is_product: bool, name: impl FnOnce() -> Option<String>) {
        if flops <= 0.0 {
            return;
        }
        self.flops += flops;
        if self.first.is_none() || (is_product && !self.is_product) {
            self.first = name();
            self.is_product = is_product;
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (model, ranks) = (human_flops(self.model_flops), human_flops(self.flops));
        write!(f, "work of the model: {model}, of all ranks: {ranks}")?;
        for (index, axis) in self.axes.iter().enumerate() {
            let percent = 100.0 * self.share(&axis.axis);
            let lead = if index == 0 {
                "; done more than once: "
            } else {
                ", "
            };
            write!(f, "{lead}{percent:.1} % along {}", axis.axis)?;
            if let Some(first) = &axis.first {
                write!(f, " (first {first})")?;
            }
        }
        Ok(())
    }
}

/// Flops for people: `12.5 Mflop`.
fn human_flops(flops: f64) -> String {
    const UNITS: [&str; 6] = ["flop", "kflop", "Mflop", "Gflop", "Tflop", "Pflop"];
    let mut value = flops;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0} flop"),
        unit => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Sets of axes, as bits.
type Axes = u64;

fn bits(axes: impl IntoIterator<Item = AxisIndex>) -> Axes {
    axes.into_iter().fold(0, |bits, axis| bits | (1 << axis.0))
}

/// Returns the axes over which the ranks that run a step share the work: over which not all of them need what each step
/// makes.
fn shared<O: Op>(program: &Program<O>) -> Vec<Axes> {
    let mut needed: Vec<Option<Axes>> = vec![None; program.slots.len()];
    let mut shared = vec![0; program.steps.len()];
    let need = |needed: &mut Vec<Option<Axes>>, slot: u32, axes: Axes| {
        if let Some(known) = needed.get_mut(slot as usize) {
            *known = Some(known.map_or(axes, |known| known & axes));
        }
    };
    for (index, step) in program.steps.iter().enumerate().rev() {
        match step {
            Common::Local(step) => {
                let made = step.op.outputs().map(|out| needed[out.id as usize]);
                let made = made.fold(None, |all, axes| match (all, axes) {
                    (Some(all), Some(axes)) => Some(all & axes),
                    (all, axes) => all.or(axes),
                });
                shared[index] = made.unwrap_or(0);
                for (position, input) in step.op.inputs().enumerate() {
                    let axes = shared[index] | bits(step.in_pieces(position));
                    need(&mut needed, input.id, axes);
                }
            }
            Common::Move(step) => {
                let axes = match collective(&step.step.kind) {
                    Some(_) => 0,
                    None => needed[step.to as usize].unwrap_or(0),
                };
                need(&mut needed, step.from, axes);
            }
            Common::Store { slot, .. } | Common::Read { slot, .. } => need(&mut needed, *slot, 0),
            _ => {}
        }
    }
    shared
}

fn name<O: Op>(op: &O, step: &LocalStep<O>) -> String {
    let out = op.outputs().next();
    let shape = out.map(|out| format!(" of {:?}", out.shape));
    let path = step.path.as_ref().filter(|path| !path.is_empty());
    let path = path.map(|path| format!(" in {path}"));
    [Some(op.name().to_string()), shape, path]
        .into_iter()
        .flatten()
        .collect()
}

/// Whether an operation is part of an optimizer's update: elementwise, and on the way to a new parameter. What makes
/// the gradient that an update begins with is none of it.
fn is_update<O: Op>(step: &LocalStep<O>, program: &Program<O>, facts: &Facts) -> bool {
    let is_elementwise = matches!(&*step.rule, OpRule::Factors(rule) if rule.elementwise);
    is_elementwise
        && step.op.outputs().any(|out| {
            let made = program.slots.get(out.id as usize);
            made.is_some_and(|made| facts.update_of[made.value as usize].is_some())
        })
}

/// Counts the work of a program in which each step is run so many times.
pub(super) fn redundancy<O: Op>(
    program: &Program<O>,
    facts: &Facts,
    mesh: &MeshShape,
    times: impl Fn(usize) -> f64,
) -> Redundancy {
    let splits = |axis: &AxisIndex| mesh.size(*axis) > 1 && mesh.role(*axis).splits_tensors();
    let axes: Vec<_> = mesh.axis_indices().filter(splits).collect();
    let data_axes = mesh.data_axes();
    let ranks = mesh.group_size(&data_axes);
    let rows = program.rows.max(program.few_rows);
    let mut found = Redundancy {
        axes: axes
            .iter()
            .map(|&axis| AxisRedundancy {
                axis: mesh.name(axis).to_string(),
                is_model: mesh.role(axis).splits_model(),
                is_data: data_axes.contains(&axis),
                ..AxisRedundancy::default()
            })
            .collect(),
        few_rows: (0 < rows && rows < ranks).then_some(FewRows { rows, ranks }),
        has_rows: rows > 0,
        ..Redundancy::default()
    };
    let shared = shared(program);
    // What is met a second time is made again for the backward.
    let mut is_made = vec![false; facts.phases.len()];
    for (index, (step, shared)) in program.steps.iter().zip(shared).enumerate() {
        let Common::Local(step) = step else { continue };
        let of_all = flops(&step.op, &step.rule) * times(index);
        if of_all == 0.0 || is_update(step, program, facts) {
            continue;
        }
        let used = match &step.assignment {
            Some(split) => {
                let factors = split.factors.iter().flat_map(|factor| factor.axes());
                bits(factors.chain(split.kept.iter().map(|partial| partial.axis)))
            }
            None => 0,
        };
        let used = used | shared;
        let is_used = |axis: &AxisIndex| used & bits([*axis]) != 0;
        let unused = axes.iter().filter(|axis| !is_used(axis));
        let repeats: f64 = unused.map(|&axis| mesh.size(axis) as f64).product();
        let done = of_all * repeats;
        let is_product = is_product(&step.op);
        found.flops += done;
        let is_again = std::mem::replace(&mut is_made[step.of as usize], true);
        if is_product {
            found.hardware_flops += done;
            if !is_again {
                found.model_flops += of_all - step.op.remade_flops() * times(index);
            }
        }
        for (axis, total) in axes.iter().zip(&mut found.axes) {
            total.is_split |= is_product && is_used(axis);
            if !is_used(axis) {
                let size = mesh.size(*axis) as f64;
                let repeated = done * (size - 1.0) / size;
                total.add(repeated, is_product, || Some(name(&step.op, step)));
            }
        }
    }
    found
}
