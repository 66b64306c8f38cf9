//! Programs of all ranks.

use std::sync::Arc;

use super::{Failed, Form, Reader, Tensors, Writer, form, lines, numbered};
use crate::ir::{
    Accumulated, Chunked, LocalStep, Move, OnNodes, Op, OpIndex, Outlives, Owner, Program,
    ProgramStep, Reason, Slot, SlotInfo, Source, Transfer, Value, Version,
};
use crate::layout::Layout;
use crate::layout::redistribute::{Step, StepKind};
use crate::rule::Assignment;

form!(struct Program<O> {
    "at " coord, "\nvalues " values as values, "\nslots " slots as slots, "\nsteps " steps as lines,
    "\noutputs " outputs as lines, "\nreads " reads, "\nstreams " num_streams, "\naccumulated " accumulated,
    "\nrows " rows, "\nfew rows " few_rows,
});
form!(struct Accumulated { "" added, " kept " kept });
form!(struct Value {
    "" dtype, " " shape, " of " source or Source::Versions, " prefers " preferred or Arc::new(Layout::replicated(&[])),
    " made of " origin or None,
    " few rows " few_rows or None, " met" met or false, " param " tag or None, " home " home or None,
    " owner " owner or Owner::default(), " used by " uses or Vec::new(), " survives" survives or false,
    " versions " versions or Vec::new(),
});
form!(enum Source {
    "versions" => Versions, "host" => Host, "deferred" => Deferred { " " op, " depth " depth },
});
form!(struct Version { "s" slot, " " layout, " until " until or None });
form!(struct SlotInfo { "" dtype, " " layout, " of %" value });
form!(struct Outlives { "%" value, " " layout, " " role, " made of " origin or None });
form!(enum ProgramStep<O> {
    "load" => Load { " %" value, " to s" slot },
    "upload" => Upload { " %" value, " to s" slot },
    "random" => Random { " stream " stream, " to s" slot, " @" op },
    "run" => Local(" " step),
    "move" => Move(" " step),
    "chunked" => Chunked(" " step),
    "launch" => Launch { " " group, " " moves as lines },
    "finish" => Finish { " " group, " " to },
    "store" => Store { " s" slot, " as %" value },
    "read" => Read { " " read, " s" slot },
    "send" => Send(" " transfer),
    "receive" => Receive(" " transfer),
});
form!(struct Transfer { "s" slot, " from " from, " to " to, " along " axis, " in " path or None });
form!(struct Chunked<O> {
    "along " axis, " on " chunks, " keeps_whole" keeps_whole or false, " beside " moved, " of " steps as lines,
});
form!(enum OnNodes {
    "one level" => OneLevel, "flat" => Flat(" " why), "stage" => Stage { " " index, " on " split },
});
form!(enum Reason {
    "operand" => Operand(" " kind), "survivor" => Survivor, "constraint" => Constraint(" " what), "read" => Read,
});

/// Slots of a program; `same` of those of the program before.
mod slots {
    use super::*;

    fn known(slots: &[SlotInfo], known: &mut super::super::Known<'_>) {
        let tensor = |slot: &SlotInfo| (slot.dtype, slot.layout.shape());
        known.tensors = Tensors {
            sign: "s",
            known: (0..).zip(slots.iter().map(tensor)).collect(),
            count: Some(slots.len() as Slot),
        };
        known.slots = slots.to_vec();
    }

    pub(super) fn write(slots: &[SlotInfo], to: &mut Writer<'_>) {
        match to.known.slots == slots {
            true => to.put("same"),
            false => numbered::write(slots, to),
        }
        known(slots, &mut to.known);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Vec<SlotInfo>, Failed> {
        let slots: Vec<SlotInfo> = match from.has("same") {
            true => from.known.slots.clone(),
            false => numbered::read(from)?,
        };
        known(&slots, &mut from.known);
        Ok(slots)
    }
}

/// Values of a program; `same` of those of the program before.
mod values {
    use super::*;

