//! Laws of redistribution: the target's content on every rank, for every pair of layouts of small worlds; and no
//! cheaper path.

use super::cost::transfer_ns;
use super::search::search;
use super::simulate::simulate;
use super::*;
use crate::cost::{Network, work_ns};
use crate::laws::layout_on;
use crate::worlds::{SHAPES, blocks, check, layouts, meshes, plain_layouts};
use crate::{Layout, LayoutError};
use burn_dist_mesh::{Axis, AxisIndex, AxisRole, MeshShape, ReduceOp};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Returns one line of text, such as `all_gather fsdp: [{tp, fsdp*}, -] -> [{tp}, -]`.
fn line(step: &Step, mesh: &MeshShape) -> String {
    let axes = step.kind.axes().iter().map(|&axis| mesh.name(axis));
    let space = if step.kind.axes().is_empty() { "" } else { " " };
    format!(
        "{}{space}{}: {} -> {}",
        step.kind.name(),
        axes.collect::<Vec<_>>().join("*"),
        step.from.display(mesh),
        step.to.display(mesh)
    )
}

fn show(mesh: &MeshShape, from: &Layout, to: &Layout, steps: &[Step]) -> String {
    let mut out = format!(
        "{:#} -> {:#} on {mesh}",
        from.display(mesh),
        to.display(mesh)
    );
    for step in steps {
        out += &format!("\n  {} {:?}", line(step, mesh), step.kind);
    }
    out
}

fn redistributes(mesh: &MeshShape, from: &Layout, to: &Layout) -> Vec<Step> {
    let steps = plan(&Network::unknown(mesh), from, to, 4).unwrap();
    let text = show(mesh, from, to, &steps);
    assert_eq!(steps.is_empty(), from == to, "{text}");
    if let Some(last) = steps.last() {
        assert_eq!(&last.to, to, "{text}");
    }
    for step in &steps {
        let most = mesh
            .ranks()
            .map(|rank| step.step_bytes(mesh, rank, 4))
            .max();
        assert_eq!(Some(step.bytes_max(mesh, 4)), most, "{text}");
    }
    let after = simulate(mesh, from, &steps, &blocks(mesh, from));
    if let Err(wrong) = check(mesh, to, &after) {
        panic!("{wrong}: {text}");
    }
    steps
}

/// Pairs of layouts, thinned out evenly to at most `max`.
fn pairs(all: &[Layout], max: usize) -> impl Iterator<Item = (&Layout, &Layout)> {
    let total = all.len() * all.len();
    let stride = total.div_ceil(max);
    // A stride without a factor in common with the number of layouts meets them all.
    let stride = (stride..)
        .find(|stride| *stride == 1 || !all.len().is_multiple_of(*stride) && stride % 2 == 1)
        .expect("there are larger odd numbers");
    (0..total)
        .step_by(stride)
        .map(|i| (&all[i / all.len()], &all[i % all.len()]))
}

#[test]
fn every_pair_of_layouts() {
    for mesh in meshes() {
        for shape in SHAPES {
            let all = layouts(&mesh, shape, &[ReduceOp::Sum, ReduceOp::Max]);
            for (from, to) in pairs(&all, 2500) {
                redistributes(&mesh, from, to);
            }
        }
    }
}

#[test]
fn every_reduction() {
    for mesh in ["a:model=3", "a:model=2,b:model=2"].map(|text| MeshShape::parse(text).unwrap()) {
        let all = layouts(&mesh, &[3], &ReduceOp::ALL);
        for (from, to) in pairs(&all, usize::MAX) {
            redistributes(&mesh, from, to);
        }
    }
}

