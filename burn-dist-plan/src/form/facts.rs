//! Windows, and what is known of them.

use std::sync::Arc;

use super::{Failed, Form, Reader, Tensors, Writer, form, lines, numbered};
use crate::Facts;
use crate::facts::Visits;
use crate::facts::stages::Stages;
use crate::facts::visits::Unit;
use crate::ir::window::Input;
use crate::ir::{
    Entry, InputState, Mark, Origin, Owner, ParamSpec, Phase, Role, Slot, Tensor, Window,
};

form!(struct Window<O> {
    "inputs " inputs as inputs, "\nops " ops as numbered, "\nkeeps " dies as kept, "\nreads " reads, "\nhash " hash,
});
form!(struct Input { "%" value, ": " dtype, " " shape, " " state });
form!(enum InputState {
    "placed" => Placed {
        " " layout, " as " role or Role::Unknown, " made of " origin or None, " stage " stage or None,
    },
    "host" => Host { " " preferred, " " entry },
});
form!(enum Entry { "rows" => Rows, "free" => Free(" " origin) });
form!(enum Origin { "constants" => Constants, "data" => Data });
form!(enum Mark { "param" => Param(" " spec), "redistribute" => Redistribute(" to " layout) });
form!(enum Role {
    "parameter" => Parameter(" " spec), "gradient" => Gradient(" " spec), "state" => State(" " spec),
    "activation" => Activation, "input" => Input, "constant" => Constant, "unknown" => Unknown,
});
form!(enum Phase { "forward" => Forward, "backward" => Backward, "update" => Update });
form!(struct Owner { "" policy, " whole" is_whole or false });

/// Inputs of a window: tensors that are known from then on.
mod inputs {
    use super::*;

