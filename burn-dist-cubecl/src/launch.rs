//! All kernels' own: how elements lie, and how many cubes there are.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::element::Element;

/// Elements on a device, one after the other.
#[derive(Clone, Debug)]
pub struct Elements {
    /// Where they are.
    pub handle: Handle,
    /// Their type.
    pub element: Element,
}

/// Kernels count elements in 32 bits.
pub(crate) fn assert_counted(elements: usize) {
    assert!(
        u32::try_from(elements).is_ok(),
        "a kernel takes less than 2^32 elements, and this is {elements}: split the tensor"
    );
}

/// Returns as many cubes, or a few more: along one dim there are at most 65,535.
pub(crate) fn cubes(count: usize) -> CubeCount {
    const MAX: usize = 65_535;
    let down = count.div_ceil(MAX).max(1);
    let across = count.div_ceil(down);
    CubeCount::Static(across as u32, down as u32, 1)
}
