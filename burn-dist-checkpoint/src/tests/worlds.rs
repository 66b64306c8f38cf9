//! Random meshes, layouts and states.

use burn_dist_layout::{DimLayout, Factor, Layout};
use burn_dist_mesh::{AxisIndex, MeshShape};
use proptest::prelude::*;

/// Meshes of up to 8 ranks.
pub(crate) fn mesh() -> impl Strategy<Value = MeshShape> {
    let texts = [
        "1",
        "fsdp=2",
        "tp=3",
        "dp=2,fsdp=2",
        "fsdp=4",
        "fsdp=2,tp=3",
        "pp=2,fsdp=2",
        "dp=2,fsdp=2,tp=2",
        "pp=2,dp=2,tp=2",
    ];
    prop::sample::select(texts.to_vec()).prop_map(|text| MeshShape::parse(text).unwrap())
}

/// Shapes with sizes 0, 1, prime and composite.
pub(crate) fn shape() -> impl Strategy<Value = Vec<usize>> {
    let sizes = prop::sample::select(vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 12]);
    prop::collection::vec(sizes, 0..4)
}

/// Any layout of any shape.
pub(crate) fn layout(mesh: MeshShape) -> impl Strategy<Value = Layout> {
    shape().prop_flat_map(move |shape| layout_of(mesh.clone(), shape))
}

/// Any layout of a shape: dims may be products, and every axis splits one factor or none.
pub(crate) fn layout_of(mesh: MeshShape, shape: Vec<usize>) -> impl Strategy<Value = Layout> {
    let axes = mesh.num_axes();
    let choices = prop::collection::vec(any::<u8>(), axes + shape.len());
    choices.prop_map(move |choices| {
        let (for_axes, for_dims) = choices.split_at(axes);
        let dims = shape.iter().zip(for_dims).map(|(&size, &choice)| {
            let divisors: Vec<usize> = (1..=size).filter(|d| size.is_multiple_of(*d)).collect();
            let factor = divisors.get(usize::from(choice) % (divisors.len() + 1));
            let sizes = factor.map_or(vec![size], |&factor| vec![size / factor, factor]);
            let factors = sizes.into_iter().map(Factor::whole).collect();
            DimLayout { factors }
        });
        let mut dims: Vec<DimLayout> = dims.collect();
        let places = dims.iter().map(|dim| dim.factors.len()).sum::<usize>();
        for (axis, &choice) in mesh.axis_indices().zip(for_axes) {
            let place = usize::from(choice) % (places + 1);
            if mesh.role(axis).splits_tensors() {
                split(&mut dims, place, axis);
            }
        }
        Layout::new(dims, Vec::new(), Vec::new(), &mesh).unwrap()
    })
}

fn split(dims: &mut [DimLayout], place: usize, axis: AxisIndex) {
    if let Some(factor) = dims.iter_mut().flat_map(|dim| &mut dim.factors).nth(place) {
        factor.axes.push(axis);
    }
}
