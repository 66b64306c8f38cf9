//! Regions: groups of operations that few kernels run. On Flex, one of `burn-dist-kernels`; where tensors are CubeCL's,
//! those of burn-dist-cubecl (`device`).
//!
//! Operands are read where they are, with the strides that they have. Results are in buffers of their own, or on Flex
//! in the place of an operand that dies and that nobody else holds, by the rule that the account of a plan counts on.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use burn_backend::{Scalar, Shape};
use burn_dist_kernels::region::{Draw, Kernel, Memory, Operand, Output, RegionError};
use burn_dist_plan::op::NewTensor;
use burn_dist_plan::region::{Number, Region, ScalarOf};
use burn_dist_plan::task::region_of;
use burn_flex::{Flex, Layout};
use burn_ir::BackendIr;
use burn_std::Bytes;
use burn_std::future::block_on;
use rustc_hash::FxHashMap;

use super::bridge::{in_order, is_in_memory, to_flex};
use super::bytes::of_pool;
use super::random::Pieces;
use crate::burn::data::*;
use crate::comm::{Pool, PoolMemory};
use crate::ops::Recorded;
use crate::ops::dtype::to_burn;
use crate::ops::execute::{from_data, into_data};
use crate::plan::task::RegionTask;

// Kernels are for the CubeCL of Burn's current line.
#[cfg(all(not(burn_021), any(feature = "wgpu", feature = "cuda")))]
mod device;
#[cfg(not(all(not(burn_021), any(feature = "wgpu", feature = "cuda"))))]
mod no_device;
#[cfg(not(all(not(burn_021), any(feature = "wgpu", feature = "cuda"))))]
use no_device as device;

pub(super) use device::kernels;

/// Kernels that a rank keeps at most; a plan of a large model has some hundred.
const KERNELS_MAX: usize = 1 << 14;

/// Runs regions, one after the other.
pub(super) struct Regions {
    /// Memory of freed results that is kept for the next ones: fresh memory costs as much as a region that fills it.
    pool: Arc<Pool>,
    /// Kernels of the regions that have run, by where these are: tasks that compute the same share one.
    kernels: FxHashMap<*const Region, (Arc<Region>, Kernel)>,
}

// SAFETY: the pointers are only compared, and what they point to is held beside them.
unsafe impl Send for Regions {}

impl Default for Regions {
    fn default() -> Self {
        Self {
            pool: Pool::exact(),
            kernels: FxHashMap::default(),
        }
    }
}

/// An operand: its buffer, and how it lies there.
struct Held {
    data: Arc<Bytes>,
    layout: Layout,
}

impl Held {
    /// Returns whether it is all of its buffer, in order, and nobody else holds that.
    fn is_alone(&self, elem_bytes: usize) -> bool {
        let layout = &self.layout;
        Arc::strong_count(&self.data) == 1
            && layout.start_offset() == 0
            && layout.is_contiguous()
            && layout.num_elements() * elem_bytes == self.data.len()
    }
}

/// Where a result is to be.
enum Made {
    /// In memory of its own.
    New(PoolMemory),
    /// In that of an operand.
    Over(usize),
}

impl Regions {
    /// Sets how much memory of freed results is kept at most, from now on.
    pub(super) fn keep_at_most(&self, bytes: u64) {
        self.pool.keep_at_most(bytes as usize);
    }

