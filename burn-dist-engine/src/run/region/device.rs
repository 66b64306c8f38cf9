//! Regions where tensors are CubeCL's: kernels of burn-dist-cubecl, which unroll them.

use std::any::TypeId;

use burn_backend::TensorData;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_dist_cubecl::region::{self, Draw, Operand};
use burn_dist_plan::region::{Formula, Number, Numbering};
use burn_ir::BackendIr;
use burn_std::Shape;

use crate::burn::downcast;
use crate::ops::dtype::to_burn;
use crate::ops::execute::from_data;
use crate::plan::task::RegionTask;
use crate::plan::{Draws, RegionKernels};
use crate::run::random::Pieces;

/// Returns what kernels compute on tensors of a backend: nothing if they are not CubeCL's, or have burn-fusion's around
/// them.
pub(in crate::run) fn kernels<B: BackendIr>() -> Option<RegionKernels> {
    let are_cubes = TypeId::of::<B::Handle>() == TypeId::of::<CubeTensor>();
    let compute: fn(&Formula) -> bool = |formula| region::supports(formula).is_ok();
    are_cubes.then_some(RegionKernels {
        name: "CubeCL's",
        compute: Some(compute),
        draws: Draws::Numbered,
    })
}

/// Runs a region on its operands, and returns its results.
///
/// # Panics
/// If tensors of the backend are not CubeCL's.
pub(super) fn run<B: BackendIr>(
    task: &RegionTask,
    operands: Vec<B::Handle>,
    scalars: &[Number],
    draws: &[Pieces],
    device: &B::Device,
) -> Vec<B::Handle> {
    let mut operands: Vec<CubeTensor> = operands.into_iter().map(cubes::<B>).collect();
    for operand in &mut operands {
        if operand.meta.is_tiled() {
            *operand = into_contiguous(operand.clone());
        }
    }
    // Of constants alone there is a region too.
    let beside = operands.first().cloned().unwrap_or_else(|| {
        let zero = TensorData::from([0.0f32]);
        cubes::<B>(from_data::<B>(zero, device))
    });
    let given = operands.iter().enumerate().map(|(index, operand)| {
        let own: Vec<isize> = (operand.meta.strides().iter())
            .map(|stride| *stride as isize)
            .collect();
        let strides = task.strides(index, &own).into_iter();
        Operand {
            handle: operand.handle.clone(),
            strides: strides.map(isize::unsigned_abs).collect(),
        }
    });
    let given: Vec<Operand> = given.collect();
    let space = &task.region.space;
    let draws: Vec<Draw> = draws.iter().map(|pieces| drawn(pieces, space)).collect();
    let made = region::run(&beside.client, &task.region, &given, scalars, &draws);
    let made = made.into_iter().zip(&task.outputs).map(|(handle, out)| {
        let (client, device) = (beside.client.clone(), beside.device.clone());
        let (shape, dtype) = (Shape::from(out.shape.clone()), to_burn(out.dtype));
        let made = CubeTensor::new_contiguous(client, device, shape, handle, dtype);
        let made = downcast(made).map_err(|_: CubeTensor| ());
        made.expect("types were compared")
    });
    made.collect()
}

/// Returns what draws the same elements on a device.
fn drawn(pieces: &Pieces, space: &[usize]) -> Draw {
    let numbering = Numbering::new(space, &pieces.part.runs);
    Draw {
        philox: pieces.part.philox,
        samples: pieces.samples,
        numbering: numbering.expect("plans have kernels draw what has a numbering"),
    }
}

/// Returns the tensor of CubeCL's that a handle is.
fn cubes<B: BackendIr>(handle: B::Handle) -> CubeTensor {
    let tensor = downcast(handle).map_err(|_: B::Handle| ());
    tensor.expect("regions run on tensors in memory, and on those of CubeCL")
}
