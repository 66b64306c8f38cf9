//! Custom operations, run by their own kernels.

use std::any::type_name;

use burn_ir::BackendIr;

use super::{Env, ExecuteError};
use crate::ops::custom::{Custom, CustomTensor, Kernel};

/// Runs a custom operation.
///
/// # Errors
/// [`ExecuteError::Results`] if it makes something else than it says.
pub(super) fn execute<B: BackendIr, E: Env<B>>(
    op: &Custom,
    env: &mut E,
) -> Result<(), ExecuteError> {
    let Some(kernel) = op.kernel.downcast_ref::<Kernel<B>>() else {
        unreachable!("recorded for another backend than {}", type_name::<B>())
    };
    let inputs: Vec<CustomTensor<B>> = op
        .inputs
        .iter()
        .map(|input| CustomTensor::of_handle(env.take(input), input.shape.clone(), input.dtype))
        .collect();
    let made = kernel.run(op.definition.as_ref(), inputs, env.device());
    let found: Vec<_> = made.iter().map(CustomTensor::info).collect();
    let is_as_said = found.len() == op.outputs.len()
        && found
            .iter()
            .zip(&op.outputs)
            .all(|(found, out)| found.shape == *out.shape && found.dtype == out.dtype);
    if !is_as_said {
        let text = |shape: &[usize], dtype: burn_std::DType| format!("{} {shape:?}", dtype.name());
        let found = found.iter().map(|info| text(&info.shape, info.dtype));
        let expected = op.outputs.iter().map(|out| text(&out.shape, out.dtype));
        return Err(ExecuteError::Results {
            op: op.definition.id(),
            found: found.collect::<Vec<_>>().join(", "),
            expected: expected.collect::<Vec<_>>().join(", "),
        });
    }
    for (tensor, out) in made.into_iter().zip(&op.outputs) {
        env.put(out, tensor.into_handle());
    }
    Ok(())
}