    /// Returns where memory of freed results is kept.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns how much memory of freed results is kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.pool.kept_bytes() as u64
    }

    /// Runs a region on its operands, and returns its results.
    ///
    /// # Panics
    /// If the backend's tensors are neither in memory nor CubeCL's.
    pub(super) fn run<B: BackendIr>(
        &mut self,
        task: &RegionTask,
        operands: Vec<B::Handle>,
        scalars: &[Scalar],
        draws: &[Pieces],
        device: &B::Device,
    ) -> Result<Vec<B::Handle>, RegionError> {
        let numbers = task.scalars.iter().map(|of| number(*of, scalars));
        let numbers: Vec<Number> = numbers.collect();
        match is_in_memory::<B>() {
            true => self.run_in_memory::<B>(task, operands, &numbers, draws),
            false => Ok(device::run::<B>(task, operands, &numbers, draws, device)),
        }
    }

    fn run_in_memory<B: BackendIr>(
        &mut self,
        task: &RegionTask,
        operands: Vec<B::Handle>,
        numbers: &[Number],
        draws: &[Pieces],
    ) -> Result<Vec<B::Handle>, RegionError> {
        let region = &*task.region;
        let mut held = Vec::with_capacity(task.inputs.len());
        for (input, handle) in task.inputs.iter().zip(operands) {
            let tensor = to_flex::<B>(handle, &input.shape, to_burn(input.dtype));
            let tensor = tensor.unwrap_or_else(|_| panic!("regions run on tensors in memory"));
            held.push(Held {
                data: tensor.data_arc(),
                layout: tensor.layout().clone(),
            });
        }
        let sizes: Vec<usize> = task.inputs.iter().map(|input| input.dtype.size()).collect();
        let places = task.in_place(|index| held[index].is_alone(sizes[index]));
        let strides = strides(task, &held);
        let mut made: Vec<Made> = (task.outputs.iter().zip(&places))
            .map(|(out, place)| match place {
                Some(index) => Made::Over(*index),
                None => Made::New(self.pool.take(out.bytes())),
            })
            .collect();
        {
            let dims = region.space.len();
            let mut operands: Vec<Operand<'_>> = (held.iter_mut().enumerate())
                .map(|(index, held)| Operand {
                    offset: held.layout.start_offset(),
                    strides: &strides[index * dims..(index + 1) * dims],
                    memory: match places.contains(&Some(index)) {
                        true => Memory::Unique(unique(&mut held.data)),
                        false => Memory::Shared(&held.data),
                    },
                })
                .collect();
            let mut outputs: Vec<Output<'_>> = (made.iter_mut().zip(&task.outputs))
                .map(|(made, out)| match made {
                    Made::Over(index) => Output::Over(*index),
                    Made::New(memory) => Output::New(&mut memory.as_uninit_mut()[..out.bytes()]),
                })
                .collect();
            let draws = draws.iter();
            let draws = draws.map(|of| |first: usize, to: &mut [_]| of.draw(first, to));
            let draws: Vec<_> = draws.collect();
            let draws: Vec<Draw<'_>> = draws.iter().map(|of| of as Draw<'_>).collect();
            let kernel = kernel(&mut self.kernels, &task.region)?;
            kernel.run_drawing(&mut operands, numbers, &draws, &mut outputs)?;
        }
        let mut held: Vec<Option<Held>> = held.into_iter().map(Some).collect();
        let made = task.outputs.iter().zip(made).map(|(out, made)| {
            let data = match made {
                // SAFETY: the region has written all bytes.
                Made::New(memory) => unsafe { of_pool(memory, out.bytes()) },
                Made::Over(index) => {
                    let operand = held[index].take();
                    operand.expect("an operand becomes one result").data
                }
            };
            in_order::<B>(data, Shape::from(out.shape.clone()), to_burn(out.dtype))
        });
        Ok(made.collect())
    }
}

/// Runs an operation whose inputs are numbered from zero on as the region that it is by itself; `None` if it is none.
///
/// # Errors
/// [`RegionError`] if there is no such kernel.
pub(crate) fn run_alone(
    op: &Recorded,
    inputs: &[TensorData],
) -> Option<Result<Vec<TensorData>, RegionError>> {
    let task = region_of(op)?;
    let operands = task.inputs.iter().map(|input| {
        let data = inputs[input.slot as usize].clone();
        from_data::<Flex>(data, &Default::default())
    });
    let made =
        Regions::default().run::<Flex>(&task, operands.collect(), &[], &[], &Default::default());
    let read = |(out, handle): (&NewTensor, _)| {
        let data = into_data::<Flex>(handle, out.shape.clone().into(), to_burn(out.dtype));
        (out.id, block_on(data).expect("tensors in memory are read"))
    };
    Some(made.map(|made| {
        // Results of regions are in the order in which they are made.
        let made: BTreeMap<_, _> = task.outputs.iter().zip(made).map(read).collect();
        made.into_values().collect()
    }))
}

/// Returns the kernel of a region.
fn kernel<'k>(
    kernels: &'k mut FxHashMap<*const Region, (Arc<Region>, Kernel)>,
    region: &Arc<Region>,
) -> Result<&'k Kernel, RegionError> {
    // Of plans that are gone, most likely.
    if kernels.len() >= KERNELS_MAX {
        kernels.clear();
    }
    let (_, kernel) = match kernels.entry(Arc::as_ptr(region)) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert((Arc::clone(region), Kernel::new(region)?)),
    };
    Ok(kernel)
}

/// Returns the strides of each operand along the dims of the region's space; zero along those that it does not have.
fn strides(task: &RegionTask, held: &[Held]) -> Vec<isize> {
    let operands = held.iter().enumerate();
    operands
        .flat_map(|(index, held)| task.strides(index, held.layout.strides()))
        .collect()
}

/// Returns the bytes of a buffer that a result takes the place of.
fn unique(data: &mut Arc<Bytes>) -> &mut [u8] {
    Arc::get_mut(data).expect("nobody else holds what a result overwrites")
}

/// Returns the value of a scalar.
fn number(of: ScalarOf, scalars: &[Scalar]) -> Number {
    match of {
        ScalarOf::Number(number) => number,
        ScalarOf::Slot(slot) => match scalars[slot as usize] {
            Scalar::Float(value) => Number::Float(value),
            Scalar::Int(value) => Number::Int(value),
            Scalar::UInt(value) => Number::UInt(value),
            Scalar::Bool(value) => Number::Int(value.into()),
        },
    }
}
