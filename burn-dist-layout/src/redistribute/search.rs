//! The general case: a shortest path over layouts.

use super::StepKind;
use super::cost::transfer_ns;
use crate::cost::Network;
use crate::reshape::regroup_single;
use crate::{Factor, Layout};
use burn_dist_mesh::{AxisIndex, MeshShape, ReduceOp};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How many places an axis may choose from while it waits for another axis; keeps the search small for tensors of many
/// dims.
const WAITING_PLACES_MAX: usize = 2;

/// A dim as a product, and the target in these factors if its split allows.
struct Form {
    sizes: Vec<usize>,
    goal: Option<Vec<Factor>>,
}

struct Search<'a> {
    mesh: &'a MeshShape,
    target: &'a Layout,
    /// Per dim, from the factors of the source over common ones to those of the target; no two alike.
    forms: Vec<Vec<Form>>,
}

struct Node {
    layout: Layout,
    cost: f64,
    num_steps: usize,
    /// The node before this one and the step from there.
    via: Option<(usize, StepKind)>,
    done: bool,
}

/// Returns the cheapest sequence of steps with the layout after each; axes at rest are left out.
///
/// Ties go to fewer steps, then to the order in which steps are listed below, so all ranks find the same plan. The
/// shapes are equal and hold at least one element.
pub(super) fn search(
    network: &Network<'_>,
    from: &Layout,
    to: &Layout,
    elem_bytes: usize,
) -> Vec<(StepKind, Layout)> {
    let search = Search::new(network.mesh(), from, to);
    let start = Layout {
        at_rest: Vec::new(),
        ..from.clone()
    };
    let mut nodes = vec![Node {
        layout: start.clone(),
        cost: 0.0,
        num_steps: 0,
        via: None,
        done: false,
    }];
    let mut known: FxHashMap<Layout, usize> = FxHashMap::default();
    known.insert(start, 0);
    // Costs are not negative, so the order of their bits is their order.
    let mut queue = BinaryHeap::from([Reverse((0u64, 0usize, 0usize))]);
    while let Some(Reverse((_, _, at))) = queue.pop() {
        if std::mem::replace(&mut nodes[at].done, true) {
            continue;
        }
        let layout = nodes[at].layout.clone();
        if layout.dims == to.dims && layout.partial == to.partial {
            return path(nodes, at);
        }
        for (kind, next) in search.steps(&layout) {
            let cost = nodes[at].cost + transfer_ns(network, &kind, &layout, &next, elem_bytes);
            let num_steps = nodes[at].num_steps + 1;
            let id = *known.entry(next).or_insert_with_key(|next| {
                nodes.push(Node {
                    layout: next.clone(),
                    cost: f64::INFINITY,
                    num_steps: 0,
                    via: None,
                    done: false,
                });
                nodes.len() - 1
            });
            let node = &mut nodes[id];
            if !node.done && (cost, num_steps) < (node.cost, node.num_steps) {
                (node.cost, node.num_steps) = (cost, num_steps);
                node.via = Some((at, kind));
                queue.push(Reverse((cost.to_bits(), num_steps, id)));
            }
        }
    }
    unreachable!("gathering and reducing everything, then slicing, always leads to the target")
}

fn path(mut nodes: Vec<Node>, mut at: usize) -> Vec<(StepKind, Layout)> {
    let mut steps = Vec::new();
    while let Some((before, kind)) = nodes[at].via.take() {
        steps.push((kind, nodes[at].layout.clone()));
        at = before;
    }
    steps.reverse();
    steps
}

impl<'a> Search<'a> {
    fn new(mesh: &'a MeshShape, from: &Layout, target: &'a Layout) -> Self {
        let dims = from.dims.iter().zip(&target.dims);
        let forms = dims
            .map(|(source, target)| {
                let (source, last) = (source.sizes(), target.sizes());
                let mut forms = vec![source.clone(), common_factors(&source, &last), last];
                forms.dedup();
                forms
                    .into_iter()
                    .map(|sizes| Form {
                        goal: in_factors(mesh, &target.factors, &sizes),
                        sizes,
                    })
                    .collect()
            })
            .collect();
        Self {
            mesh,
            target,
            forms,
        }
    }