    pub(super) fn write(values: &Arc<[Value]>, to: &mut Writer<'_>) {
        match to.known.values == *values {
            true => to.put("same"),
            false => numbered::write(values, to),
        }
        to.known.values = values.clone();
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Arc<[Value]>, Failed> {
        if !from.has("same") {
            from.known.values = numbered::read(from)?;
        }
        Ok(from.known.values.clone())
    }
}

/// Layouts, where they are not those of their slots.
type Layouts = Option<Box<[Arc<Layout>]>>;

/// An operation without what follows from it and its slots.
struct Local<O> {
    op: O,
    of: OpIndex,
    at: Option<OpIndex>,
    assignment: Option<Arc<Assignment>>,
    inputs: Layouts,
    outputs: Layouts,
    path: Option<Arc<str>>,
}

form!(struct Local<O> {
    "" op, " @" of, " at " at or None, " split " assignment or None, " reads " inputs or None,
    " makes " outputs or None, " in " path or None,
});

/// The layouts of the slots that an operation reads, and of those that it makes.
fn of_slots<O: Op>(op: &O, slots: &[SlotInfo]) -> [Box<[Arc<Layout>]>; 2] {
    let whole = |shape: &[usize]| Arc::new(Layout::replicated(shape));
    let layout = |tensor: crate::ir::Tensor<'_>| match slots.get(tensor.id as usize) {
        Some(slot) => slot.layout.clone(),
        None => whole(tensor.shape),
    };
    [
        op.inputs().map(layout).collect(),
        op.outputs().map(layout).collect(),
    ]
}

impl<O: Op + Form> Form for LocalStep<O> {
    fn write(&self, to: &mut Writer<'_>) {
        let Self {
            op,
            rule,
            assignment,
            inputs,
            outputs,
            path,
            of,
            at,
        } = self;
        assert_eq!(**rule, op.rule(), "{op:?} has a rule of its own");
        let [read, made] = of_slots(op, &to.known.slots);
        let local = Local {
            op: op.clone(),
            of: *of,
            at: (at != of).then_some(*at),
            assignment: assignment.clone(),
            inputs: (*inputs != read).then(|| inputs.clone()),
            outputs: (*outputs != made).then(|| outputs.clone()),
            path: path.clone(),
        };
        local.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let Local {
            op,
            of,
            at,
            assignment,
            inputs,
            outputs,
            path,
        } = Local::<O>::read(from)?;
        let [read, made] = of_slots(&op, &from.known.slots);
        Ok(Self {
            rule: Arc::new(op.rule()),
            op,
            assignment,
            inputs: inputs.unwrap_or(read),
            outputs: outputs.unwrap_or(made),
            path,
            of,
            at: at.unwrap_or(of),
        })
    }
}

/// A move without what follows from its slots.
struct Moved {
    to: Slot,
    kind: StepKind,
    from: Slot,
    before: Option<Layout>,
    after: Option<Layout>,
    reason: Reason,
    at: OpIndex,
    on_nodes: OnNodes,
    path: Option<Arc<str>>,
}

form!(struct Moved {
    "s" to, " = " kind, " of s" from, " was " before or None, " is " after or None, " for " reason, " @" at,
    " on nodes " on_nodes or OnNodes::OneLevel, " in " path or None,
});

fn of_slot(slot: Slot, slots: &[SlotInfo]) -> Option<&Layout> {
    Some(&slots.get(slot as usize)?.layout)
}

impl Form for Move {
    fn write(&self, to: &mut Writer<'_>) {
        let Self {
            step,
            on_nodes,
            from,
            to: made,
            reason,
            path,
            at,
        } = self;
        let other = |layout: &Layout, slot: Slot| {
            let known = of_slot(slot, &to.known.slots);
            (known != Some(layout)).then(|| layout.clone())
        };
        let moved = Moved {
            to: *made,
            kind: step.kind.clone(),
            from: *from,
            before: other(&step.from, *from),
            after: other(&step.to, *made),
            reason: reason.clone(),
            at: *at,
            on_nodes: *on_nodes,
            path: path.clone(),
        };
        moved.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let moved = Moved::read(from)?;
        let layout = |own: Option<Layout>, slot: Slot| {
            own.or_else(|| of_slot(slot, &from.known.slots).cloned())
        };
        let (before, after) = (
            layout(moved.before, moved.from),
            layout(moved.after, moved.to),
        );
        let (Some(before), Some(after)) = (before, after) else {
            return from.fail("slots of the program");
        };
        let step = Step {
            kind: moved.kind,
            from: before,
            to: after,
        };
        Ok(Self {
            step: Arc::new(step),
            on_nodes: moved.on_nodes,
            from: moved.from,
            to: moved.to,
            reason: moved.reason,
            path: moved.path,
            at: moved.at,
        })
    }
}
