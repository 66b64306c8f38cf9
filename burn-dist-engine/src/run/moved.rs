//! Zeros, reshaped and concatenated tensors that are in memory: on all threads, in memory that freed results have left.

use std::sync::Arc;

use burn_dist_kernels::region::{Array, concat, copy, zeros};
use burn_flex::FlexTensor;
use burn_ir::{BackendIr, TensorIr};

use super::bridge::{from_flex, in_order, is_in_memory, to_flex};
use super::bytes::of_pool;
use crate::comm::Pool;
use crate::ops::Recorded;
use crate::ops::execute::Env;
use crate::ops::moved::Moved;

/// Runs an operation that fills a tensor in memory or moves elements there; returns `false` if it is another.
pub(super) fn run<B: BackendIr>(op: &Recorded, env: &mut impl Env<B>, pool: &Arc<Pool>) -> bool {
    if !is_in_memory::<B>() {
        return false;
    }
    let Some((moved, out)) = op.moved() else {
        return false;
    };
    let size = out.dtype.size();
    let bytes = out.shape.num_elements() * size;
    let parts: Vec<FlexTensor> = match &moved {
        Moved::Zeros => Vec::new(),
        Moved::Reshape(from) => vec![taken::<B>(from, env)],
        Moved::Cat(parts, _) => parts.iter().map(|part| taken::<B>(part, env)).collect(),
    };
    if let (Moved::Reshape(_), [from]) = (&moved, &parts[..])
        && from.layout().is_contiguous()
    {
        let looked = from_flex::<B>(from.reshape(out.shape.clone()), out.dtype);
        env.put(out, looked.expect("tensors of this backend are in memory"));
        return true;
    }
    let arrays: Vec<Array<'_>> = parts.iter().map(|part| array(part, size)).collect();
    let mut memory = pool.take(bytes);
    let to = &mut memory.as_uninit_mut()[..bytes];
    match (&moved, &arrays[..]) {
        (Moved::Cat(_, dim), arrays) => concat(arrays, *dim, to),
        (_, [array]) => copy(array, to),
        (_, _) => {
            zeros(to);
            Ok(())
        }
    }
    .unwrap_or_else(|error| panic!("a recorded tensor lies as its layout says: {error}"));
    drop(parts);
    // SAFETY: all bytes are written.
    let data = unsafe { of_pool(memory, bytes) };
    env.put(out, in_order::<B>(data, out.shape.clone(), out.dtype));
    true
}

/// Takes a tensor in memory.
fn taken<B: BackendIr>(tensor: &TensorIr, env: &mut impl Env<B>) -> FlexTensor {
    let handle = env.take(tensor);
    to_flex::<B>(handle, tensor.shape.as_slice(), tensor.dtype)
        .unwrap_or_else(|_| panic!("tensors of this backend are in memory"))
}

/// Returns how a tensor with elements of so many bytes lies.
fn array(tensor: &FlexTensor, size: usize) -> Array<'_> {
    let layout = tensor.layout();
    Array {
        bytes: tensor.bytes(),
        size,
        offset: layout.start_offset(),
        shape: layout.shape().as_slice(),
        strides: layout.strides(),
    }
}