    /// Lists the steps out of a layout that can be part of a cheapest path.
    ///
    /// Axes that are where the target wants them never leave, and axes enter a factor only in the target's order. The
    /// exception is an axis that must let another one in before it: it may wait in any other factor meanwhile.
    fn steps(&self, layout: &Layout) -> Vec<(StepKind, Layout)> {
        let mut kinds = Vec::new();
        self.resolve(layout, &mut kinds);
        self.gather(layout, &mut kinds);
        for axis in self.target.sharded_axes() {
            self.place(layout, axis, &mut kinds);
        }
        let used = layout.axes_used();
        for partial in &self.target.partial {
            let commutes = layout
                .partial
                .iter()
                .all(|other| other.op.commutes_with(partial.op));
            if commutes && !used.contains(&partial.axis) {
                kinds.push(StepKind::ToPartial {
                    axis: partial.axis,
                    op: partial.op,
                });
            }
        }
        let mut steps: Vec<_> = kinds
            .into_iter()
            .map(|kind| {
                let next = kind.apply(layout);
                (kind, next)
            })
            .collect();
        self.refactor(layout, &mut steps);
        steps
    }

    /// The target's axes of a factor of the current form of a dim.
    fn goal(&self, layout: &Layout, dim: usize, factor: usize) -> Option<&[AxisIndex]> {
        let factors = &layout.dims[dim].factors;
        let form = self.forms[dim]
            .iter()
            .find(|form| is_form(factors, &form.sizes))?;
        Some(&form.goal.as_ref()?[factor].axes)
    }

    /// Number of leading axes of a factor that the target wants there.
    fn settled(&self, layout: &Layout, dim: usize, factor: usize) -> usize {
        let axes = &layout.dims[dim].factors[factor].axes;
        let goal = self.goal(layout, dim, factor).unwrap_or(&[]);
        axes.iter().zip(goal).take_while(|(a, b)| a == b).count()
    }

    /// The axes that the target wants next in a factor; empty if something else has to go first.
    fn wanted(&self, layout: &Layout, dim: usize, factor: usize) -> &[AxisIndex] {
        let axes = &layout.dims[dim].factors[factor].axes;
        let goal = self.goal(layout, dim, factor).unwrap_or(&[]);
        goal.strip_prefix(axes.as_slice()).unwrap_or(&[])
    }

    /// All_gathers of the axes of a factor that cannot stay there.
    fn gather(&self, layout: &Layout, kinds: &mut Vec<StepKind>) {
        for (dim, factor) in places(layout) {
            let axes = &layout.dims[dim].factors[factor].axes;
            for start in self.settled(layout, dim, factor)..axes.len() {
                kinds.push(StepKind::AllGather {
                    axes: axes[start..].to_vec(),
                    dim,
                    factor,
                });
            }
        }
    }

    /// Steps that take one axis of the target's dims to where it is wanted, or to where it can wait: slices,
    /// reduce_scatters, all_to_alls. An all_to_all takes all axes that are minor to it along.
    fn place(&self, layout: &Layout, axis: AxisIndex, kinds: &mut Vec<StepKind>) {
        let from = layout.position(axis);
        let mut leaving: &[AxisIndex] = &[];
        if let Some((dim, factor)) = from {
            let axes = &layout.dims[dim].factors[factor].axes;
            let start = axes.iter().position(|other| *other == axis);
            let start = start.expect("the axis splits this factor");
            if start < self.settled(layout, dim, factor) {
                return;
            }
            leaving = &axes[start..];
        }
        let mut others: Vec<_> = places(layout)
            .filter(|&place| Some(place) != from)
            .collect();
        let home = others.iter().copied().find(|&(dim, factor)| {
            let wanted = self.wanted(layout, dim, factor);
            wanted.first() == Some(&axis) && wanted.starts_with(leaving)
        });
        let targets = match home {
            Some(_) => home.as_slice(),
            None => {
                // Where to wait makes little difference, except that small factors pad more.
                others.sort_by_key(|&(dim, factor)| {
                    let factor = &layout.dims[dim].factors[factor];
                    Reverse(factor.local_size_max(self.mesh))
                });
                others.truncate(WAITING_PLACES_MAX);
                &others
            }
        };
        for &(dim, factor) in targets {
            match (from, layout.partial_op(axis)) {
                (Some(from), _) => kinds.push(StepKind::AllToAll {
                    axes: leaving.to_vec(),
                    from,
                    to: (dim, factor),
                }),
                (None, None) => kinds.push(StepKind::Slice {
                    axes: vec![axis],
                    dim,
                    factor,
                }),
                (None, Some(op)) => {
                    // One collective may do for several axes that are wanted one after the other.
                    let wanted = match home {
                        Some(_) => self.wanted(layout, dim, factor),
                        None => &[axis],
                    };
                    let same = |axis: &&AxisIndex| layout.partial_op(**axis) == Some(op);
                    let run = wanted.iter().take_while(same).count();
                    kinds.extend((1..=run).map(|end| StepKind::ReduceScatter {
                        axes: wanted[..end].to_vec(),
                        op,
                        dim,
                        factor,
                    }));
                }
            }
        }
    }

