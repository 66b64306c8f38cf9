//! Splits of factors over meshes.

use crate::layout::{DimLayout, Factor, Layout};
use crate::mesh::{AxisIndex, MeshShape, ReduceOp};
use crate::rule::{FactorKind, FactorRule, Held, Rule, nowhere_empty};

/// Returns all combinations of splits of the factors of `rule`.
pub(super) fn assignments(rule: &Rule, mesh: &MeshShape) -> Vec<Vec<DimLayout>> {
    let options: Vec<_> = rule
        .factors
        .iter()
        .map(|factor| options(factor, mesh))
        .collect();
    combinations(&options)
}

/// Returns all layouts of a tensor made of these splits.
pub(super) fn layouts(shape: &[usize], mesh: &MeshShape) -> Vec<Layout> {
    let options: Vec<_> = shape
        .iter()
        .map(|&size| {
            let (kind, block) = (FactorKind::Map, 1);
            let (held, along) = (Held::Any, None);
            let factor = FactorRule {
                size,
                kind,
                block,
                held,
                along,
            };
            options(&factor, mesh)
        })
        .collect();
    let layout = |dims| Layout {
        dims,
        partial: Vec::new(),
        at_rest: Vec::new(),
    };
    combinations(&options).into_iter().map(layout).collect()
}

fn split(size: usize, axes: &[AxisIndex]) -> Factor {
    Factor {
        size,
        axes: axes.to_vec(),
    }
}

/// Whole; over one axis; over two nested; as a product with its major, its minor or both factors split. Of a factor of
/// blocks, what cuts none.
fn options(factor: &FactorRule, mesh: &MeshShape) -> Vec<DimLayout> {
    let FactorRule {
        size,
        kind,
        block,
        held,
        along,
    } = *factor;
    if along.is_some() {
        // One rank alone cannot compute it.
        return vec![DimLayout::whole(size)];
    }
    let axes: Vec<_> = mesh.axis_indices().collect();
    let mut some: Vec<Vec<AxisIndex>> = axes.iter().map(|&axis| vec![axis]).collect();
    if let [a, b] = axes[..] {
        some.extend([vec![a, b], vec![b, a]]);
    }
    let mut options: Vec<Vec<Factor>> = vec![vec![split(size, &[])]];
    options.extend(some.iter().map(|axes| vec![split(size, axes)]));
    if held != Held::Range {
        for major in (2..size).filter(|major| size.is_multiple_of(*major)) {
            let minor = size / major;
            for axes in &some {
                options.push(vec![split(major, axes), split(minor, &[])]);
                options.push(vec![split(major, &[]), split(minor, axes)]);
                if let [a, b] = axes[..] {
                    options.push(vec![split(major, &[a]), split(minor, &[b])]);
                }
            }
        }
    }
    let mut splits: Vec<DimLayout> = options
        .into_iter()
        .filter_map(|factors| factor.split_as(&DimLayout { factors }, mesh))
        .filter(|dim| match kind {
            FactorKind::Reduce(ReduceOp::Sum) | FactorKind::Map | FactorKind::Index => true,
            FactorKind::Reduce(_) => nowhere_empty(dim, mesh),
            FactorKind::Whole => dim.is_whole(),
        })
        .collect();
    if block > 1 {
        splits.sort();
        splits.dedup();
    }
    splits
}

/// Combines one option each such that no axis is used twice.
fn combinations(options: &[Vec<DimLayout>]) -> Vec<Vec<DimLayout>> {
    let mut all: Vec<Vec<DimLayout>> = vec![Vec::new()];
    for choices in options {
        let mut longer = Vec::new();
        for chosen in &all {
            let used: Vec<_> = chosen.iter().flat_map(DimLayout::axes).collect();
            for choice in choices {
                if choice.axes().all(|axis| !used.contains(&axis)) {
                    longer.push(chosen.iter().cloned().chain([choice.clone()]).collect());
                }
            }
        }
        all = longer;
    }
    all
}
