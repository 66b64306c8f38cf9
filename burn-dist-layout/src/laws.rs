//! Laws of layouts, over every layout of small worlds and random ones of larger worlds.

use super::worlds::{SHAPES, layouts, meshes};
use super::*;
use burn_dist_mesh::{Axis, AxisIndex, AxisRole, MeshShape, Rank, ReduceOp};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn every(ops: &[ReduceOp], mut law: impl FnMut(&MeshShape, &Layout)) {
    for mesh in meshes() {
        for shape in SHAPES {
            for layout in layouts(&mesh, shape, ops) {
                law(&mesh, &layout);
            }
        }
    }
}

/// Checks the laws of every layout.
fn check(mesh: &MeshShape, layout: &Layout) {
    layout.validate(mesh).unwrap();
    let text = layout.display(mesh).to_string();
    assert_eq!(
        &Layout::parse(&text, mesh, Some(&layout.shape())).unwrap(),
        layout,
        "{text}"
    );
    let sized = format!("{:#}", layout.display(mesh));
    assert_eq!(
        &Layout::parse(&sized, mesh, None).unwrap(),
        layout,
        "{sized}"
    );
    let mut again = layout.clone();
    again.normalize(mesh);
    assert_eq!(&again, layout);

    let mut held = vec![0; layout.numel()];
    for rank in mesh.ranks() {
        let elements: Vec<_> = layout.elements(mesh, rank).collect();
        assert_eq!(elements.len(), layout.local_numel(mesh, rank), "{text}");
        assert_eq!(
            elements.len(),
            layout.local_shape(mesh, rank).iter().product::<usize>()
        );
        assert!(elements.is_sorted_by(|a, b| a < b), "{text} rank {rank}");
        elements.into_iter().for_each(|element| held[element] += 1);
    }
    // Every element is held once per combination of coordinates along the axes that split nothing.
    let split: Vec<_> = layout.sharded_axes().collect();
    let copies = mesh.num_ranks() / mesh.group_size(&split);
    assert!(held.iter().all(|&times| times == copies), "{text}");
    assert_eq!(
        layout.local_numel_max(mesh),
        layout.local_numel(mesh, Rank(0))
    );
    let max = mesh
        .ranks()
        .map(|rank| layout.local_numel(mesh, rank))
        .max();
    assert_eq!(max, Some(layout.local_numel_max(mesh)));
}

#[test]
fn small_layouts_hold_the_laws() {
    every(&[ReduceOp::Sum, ReduceOp::Max], check);
}

fn same_elements(mesh: &MeshShape, a: &Layout, b: &Layout) -> bool {
    mesh.ranks()
        .all(|rank| a.elements(mesh, rank).eq(b.elements(mesh, rank)))
}

/// A reshape without data movement is found exactly if some layout of the new shape gives every rank the elements it
/// has.
#[test]
fn reshape_moves_nothing_and_finds_what_there_is() {
    let shapes: [&[usize]; 12] = [
        &[],
        &[1],
        &[1, 1],
        &[0],
        &[0, 3],
        &[12],
        &[4, 3],
        &[3, 4],
        &[6, 2],
        &[2, 2, 3],
        &[1, 12],
        &[12, 1],
    ];
    for mesh in meshes() {
        for to in shapes {
            let targets: Vec<_> = layouts(&mesh, to, &[]);
            let known: BTreeSet<Vec<Vec<usize>>> =
                targets.iter().map(|target| held(&mesh, target)).collect();
            for from in shapes {
                for layout in layouts(&mesh, from, &[ReduceOp::Sum]) {
                    let text = format!("{:#} to {to:?} on {mesh}", layout.display(&mesh));
                    match layout.reshape(&mesh, to) {
                        Some(reshaped) => {
                            reshaped.validate(&mesh).unwrap();
                            assert_eq!(reshaped.shape(), to, "{text}");
                            assert!(same_elements(&mesh, &layout, &reshaped), "{text}");
                            assert_eq!(reshaped.partial, layout.partial, "{text}");
                            assert_eq!(reshaped.at_rest, layout.at_rest, "{text}");
                        }
                        None => {
                            let fits =
                                from.iter().product::<usize>() == to.iter().product::<usize>();
                            assert!(!fits || !known.contains(&held(&mesh, &layout)), "{text}");
                        }
                    }
                }
            }
        }
    }
}