/// A value survives being made into terms and reduced again, to the bit.
#[test]
fn terms_reduce_to_the_bits_of_the_value() {
    let mut values = vec![0.0, -0.0, 3.3, -3.3, 1e-9, 1.0 / 3.0, f64::EPSILON];
    values.extend([f64::MAX, f64::MIN, f64::MIN_POSITIVE, f64::from_bits(1)]);
    values.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    // Mantissas of all kinds at their low end: three times some of them rounds away from the value.
    values.extend((0..16).map(|i| 1.75 + f64::from(i) * f64::EPSILON));
    let bits = |block: &[f64]| block.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let meshes = (2..=8).map(|k| format!("a:model={k}"));
    for text in meshes.chain(["a:model=2,b:model=3".into(), "a:model=3,b:model=2".into()]) {
        let mesh = MeshShape::parse(&text).unwrap();
        let whole = Layout::replicated(&[values.len()]);
        let start = vec![values.clone(); mesh.num_ranks()];
        for partial in plain_layouts(&mesh, &[values.len()], &ReduceOp::ALL) {
            let there = plan(&Network::unknown(&mesh), &whole, &partial, 8).unwrap();
            let back = plan(&Network::unknown(&mesh), &partial, &whole, 8).unwrap();
            let terms = simulate(&mesh, &whole, &there, &start);
            for block in simulate(&mesh, &partial, &back, &terms) {
                assert_eq!(
                    bits(&block),
                    bits(&values),
                    "{} on {text}",
                    partial.display(&mesh)
                );
            }
        }
    }
}

/// All steps out of a layout, pruned by nothing but this: an axis enters a dim only if some dim of the target is split
/// over it. (An all_reduce over one axis is cheaper if the work is split over another, idle one, but that is an
/// algorithm for an all_reduce.)
fn all_steps(mesh: &MeshShape, layout: &Layout, splitting: &[AxisIndex]) -> Vec<StepKind> {
    let mut kinds = Vec::new();
    let unused: Vec<_> = mesh
        .axis_indices()
        .filter(|axis| !layout.axes_used().contains(axis))
        .collect();
    for subset in 1..1usize << layout.partial.len() {
        let chosen = layout
            .partial
            .iter()
            .enumerate()
            .filter(|(i, _)| subset >> i & 1 == 1);
        let axes: Vec<_> = chosen.map(|(_, partial)| partial.axis).collect();
        kinds.push(StepKind::AllReduce {
            axes,
            op: ReduceOp::Sum,
        });
    }
    kinds.extend(unused.iter().map(|&axis| StepKind::ToPartial {
        axis,
        op: ReduceOp::Sum,
    }));
    let places: Vec<_> = (0..layout.ndim())
        .flat_map(|dim| (0..layout.dims[dim].factors.len()).map(move |factor| (dim, factor)))
        .collect();
    for &(dim, factor) in &places {
        let axes = &layout.dims[dim].factors[factor].axes;
        for start in 0..axes.len() {
            kinds.push(StepKind::AllGather {
                axes: axes[start..].to_vec(),
                dim,
                factor,
            });
        }
        // Of one axis: several at a time are only better.
        if let Some(&axis) = axes.last()
            && splitting.contains(&axis)
        {
            let others = places.iter().filter(|&&to| to != (dim, factor));
            kinds.extend(others.map(|&to| StepKind::AllToAll {
                axes: vec![axis],
                from: (dim, factor),
                to,
            }));
        }
        let idle = unused.iter().filter(|axis| splitting.contains(axis));
        kinds.extend(idle.map(|&axis| StepKind::Slice {
            axes: vec![axis],
            dim,
            factor,
        }));
        let partial = layout.partial.iter().map(|partial| partial.axis);
        let partial: Vec<_> = partial.filter(|axis| splitting.contains(axis)).collect();
        let singles = partial.iter().map(|&axis| vec![axis]);
        let twos = partial.iter().flat_map(|&a| {
            let others = partial.iter().filter(move |&&b| a != b);
            others.map(move |&b| vec![a, b])
        });
        kinds.extend(singles.chain(twos).map(|axes| StepKind::ReduceScatter {
            axes,
            op: ReduceOp::Sum,
            dim,
            factor,
        }));
    }
    kinds
}

/// Costs from one layout to all others, by relaxation until nothing changes: slow, and too simple to be wrong.
fn distances(mesh: &MeshShape, from: &Layout, splitting: &[AxisIndex]) -> BTreeMap<Layout, f64> {
    let mut known = BTreeMap::from([(from.clone(), 0.0)]);
    let mut queue = vec![from.clone()];
    while let Some(layout) = queue.pop() {
        let so_far = known[&layout];
        for kind in all_steps(mesh, &layout, splitting) {
            let next = kind.apply(&layout);
            let cost = so_far + transfer_ns(&Network::unknown(mesh), &kind, &layout, &next, 4);
            let best = known.entry(next.clone()).or_insert(f64::INFINITY);
            if cost < *best {
                *best = cost;
                queue.push(next);
            }
        }
    }
    known
}

