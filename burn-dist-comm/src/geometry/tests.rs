use super::*;
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::collective::chunk_sizes;
use std::sync::Arc;

fn sizes(k: usize) -> Vec<Arc<[usize]>> {
    vec![
        chunk_sizes(7, k).into(),
        vec![0; k].into(),
        (0..k).map(|i| (3 * i + 1) % 4).collect(),
    ]
}

/// All collectives of small sizes among `k` members.
fn collectives(k: usize) -> Vec<Collective> {
    let mut all = Vec::new();
    for mid_sizes in sizes(k) {
        for (outer, inner_bytes) in [(0, 4), (1, 4), (3, 4), (2, 200)] {
            let parts = Strided {
                outer,
                mid_sizes: mid_sizes.clone(),
                inner_bytes,
            };
            all.push(Collective::AllGather(parts.clone()));
            all.push(Collective::ReduceScatter {
                op: ReduceOp::Sum,
                parts,
            });
        }
        for concat_sizes in sizes(k) {
            for (split, concat) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
                let mut shape = vec![2, 3, 2];
                shape[split] = mid_sizes.iter().sum();
                shape[concat] = concat_sizes.iter().sum();
                all.push(Collective::AllToAll(AllToAll {
                    shape: shape.into(),
                    split: (split, mid_sizes.clone()),
                    concat: (concat, concat_sizes.clone()),
                    elem_bytes: 4,
                }));
            }
        }
        all.push(Collective::AllReduce {
            op: ReduceOp::Sum,
            bytes: 1000,
        });
        if k > 1 {
            all.push(Collective::Shift {
                by: -1,
                sizes: mid_sizes.clone(),
            });
        }
    }
    all
}

#[test]
fn every_byte_of_every_output_is_written_once_also_after_splitting() {
    for k in 1..=4 {
        let group = Group::world(k).unwrap();
        for collective in collectives(k) {
            let mut geometry = Geometry::new(&collective, &group);
            assert!(geometry.is_exact(), "{collective:?}");
            let bytes = geometry.bytes();
            for target in [256, 64] {
                geometry.split(target);
                assert!(
                    geometry.is_exact() && geometry.bytes() == bytes,
                    "{collective:?} in units of {target}"
                );
            }
        }
    }
}

#[test]
fn units_are_about_as_large_as_asked_for() {
    let group = Group::world(2).unwrap();
    let mut geometry = Geometry::new(
        &Collective::AllReduce {
            op: ReduceOp::Sum,
            bytes: 1_000_004,
        },
        &group,
    );
    geometry.split(65_536);
    assert_eq!(geometry.moves.len(), 15);
    assert!(
        geometry
            .moves
            .iter()
            .all(|unit| unit.bytes() <= 98_304 && unit.src.is_multiple_of(64))
    );
}

#[test]
fn contiguous_boxes_are_single_runs() {
    let group = Group::world(2).unwrap();
    let parts = Strided::chunked(1, 8, 100, 2);
    let geometry = Geometry::new(&Collective::AllGather(parts), &group);
    assert!(
        geometry
            .moves
            .iter()
            .all(|step| step.loops == [ONCE; 3] && step.run == 400)
    );
}

#[test]
fn a_shift_hands_every_input_to_the_member_so_many_places_on() {
    let group = Group::world(4).unwrap();
    for (by, from) in [
        (1, [3, 0, 1, 2]),
        (-1, [1, 2, 3, 0]),
        (2, [2, 3, 0, 1]),
        (7, [1, 2, 3, 0]),
        (-6, [2, 3, 0, 1]),
        // 3 less than a multiple of 4, and 1 less.
        (isize::MIN + 1, [3, 0, 1, 2]),
        (isize::MAX, [1, 2, 3, 0]),
    ] {
        let sizes: Arc<[usize]> = vec![8, 0, 4, 12].into();
        let shift = Collective::Shift { by, sizes };
        let geometry = Geometry::new(&shift, &group);
        let alias = |reader: &Option<usize>| geometry.outputs[reader.unwrap()];
        let outputs: Vec<Output> = geometry.readers.iter().map(alias).collect();
        let expected = from.map(|member| Output::Alias { member });
        assert_eq!(outputs, expected, "by {by}");
        assert!(geometry.moves.is_empty());
        let received = (0..4).map(|member| shift.received_bytes(DType::U8, group.ranks(), member));
        let expected = from.map(|member| [8, 0, 4, 12][member]);
        assert_eq!(received.collect::<Vec<_>>(), expected, "by {by}");
    }
}

#[test]
fn overlapping_or_missing_moves_are_found() {
    let group = Group::world(2).unwrap();
    let geometry = Geometry::new(&Collective::AllGather(Strided::flat(vec![4, 4])), &group);
    let mut missing = geometry.clone();
    missing.moves.pop();
    assert!(!missing.is_exact());
    let mut overlapping = geometry.clone();
    overlapping.moves[1].dst = 3;
    assert!(!overlapping.is_exact());
    let mut outside = geometry;
    outside.moves[1].dst = 5;
    assert!(!outside.is_exact());
}