fn held(mesh: &MeshShape, layout: &Layout) -> Vec<Vec<usize>> {
    mesh.ranks()
        .map(|rank| layout.elements(mesh, rank).collect())
        .collect()
}

#[test]
fn reshape_by_example() {
    let mesh = MeshShape::parse("dp=2,tp=2").unwrap();
    let reshape = |text: &str, from: &[usize], to: &[usize]| {
        let layout = Layout::parse(text, &mesh, Some(from)).unwrap();
        let reshaped = layout.reshape(&mesh, to);
        reshaped.map_or("none".to_owned(), |to| to.display(&mesh).to_string())
    };
    assert_eq!(
        reshape("[{dp}, -, {tp}]", &[4, 6, 8], &[24, 8]),
        "[(4{dp} . 6), {tp}]"
    );
    assert_eq!(
        reshape("[(4{dp} . 6), {tp}]", &[24, 8], &[4, 6, 8]),
        "[{dp}, -, {tp}]"
    );
    assert_eq!(reshape("[-, {tp}]", &[4, 8], &[4, 4, 2]), "[-, {tp}, -]");
    assert_eq!(reshape("[{dp, tp}]", &[24], &[4, 6]), "[{dp, tp}, -]");
    assert_eq!(reshape("[{dp, tp}]", &[24], &[2, 12]), "[{dp}, {tp}]");
    assert_eq!(reshape("[{dp}]", &[24], &[3, 8]), "none");
    assert_eq!(reshape("[{dp}, -]", &[4, 6], &[6, 4]), "[{dp}, -]");
    assert_eq!(
        reshape("[{dp}, -] + sum{tp}", &[3, 5], &[3, 1, 5]),
        "[{dp}, -, -] + sum{tp}"
    );
    assert_eq!(reshape("[{dp}, -]", &[3, 5], &[15]), "[(3{dp} . 5)]");
    assert_eq!(reshape("[{dp}]", &[15], &[3, 5]), "none");
    assert_eq!(reshape("[-, {tp}]", &[4, 8], &[5, 8]), "none");
    assert_eq!(reshape("[-]", &[1], &[]), "[]");
    assert_eq!(reshape("[{tp}]", &[1], &[]), "none");
}

#[test]
fn editing_layouts() {
    let mesh = MeshShape::parse("fsdp=2,tp=2,cp=2").unwrap();
    let read = |text: &str| Layout::parse(text, &mesh, Some(&[4, 12])).unwrap();
    let [fsdp, tp, cp] = [0, 1, 2].map(AxisIndex);
    let layout = read("[{tp, fsdp*}, (3 . 4{cp})]");
    assert_eq!(layout.gathered(), read("[{tp}, (3 . 4{cp})]"));
    assert_eq!(layout.without_axes(&[cp, tp]), read("[{fsdp*}, -]"));
    assert_eq!(layout.axes_used(), [fsdp, tp, cp]);
    assert_eq!(layout.position(cp), Some((1, 1)));
    assert_eq!(
        Layout::sharded(&[4, 12], 1, &[tp, cp]),
        read("[-, {tp, cp}]")
    );
    let partial = read("[{tp}, -]").with_partial(&[cp, fsdp], ReduceOp::Sum);
    assert_eq!(partial, read("[{tp}, -] + sum{fsdp, cp}"));
    assert_eq!(partial.partial_op(cp), Some(ReduceOp::Sum));
    assert_eq!(partial.without_axes(&[cp]), read("[{tp}, -] + sum{fsdp}"));
    assert_eq!(partial.resolved(), read("[{tp}, -]"));
    assert!(partial.has_partial() && !partial.is_replicated());
    assert!(Layout::replicated(&[4, 12]).is_replicated());
}

