//! Regions against the definition of layouts, and overlaps against sets.

use super::*;
use crate::tests::worlds::{layout, mesh};
use proptest::prelude::*;

fn elements(region: &Region) -> Vec<usize> {
    region.ranges().flatten().collect()
}

proptest! {
    #[test]
    fn regions_are_what_layouts_say((mesh, layout) in mesh().prop_flat_map(|mesh| (Just(mesh.clone()), layout(mesh)))) {
        for rank in mesh.ranks() {
            let region = Region::of(&layout, &mesh, rank).unwrap();
            let expected: Vec<usize> = layout.elements(&mesh, rank).collect();
            prop_assert_eq!(region.numel(), expected.len());
            prop_assert_eq!(elements(&region), expected);
        }
    }

    #[test]
    fn overlaps_are_the_common_elements(
        (mesh, shape, a, b) in mesh().prop_flat_map(|mesh| {
            let shape = crate::tests::worlds::shape();
            (Just(mesh), shape)
        }).prop_flat_map(|(mesh, shape)| {
            let of = || crate::tests::worlds::layout_of(mesh.clone(), shape.clone());
            (Just(mesh.clone()), Just(shape.clone()), of(), of())
        }),
        cut in 0usize..9, width in 0usize..30,
    ) {
        let _ = shape;
        for (from, to) in mesh.ranks().flat_map(|from| mesh.ranks().map(move |to| (from, to))) {
            let source = Region::of(&a, &mesh, from).unwrap();
            let target = Region::of(&b, &mesh, to).unwrap();
            let (have, want) = (elements(&source), elements(&target));
            let within = cut.min(want.len())..(cut + width).min(want.len());
            let mut expected = Vec::new();
            for position in within.clone() {
                if let Ok(at) = have.binary_search(&want[position]) {
                    expected.push((at, position));
                }
            }
            let found: Vec<(usize, usize)> = overlap(&source.runs(), &target.runs(), within)
                .flat_map(|copy| (0..copy.len).map(move |i| (copy.source + i, copy.target + i)))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn parts_are_a_box_each_and_all_of_it(
        (mesh, layout) in mesh().prop_flat_map(|mesh| (Just(mesh.clone()), layout(mesh))),
        parts in 1usize..5,
    ) {
        for rank in mesh.ranks() {
            let region = Region::of(&layout, &mesh, rank).unwrap();
            let all = elements(&region);
            let mut found = Vec::new();
            for index in 0..parts {
                let (part, range) = region.part(parts, index);
                if !range.is_empty() {
                    prop_assert_eq!(&elements(&part), &all[range.clone()]);
                }
                found.extend_from_slice(&all[range]);
            }
            prop_assert_eq!(found, all);
        }
    }
}

#[test]
fn what_is_no_box_is_an_error() {
    assert!(matches!(
        Region::new(vec![2], vec![], vec![1]),
        Err(RegionError::Dims { .. })
    ));
    assert!(matches!(
        Region::new(vec![2, 3], vec![0, 2], vec![2, 2]),
        Err(RegionError::Outside { dim: 1, .. })
    ));
    assert!(matches!(
        Region::new(vec![2], vec![usize::MAX], vec![2]),
        Err(RegionError::Outside { .. })
    ));
    assert!(matches!(
        Region::whole(&[1 << 40, 0, 1 << 40]),
        Err(RegionError::TooLarge { .. })
    ));
    assert_eq!(Region::whole(&[4, 0]).unwrap().numel(), 0);
    assert_eq!(Region::whole(&[]).unwrap().numel(), 1);
    assert_eq!(Region::whole(&[2, 3]).unwrap().to_string(), "[0:2,0:3]");
}