/// How long the transfers of a plan take.
fn transfers(mesh: &MeshShape, from: &Layout, to: &Layout) -> f64 {
    let network = Network::unknown(mesh);
    let steps = plan(&network, from, to, 4).unwrap();
    let transfer = |step: &Step| transfer_ns(&network, &step.kind, &step.from, &step.to, 4);
    steps.iter().map(transfer).sum()
}

#[test]
fn no_path_is_cheaper() {
    let worlds: [(&str, &[usize]); 4] = [
        ("a:model=2,b:model=2", &[64, 64]),
        ("a:model=4,b:model=2", &[2, 3]),
        ("a:model=2,b:model=4", &[100, 80]),
        ("a:model=2,b:model=2", &[8, 8, 512]),
    ];
    for (mesh, shape) in worlds {
        let mesh = MeshShape::parse(mesh).unwrap();
        let all = plain_layouts(&mesh, shape, &[ReduceOp::Sum]);
        for from in &all {
            let mut known = BTreeMap::new();
            for to in &all {
                let mut splitting: Vec<_> = to.sharded_axes().collect();
                splitting.sort();
                let distances = known
                    .entry(splitting)
                    .or_insert_with_key(|splitting| distances(&mesh, from, splitting));
                let planned = transfers(&mesh, from, to);
                let best = distances[to];
                let text = || {
                    show(
                        &mesh,
                        from,
                        to,
                        &plan(&Network::unknown(&mesh), from, to, 4).unwrap(),
                    )
                };
                // The order of steps and the padding of small tensors are not weighed to the last byte.
                assert!(planned <= best * 1.01, "{planned} > {best}: {}", text());
            }
        }
    }
}

/// A plan that is known to be best without a search is what the search finds.
#[test]
fn direct_plans_are_cheapest() {
    for mesh in ["a:model=2,b:model=2", "a:model=2,b:model=2,c:model=2"]
        .map(|text| MeshShape::parse(text).unwrap())
    {
        let all = plain_layouts(&mesh, &[16, 8], &[ReduceOp::Sum]);
        for (from, to) in pairs(&all, 4000) {
            let planned = transfers(&mesh, from, to);
            let mut before = from.clone();
            let mut searched = 0.0;
            for (kind, after) in search(&Network::unknown(&mesh), from, to, 4) {
                searched += transfer_ns(&Network::unknown(&mesh), &kind, &before, &after, 4);
                before = after;
            }
            let text = || {
                show(
                    &mesh,
                    from,
                    to,
                    &plan(&Network::unknown(&mesh), from, to, 4).unwrap(),
                )
            };
            assert!(
                planned <= searched + 1e-6,
                "{planned} > {searched}: {}",
                text()
            );
        }
    }
}

fn mesh() -> MeshShape {
    MeshShape::parse("dp=2,fsdp=2,tp=4").unwrap()
}

fn steps(shape: &[usize], from: &str, to: &str) -> String {
    let mesh = mesh();
    let [from, to] = [from, to].map(|text| Layout::parse(text, &mesh, Some(shape)).unwrap());
    let steps = redistributes(&mesh, &from, &to);
    let lines: Vec<_> = steps.iter().map(|step| line(step, &mesh)).collect();
    lines.join("\n")
}