    pub(super) fn write(inputs: &[Input], to: &mut Writer<'_>) {
        to.known.tensors = Tensors::new("%");
        lines::write(inputs, to);
        for input in inputs {
            let tensor = (input.dtype, input.shape.clone());
            to.known.tensors.meet(input.value, tensor);
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Vec<Input>, Failed> {
        from.known.tensors = Tensors::new("%");
        let inputs: Vec<Input> = lines::read(from)?;
        for input in &inputs {
            let tensor = (input.dtype, input.shape.clone());
            from.known.tensors.meet(input.value, tensor);
        }
        Ok(inputs)
    }
}

/// Flags by number: those that are set.
pub(super) mod set {
    use super::*;

    pub(in super::super) fn write(flags: &[bool], to: &mut Writer<'_>) {
        let numbers = (0u32..).zip(flags).filter(|(_, flag)| **flag);
        let set: Vec<u32> = numbers.map(|(number, _)| number).collect();
        set.write(to);
        to.put(" of ");
        flags.len().write(to);
    }

    pub(in super::super) fn read(from: &mut Reader<'_>) -> Result<Vec<bool>, Failed> {
        read_of(from, |from| from.count())
    }

    pub(super) fn read_of(
        from: &mut Reader<'_>,
        count: impl FnOnce(&mut Reader<'_>) -> Result<usize, Failed>,
    ) -> Result<Vec<bool>, Failed> {
        let set: Vec<u32> = Form::read(from)?;
        from.word("of")?;
        let mut flags = vec![false; count(from)?];
        for number in set {
            match flags.get_mut(number as usize) {
                Some(flag) => *flag = true,
                None => return from.fail(format!("more than {number}")),
            }
        }
        Ok(flags)
    }
}

/// The values that do not die.
mod kept {
    use super::*;

    pub(super) fn write(dies: &[bool], to: &mut Writer<'_>) {
        let kept: Vec<bool> = dies.iter().map(|dies| !dies).collect();
        set::write(&kept, to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Vec<bool>, Failed> {
        let kept = set::read_of(from, |from| from.num_tensors())?;
        Ok(kept.into_iter().map(|kept| !kept).collect())
    }
}

/// The facts of one value.
#[derive(Clone)]
struct OfValue {
    role: Role,
    view_of: Option<Arc<ParamSpec>>,
    update_of: Option<Arc<ParamSpec>>,
    backward: bool,
    of_layer: bool,
    updating: bool,
    lasting: bool,
    gradient_of: Option<u32>,
    reshape_of: Option<u32>,
    tied_to: u32,
}

/// The facts of one operation.
#[derive(Clone)]
struct OfOp {
    phase: Phase,
    microbatch: u32,
    after_backward: bool,
}

/// The facts of a window, value by value and operation by operation.
struct Rows {
    values: Vec<OfValue>,
    ops: Vec<OfOp>,
    ones: Vec<u32>,
}

form!(struct OfValue {
    "" role, " view of " view_of or None, " in the update of " update_of or None, " backward" backward or false,
    " of_layer" of_layer or false, " updating" updating or false, " lasting" lasting or false,
    " gradient of " gradient_of or None, " reshape of " reshape_of or None, " tied to " tied_to,
});
form!(struct OfOp { "" phase, " " microbatch, " after_backward" after_backward or false });
form!(struct Rows { "values " values as numbered, "\nops " ops as numbered, "\nones " ones });

impl Form for Facts {
    fn write(&self, to: &mut Writer<'_>) {
        let Self {
            roles,
            view_of,
            update_of,
            backward,
            of_layer,
            updating,
            lasting,
            gradient_of,
            reshape_of,
            tied_to,
            phases,
            microbatches,
            ones,
            after_backward,
            // What operations say themselves.
            rules: _,
        } = self;
        let values = (0..roles.len()).map(|at| OfValue {
            role: roles[at].clone(),
            view_of: view_of[at].clone(),
            update_of: update_of[at].clone(),
            backward: backward[at],
            of_layer: of_layer[at],
            updating: updating[at],
            lasting: lasting[at],
            gradient_of: gradient_of[at],
            reshape_of: reshape_of[at],
            tied_to: tied_to[at],
        });
        let ops = (0..phases.len()).map(|at| OfOp {
            phase: phases[at],
            microbatch: microbatches[at],
            after_backward: after_backward[at],
        });
        let rows = Rows {
            values: values.collect(),
            ops: ops.collect(),
            ones: ones.clone(),
        };
        rows.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
        let Rows { values, ops, ones } = Rows::read(from)?;
        Ok(Self {
            roles: values.iter().map(|of| of.role.clone()).collect(),
            view_of: values.iter().map(|of| of.view_of.clone()).collect(),
            update_of: values.iter().map(|of| of.update_of.clone()).collect(),
            backward: values.iter().map(|of| of.backward).collect(),
            of_layer: values.iter().map(|of| of.of_layer).collect(),
            updating: values.iter().map(|of| of.updating).collect(),
            lasting: values.iter().map(|of| of.lasting).collect(),
            gradient_of: values.iter().map(|of| of.gradient_of).collect(),
            reshape_of: values.iter().map(|of| of.reshape_of).collect(),
            tied_to: values.iter().map(|of| of.tied_to).collect(),
            phases: ops.iter().map(|of| of.phase).collect(),
            microbatches: ops.iter().map(|of| of.microbatch).collect(),
            after_backward: ops.iter().map(|of| of.after_backward).collect(),
            ones,
            rules: Vec::new(),
        })
    }
}

form!(struct Unit { "" number, " " owner });
form!(struct Visits { "of ops " of_op, "\nof units " unit, "\nunits " units as numbered });
form!(struct Stages { "of " pipeline, "\nops " of_op, "\nhomes " homes });

/// Writes a tensor of an operation: its number, with type and shape where they are not known. A slot of which the shape
/// alone is read is none: it has no number.
pub fn write_tensor(tensor: Tensor<'_>, to: &mut Writer<'_>) {
    let Tensor {
        id,
        shape,
        dtype,
        last_use,
    } = tensor;
    let name = match id {
        Slot::MAX => "shape".to_string(),
        id => format!("{}{id}", to.known.tensors.sign),
    };
    to.put(&name);
    to.put(if last_use { "!" } else { "" });
    let found = (dtype, shape.to_vec());
    if to.known.tensors.known.get(&id) != Some(&found) {
        to.put(": ");
        dtype.write(to);
        to.put(" ");
        found.1.write(to);
        to.known.tensors.meet(id, found);
    }
}

/// Reads a tensor of an operation, and makes a thing of it.
///
/// # Errors
/// [`Failed`] if it is none, or its type and shape are not known.
pub fn read_tensor<T>(
    from: &mut Reader<'_>,
    make: impl FnOnce(Tensor<'_>) -> T,
) -> Result<T, Failed> {
    let id = match from.has("shape") {
        true => Slot::MAX,
        false => {
            from.word(from.known.tensors.sign)?;
            let end = from.known.tensors.count.unwrap_or(Slot::MAX);
            let number = |digits: &str| digits.parse().ok().filter(|id| *id < end);
            from.token("the number of a tensor", |c| c.is_ascii_digit(), number)?
        }
    };
    let last_use = from.has("!");
    let (dtype, shape) = match from.has(":") {
        true => (Form::read(from)?, Form::read(from)?),
        false => match from.known.tensors.known.get(&id) {
            Some(known) => known.clone(),
            None => return from.fail("a type and a shape"),
        },
    };
    let made = make(Tensor {
        id,
        shape: &shape,
        dtype,
        last_use,
    });
    from.known.tensors.meet(id, (dtype, shape));
    Ok(made)
}