    /// All_reduces: always over the axes that no dim of the target takes, with or without some of the others.
    fn resolve(&self, layout: &Layout, kinds: &mut Vec<StepKind>) {
        for op in ReduceOp::ALL {
            let (scatterable, plain): (Vec<_>, Vec<_>) = layout
                .partial
                .iter()
                .filter(|partial| partial.op == op && !self.target.partial.contains(partial))
                .map(|partial| partial.axis)
                .partition(|&axis| self.target.position(axis).is_some());
            // Mesh axes are few, so their subsets are too.
            for subset in 0..1usize << scatterable.len() {
                let chosen = scatterable
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| subset >> i & 1 == 1)
                    .map(|(_, &axis)| axis);
                let mut axes: Vec<_> = plain.iter().copied().chain(chosen).collect();
                axes.sort();
                if !axes.is_empty() {
                    kinds.push(StepKind::AllReduce { axes, op });
                }
            }
        }
    }

    fn refactor(&self, layout: &Layout, steps: &mut Vec<(StepKind, Layout)>) {
        for (dim, forms) in self.forms.iter().enumerate() {
            let factors = &layout.dims[dim].factors;
            let Some(at) = forms.iter().position(|form| is_form(factors, &form.sizes)) else {
                continue;
            };
            for form in &forms[at + 1..] {
                if let Some(factors) = in_factors(self.mesh, factors, &form.sizes) {
                    let mut next = layout.clone();
                    next.dims[dim].factors = factors;
                    steps.push((StepKind::Refactor, next));
                }
            }
        }
    }
}

/// Every (dim, factor).
fn places(layout: &Layout) -> impl Iterator<Item = (usize, usize)> + '_ {
    let dims = layout.dims.iter().enumerate();
    dims.flat_map(|(dim, d)| (0..d.factors.len()).map(move |factor| (dim, factor)))
}

fn is_form(factors: &[Factor], sizes: &[usize]) -> bool {
    factors
        .iter()
        .map(|factor| factor.size)
        .eq(sizes.iter().copied())
}

/// Writes a dim in other factors, if no rank's part changes.
pub(super) fn in_factors(
    mesh: &MeshShape,
    factors: &[Factor],
    sizes: &[usize],
) -> Option<Vec<Factor>> {
    if is_form(factors, sizes) {
        return Some(factors.to_vec());
    }
    regroup_single(mesh, factors, sizes)
}

/// Returns factors of a dim into which both lists can be cut, as far as they go together; otherwise coarser ones.
pub(super) fn common_factors(a: &[usize], b: &[usize]) -> Vec<usize> {
    if a == b {
        return a.to_vec();
    }
    let ends = |sizes: &[usize]| -> Vec<usize> {
        sizes
            .iter()
            .scan(1, |product, size| {
                *product *= size;
                Some(*product)
            })
            .collect()
    };
    let (ends_a, ends_b) = (ends(a), ends(b));
    let mut all = [ends_a.as_slice(), &ends_b].concat();
    all.sort();
    all.dedup();
    let mut out = Vec::new();
    let mut start = 1;
    let mut inner = Vec::new();
    for end in all {
        inner.push(end);
        if !(ends_a.contains(&end) && ends_b.contains(&end)) {
            continue;
        }
        // 12 = (4 . 3) and (2 . 6) have (2 . 2 . 3) in common; (4 . 3) and (6 . 2) only 12 itself.
        let chain = || std::iter::once(start).chain(inner.iter().copied());
        let divides = chain().zip(inner.iter()).all(|(low, high)| high % low == 0);
        if divides {
            out.extend(chain().zip(inner.iter()).map(|(low, high)| high / low));
        } else {
            out.push(end / start);
        }
        start = end;
        inner.clear();
    }
    out.retain(|&size| size != 1);
    if out.is_empty() {
        out.push(1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::common_factors;

    #[test]
    fn common_factors_of_a_dim() {
        assert_eq!(common_factors(&[4, 3], &[12]), [4, 3]);
        assert_eq!(common_factors(&[4, 3], &[2, 6]), [2, 2, 3]);
        assert_eq!(common_factors(&[4, 3], &[6, 2]), [12]);
        assert_eq!(common_factors(&[5, 4, 3], &[5, 6, 2]), [5, 12]);
        assert_eq!(common_factors(&[1, 4], &[4]), [4]);
        assert_eq!(common_factors(&[1, 1], &[1]), [1]);
    }
}