#[test]
fn plans_by_example() {
    let large = &[128, 256];
    let cases = [
        ("fsdp gather", "[{tp, fsdp*}, -]", "[{tp}, -]"),
        ("fsdp gradient", "[{tp}, -] + sum{fsdp}", "[{tp, fsdp*}, -]"),
        (
            "hsdp gradient",
            "[{tp}, -] + sum{dp, fsdp}",
            "[{tp, fsdp*}, -]",
        ),
        (
            "row parallel",
            "[{dp, fsdp}, -] + sum{tp}",
            "[{dp, fsdp}, -]",
        ),
        (
            "sequence parallel",
            "[{dp, fsdp}, -] + sum{tp}",
            "[{dp, fsdp}, {tp}]",
        ),
        ("ulysses", "[{tp}, -]", "[-, {tp}]"),
        (
            "ulysses over two axes",
            "[{fsdp, tp}, -]",
            "[-, {fsdp, tp}]",
        ),
        ("slice before gather", "[{dp}, -]", "[-, {tp}]"),
        ("gather several", "[{dp, fsdp}, {tp}]", "[-, -]"),
        ("swap", "[{dp, fsdp}, -]", "[{fsdp, dp}, -]"),
        ("let another axis in", "[{tp}, -]", "[{dp, tp}, -]"),
        ("same blocks", "[{dp}, -]", "[(4{dp} . 32), -]"),
        ("other factors", "[(4 . 32{tp}), -]", "[{tp}, -]"),
        ("to rest", "[{fsdp}, -]", "[{fsdp*}, -]"),
        ("to partial", "[{fsdp}, -]", "[{fsdp}, -] + max{tp}"),
        ("another reduction", "[-, -] + max{tp}", "[-, -] + sum{tp}"),
    ];
    let text: Vec<_> = cases
        .iter()
        .map(|(name, from, to)| format!("{name}\n{}", steps(large, from, to)))
        .collect();
    insta::assert_snapshot!(text.join("\n\n"), @r"
    fsdp gather
    all_gather fsdp: [{tp, fsdp*}, -] -> [{tp}, -]

    fsdp gradient
    reduce_scatter fsdp: [{tp}, -] + sum{fsdp} -> [{tp, fsdp*}, -]

    hsdp gradient
    reduce_scatter fsdp: [{tp}, -] + sum{dp, fsdp} -> [{tp, fsdp*}, -] + sum{dp}
    all_reduce dp: [{tp, fsdp*}, -] + sum{dp} -> [{tp, fsdp*}, -]

    row parallel
    all_reduce tp: [{dp, fsdp}, -] + sum{tp} -> [{dp, fsdp}, -]

    sequence parallel
    reduce_scatter tp: [{dp, fsdp}, -] + sum{tp} -> [{dp, fsdp}, {tp}]

    ulysses
    all_to_all tp: [{tp}, -] -> [-, {tp}]

    ulysses over two axes
    all_to_all fsdp*tp: [{fsdp, tp}, -] -> [-, {fsdp, tp}]

    slice before gather
    slice tp: [{dp}, -] -> [{dp}, {tp}]
    all_gather dp: [{dp}, {tp}] -> [-, {tp}]

    gather several
    all_gather dp*fsdp: [{dp, fsdp}, {tp}] -> [-, {tp}]
    all_gather tp: [-, {tp}] -> [-, -]

    swap
    all_to_all fsdp: [{dp, fsdp}, -] -> [{dp}, {fsdp}]
    all_to_all dp: [{dp}, {fsdp}] -> [-, {fsdp, dp}]
    all_to_all fsdp*dp: [-, {fsdp, dp}] -> [{fsdp, dp}, -]

    let another axis in
    slice dp: [{tp}, -] -> [{tp}, {dp}]
    all_to_all tp: [{tp}, {dp}] -> [-, {dp, tp}]
    all_to_all dp*tp: [-, {dp, tp}] -> [{dp, tp}, -]

    same blocks
    refactor: [{dp}, -] -> [(4{dp} . 32), -]

    other factors
    all_to_all tp: [(4 . 32{tp}), -] -> [(4{tp} . 32), -]
    refactor: [(4{tp} . 32), -] -> [{tp}, -]

    to rest
    refactor: [{fsdp}, -] -> [{fsdp*}, -]

    to partial
    to_partial tp: [{fsdp}, -] -> [{fsdp}, -] + max{tp}

    another reduction
    all_reduce tp: [-, -] + max{tp} -> [-, -]
    to_partial tp: [-, -] -> [-, -] + sum{tp}
    ");
}

#[test]
fn bytes_received() {
    let mesh = mesh();
    let bytes = |shape: &[usize], from: &str, to: &str| -> Vec<u64> {
        let [from, to] = [from, to].map(|text| Layout::parse(text, &mesh, Some(shape)).unwrap());
        let steps = plan(&Network::unknown(&mesh), &from, &to, 4).unwrap();
        assert_eq!(steps.len(), 1);
        let ranks = mesh.ranks().take(4);
        ranks
            .map(|rank| steps[0].step_bytes(&mesh, rank, 4))
            .collect()
    };
    // 10 over 4 ranks -> 3, 3, 3, 1.
    assert_eq!(bytes(&[10], "[{tp}]", "[-]"), [28, 28, 28, 36]);
    assert_eq!(bytes(&[10], "[-] + sum{tp}", "[{tp}]"), [36, 36, 36, 12]);
    assert_eq!(bytes(&[10], "[-] + sum{tp}", "[-]"), [64, 64, 64, 48]);
    assert_eq!(bytes(&[10], "[-]", "[{tp}]"), [0; 4]);
    // 10 x 5 -> 10 x (2, 2, 1, 0); all but the own 3 (or 1) rows come from others.
    assert_eq!(bytes(&[10, 5], "[{tp}, -]", "[-, {tp}]"), [56, 56, 28, 0]);
}

#[test]
fn the_bytes_of_even_plans_are_their_cost() {
    let mesh = mesh();
    let all = plain_layouts(&mesh, &[16, 32], &[ReduceOp::Sum]);
    for (from, to) in pairs(&all, 3000) {
        for step in plan(&Network::unknown(&mesh), from, to, 4).unwrap() {
            if step.kind == StepKind::Refactor {
                continue;
            }
            let cost = step.cost(&Network::unknown(&mesh), 4);
            if step.kind.collective().is_none() {
                let written = step.to.local_numel_max(&mesh) * 4;
                assert_eq!(cost, work_ns(0.0, written as f64));
                continue;
            }
            let uneven = |layout: &Layout| {
                let sizes: Vec<_> = mesh
                    .ranks()
                    .map(|rank| layout.local_numel(&mesh, rank))
                    .collect();
                sizes.iter().any(|size| size != &sizes[0])
            };
            if uneven(&step.from) || uneven(&step.to) {
                continue;
            }
            for rank in mesh.ranks() {
                let bytes = step.step_bytes(&mesh, rank, 4) as f64;
                // An all_reduce of fewer elements than members cannot be cut evenly.
                let cut = mesh.group_size(step.kind.axes());
                if !step.from.local_numel(&mesh, rank).is_multiple_of(cut) {
                    continue;
                }
                assert!(
                    (cost - 512.0 - bytes).abs() < 0.01,
                    "{}",
                    line(&step, &mesh)
                );
            }
        }
    }
}

#[test]
fn impossible_plans_are_errors() {
    let mesh = mesh();
    let a = Layout::replicated(&[2, 3]);
    let b = Layout::replicated(&[6]);
    assert!(matches!(
        plan(&Network::unknown(&mesh), &a, &b, 4),
        Err(LayoutError::ShapeMismatch { .. })
    ));
    assert_eq!(cost(&Network::unknown(&mesh), &a, &b, 4), f64::INFINITY);
    let alien = Layout::sharded(&[6], 0, &[AxisIndex(7)]);
    assert!(matches!(
        plan(&Network::unknown(&mesh), &b, &alien, 4),
        Err(LayoutError::UnknownAxis { .. })
    ));
}

/// A random mesh, and two layouts of one random shape, with factors of their own.
fn two() -> impl Strategy<Value = (MeshShape, Layout, Layout)> {
    let sizes = prop::collection::vec(1usize..6, 1..5);
    let dim = prop_oneof![
        (0usize..20).prop_map(|n| (vec![n], vec![n])),
        (1usize..7, 1usize..7).prop_map(|(a, b)| (vec![a, b], vec![a * b])),
        (1usize..5, 1usize..5, 1usize..5).prop_map(|(a, b, c)| (vec![a * b, c], vec![b, a * c])),
    ];
    let dims = prop::collection::vec((dim, any::<bool>()), 0..4);
    (sizes, dims).prop_flat_map(|(sizes, dims)| {
        let axes = sizes.iter().enumerate();
        let mesh = MeshShape::with_roles(
            axes.map(|(i, &size)| Axis::with_role(format!("x{i}"), size, AxisRole::Model))
                .collect(),
        )
        .unwrap();
        let (a, b) = dims
            .into_iter()
            .map(|((a, b), swap)| if swap { (b, a) } else { (a, b) })
            .unzip();
        (
            Just(mesh.clone()),
            layout_on(mesh.clone(), a),
            layout_on(mesh, b),
        )
    })
}

proptest! {
    #[test]
    fn every_pair_of_larger_layouts((mesh, from, to) in two()) {
        redistributes(&mesh, &from, &to);
    }
}