#[test]
fn nonsense_is_refused() {
    let mesh = MeshShape::parse("a:model=2,b:model=2,pp=2").unwrap();
    let [a, b, pp, c] = [0, 1, 2, 3].map(AxisIndex);
    let errors = [
        Layout::sharded(&[4], 0, &[c]),
        Layout::sharded(&[4], 0, &[a, a]),
        Layout::sharded(&[4], 0, &[a]).with_partial(&[a], ReduceOp::Sum),
        Layout::sharded(&[4], 0, &[pp]),
        Layout {
            at_rest: vec![b],
            ..Layout::sharded(&[4], 0, &[a])
        },
        Layout {
            dims: vec![DimLayout { factors: vec![] }],
            ..Layout::replicated(&[])
        },
        Layout::replicated(&[4])
            .with_partial(&[a], ReduceOp::Sum)
            .with_partial(&[b], ReduceOp::Max),
    ]
    .map(|layout| layout.validate(&mesh).unwrap_err().to_string());
    insta::assert_snapshot!(errors.join("\n"), @r"
    the layout uses mesh axis 3, but the mesh `a:model=2,b:model=2,pp=2` has only 3 axes: build it for this mesh
    axis `a` is used twice: an axis splits at most one dim, or makes the value partial
    axis `a` is used twice: an axis splits at most one dim, or makes the value partial
    no tensor is split over axis `pp`, which splits the model into stages: leave it out
    axis `b` is at rest but splits no dim: add it to a dim, or take it off the axes at rest
    dim 0 has no factors: a dim that nothing splits is one factor without axes
    a value cannot be partial by sum and max at once, because their order matters: resolve one of them first
    ");
}

/// A random mesh, and a layout of a random shape on it.
pub(super) fn world() -> impl Strategy<Value = (MeshShape, Layout)> {
    let sizes = prop::collection::vec(1usize..6, 0..4);
    let dims = prop::collection::vec(prop::collection::vec(0usize..9, 1..4), 0..4);
    (sizes, dims).prop_flat_map(|(sizes, dims)| {
        let axes = sizes.iter().enumerate();
        let mesh = MeshShape::with_roles(
            axes.map(|(i, &size)| Axis::with_role(format!("x{i}"), size, AxisRole::Model))
                .collect(),
        )
        .unwrap();
        layout_on(mesh.clone(), dims).prop_map(move |layout| (mesh.clone(), layout))
    })
}

/// A random layout with these factors.
pub(super) fn layout_on(mesh: MeshShape, dims: Vec<Vec<usize>>) -> impl Strategy<Value = Layout> {
    let places = dims.iter().map(Vec::len).sum::<usize>() + 2;
    let order = Just(mesh.axis_indices().collect::<Vec<_>>()).prop_shuffle();
    let chosen = prop::collection::vec((0..places, any::<bool>()), mesh.num_axes());
    (order, chosen).prop_map(move |(order, chosen)| {
        let mut layout = Layout::replicated(&[]);
        layout.dims = dims
            .iter()
            .map(|sizes| DimLayout {
                factors: sizes.iter().copied().map(Factor::whole).collect(),
            })
            .collect();
        for (axis, (place, rests)) in order.into_iter().zip(chosen) {
            match place {
                0 => {}
                1 => layout.partial.push(Partial {
                    axis,
                    op: ReduceOp::Sum,
                }),
                place => {
                    let factors = layout.dims.iter_mut().flat_map(|dim| &mut dim.factors);
                    let factor = factors.skip(place - 2).take(1);
                    factor.for_each(|factor| factor.axes.push(axis));
                    if rests {
                        layout.at_rest.push(axis);
                    }
                }
            }
        }
        layout.normalize(&mesh);
        layout
    })
}

proptest! {
    #[test]
    fn large_layouts_hold_the_laws((mesh, layout) in world()) {
        check(&mesh, &layout);
    }

    #[test]
    fn normalising_moves_nothing((mesh, layout) in world()) {
        let sizes: Vec<_> = layout.factors().map(|factor| factor.size).collect();
        let mut flat = Layout::replicated(&[]);
        flat.dims = vec![DimLayout { factors: layout.factors().cloned().collect() }];
        let before = held(&mesh, &flat);
        flat.normalize(&mesh);
        prop_assert_eq!(before, held(&mesh, &flat), "{:?}", sizes);
    }

    #[test]
    fn reshaping_to_one_dim_and_back((mesh, layout) in world()) {
        let flat = layout.reshape(&mesh, &[layout.numel()]).expect("factors of one dim stay as they are");
        prop_assert!(same_elements(&mesh, &layout, &flat));
        if let Some(back) = flat.reshape(&mesh, &layout.shape()) {
            prop_assert!(same_elements(&mesh, &layout, &back));
        } else {
            prop_assert!(false, "{}", layout.display(&mesh));
        }
    }

    #[test]
    fn resting_is_stable((mesh, layout) in world()) {
        let rest = layout.at_rest(&mesh);
        rest.validate(&mesh).unwrap();
        prop_assert_eq!(&rest.at_rest(&mesh), &rest);
        if layout.at_rest.is_empty() {
            prop_assert_eq!(rest.gathered(), layout);
        }
    }
}
