//! The common redistributions, whose best plan is known without a search.

use super::StepKind;
use crate::Layout;
use burn_dist_mesh::{AxisIndex, ReduceOp};

/// Axes that one factor loses or gains at its minor end.
struct Change {
    dim: usize,
    factor: usize,
    axes: Vec<AxisIndex>,
}

/// Returns the cheapest steps between two layouts with the same factors, if they are of a kind for which there is
/// nothing to weigh.
///
/// These are: axes of one factor that all go to another one (all_to_all); slices with one reduce_scatter; slices, then
/// all_reduces, then all_gathers. Slices come first, since they make every later block smaller, and all_gathers last,
/// since they make it larger.
pub(super) fn direct(from: &Layout, to: &Layout) -> Option<Vec<StepKind>> {
    if to
        .partial
        .iter()
        .any(|partial| !from.partial.contains(partial))
    {
        return None;
    }
    let resolve: Vec<_> = from
        .partial
        .iter()
        .filter(|partial| !to.partial.contains(partial))
        .collect();
    let (gathers, adds) = changes(from, to)?;

    if let ([gather], [add], []) = (gathers.as_slice(), adds.as_slice(), resolve.as_slice())
        && gather.axes == add.axes
    {
        return Some(vec![StepKind::AllToAll {
            axes: gather.axes.clone(),
            from: (gather.dim, gather.factor),
            to: (add.dim, add.factor),
        }]);
    }
    let gathered = |axis: &AxisIndex| gathers.iter().any(|gather| gather.axes.contains(axis));
    if adds.iter().any(|add| add.axes.iter().any(gathered)) {
        return None;
    }
    let scatters = |axis: &AxisIndex| resolve.iter().any(|partial| partial.axis == *axis);
    let (scattered, sliced): (Vec<_>, Vec<_>) = adds
        .into_iter()
        .partition(|add| add.axes.iter().any(scatters));

    let mut steps: Vec<_> = sliced.into_iter().map(Change::slice).collect();
    match scattered.as_slice() {
        [] => {
            for op in ReduceOp::ALL {
                let of_op = resolve.iter().filter(|partial| partial.op == op);
                let axes: Vec<_> = of_op.map(|partial| partial.axis).collect();
                if !axes.is_empty() {
                    steps.push(StepKind::AllReduce { axes, op });
                }
            }
            steps.extend(gathers.into_iter().map(Change::gather));
            Some(steps)
        }
        [add] if gathers.is_empty() => {
            let op = resolve[0].op;
            let start = add.axes.iter().position(scatters)?;
            let run = add.axes[start..]
                .iter()
                .take_while(|axis| scatters(axis))
                .count();
            let rest = add.axes.len() - start - run;
            // An axis that is sliced after the reduction had better be sliced before it, somewhere else.
            if rest > 0 || run != resolve.len() || resolve.iter().any(|partial| partial.op != op) {
                return None;
            }
            let (before, axes) = add.axes.split_at(start);
            if !before.is_empty() {
                let before = Change {
                    axes: before.to_vec(),
                    ..*add
                };
                steps.push(before.slice());
            }
            steps.push(StepKind::ReduceScatter {
                axes: axes.to_vec(),
                op,
                dim: add.dim,
                factor: add.factor,
            });
            Some(steps)
        }
        _ => None,
    }
}

/// Returns what the factors lose and what they gain; `None` if one does both, or the factors are not the same.
fn changes(from: &Layout, to: &Layout) -> Option<(Vec<Change>, Vec<Change>)> {
    let (mut gathers, mut adds) = (Vec::new(), Vec::new());
    for (dim, (source, target)) in from.dims.iter().zip(&to.dims).enumerate() {
        if source.factors.len() != target.factors.len() {
            return None;
        }
        for (factor, (a, b)) in source.factors.iter().zip(&target.factors).enumerate() {
            if a.size != b.size {
                return None;
            }
            let change = |axes: &[AxisIndex]| Change {
                dim,
                factor,
                axes: axes.to_vec(),
            };
            if a.axes == b.axes {
            } else if let Some(lost) = a.axes.strip_prefix(b.axes.as_slice()) {
                gathers.push(change(lost));
            } else if let Some(gained) = b.axes.strip_prefix(a.axes.as_slice()) {
                adds.push(change(gained));
            } else {
                return None;
            }
        }
    }
    Some((gathers, adds))
}

impl Change {
    fn slice(self) -> StepKind {
        StepKind::Slice {
            axes: self.axes,
            dim: self.dim,
            factor: self.factor,
        }
    }

    fn gather(self) -> StepKind {
        StepKind::AllGather {
            axes: self.axes,
            dim: self.dim,
            factor: self.factor,
        }
    }
}
