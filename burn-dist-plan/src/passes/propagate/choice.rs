//! Which split of an operation is taken: the cheapest that it is offered.

use std::fmt::{self, Display};

use super::offers::{Offer, Offers, Part};
use super::split::Split;
use super::view::OpView;
use crate::ContextParallel;
use crate::mesh::MeshShape;
use crate::rule::OpRule;

#[cfg(test)]
mod tests;

/// What a split costs: constraints that it breaks come first, the gravest before the others, then time.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct Cost {
    /// Layouts that are asked for and that it does not keep: the input of a module, where a result rests.
    pub asked: u32,
    /// Axes over which it gathers rows to sum them, though each rank could sum its own. Summed where they are, what is
    /// summed and in which order depends neither on the number of rows nor on the strategy of the axis.
    pub gathered: u32,
    /// Parameters, or views of them, that it moves off the axes that a style splits them over.
    pub moved: u32,
    /// Nanoseconds of the transfers and the work.
    pub ns: f64,
}

/// One of the splits on offer, by its position among them, with its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Priced {
    pub offer: usize,
    pub cost: Cost,
}

/// What is chosen of the splits on offer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub taken: Priced,
    /// The others, in the order in which they were offered.
    pub turned_down: Vec<Priced>,
}

/// Picks how an operation is split: the cheapest of the splits that it is offered, the first of those that cost as much.
pub(super) fn choose(view: &OpView, offers: &Offers) -> Choice {
    let priced = offers.splits.iter().enumerate();
    let priced = priced.map(|(index, offer)| Priced {
        offer: index,
        cost: cost(view, offers, offer),
    });
    let mut priced: Vec<Priced> = priced.collect();
    let mut cheapest = 0;
    for (index, other) in priced.iter().enumerate() {
        if other.cost < priced[cheapest].cost {
            cheapest = index;
        }
    }
    Choice {
        taken: priced.remove(cheapest),
        turned_down: priced,
    }
}

fn cost(
    view: &OpView,
    offers: &Offers,
    Offer {
        split,
        moved,
        times,
    }: &Offer,
) -> Cost {
    let gathers = offers
        .terms
        .iter()
        .filter(|(axis, factor)| !split.splits(*axis, *factor));
    Cost {
        asked: unkept(view, split),
        gathered: gathers.count() as u32,
        moved: *moved,
        ns: times.iter().map(|(_, ns)| ns).sum(),
    }
}

/// Returns how many of the layouts that are asked for a split does not keep.
fn unkept(view: &OpView, split: &Split) -> u32 {
    let hints = &view.hints;
    let forced = hints.forced.as_ref();
    let input = forced.is_some_and(|(at, layout)| split.inputs[*at].as_ref() != layout);
    let is_partial = split
        .assignment
        .as_ref()
        .is_some_and(|of| !of.kept.is_empty());
    let home = hints.home.as_ref().filter(|_| !is_partial);
    let output = home.is_some_and(|home| split.outputs[0].dims != home.dims);
    u32::from(input) + u32::from(output) + u32::from(!is_in_context(view, split))
}

/// Returns whether what is split along another factor is as the policy of the result asks.
fn is_in_context(view: &OpView, split: &Split) -> bool {
    let (OpRule::Factors(rule), Some(assignment)) = (view.rule.as_ref(), &split.assignment) else {
        return true;
    };
    let mut tied = (0..).zip(&rule.factors).filter_map(|(index, factor)| {
        let with = &assignment.factors[usize::from(factor.along?)];
        (!with.is_whole()).then_some(&assignment.factors[index])
    });
    match view.result.context {
        ContextParallel::Auto => true,
        ContextParallel::Ring => tied.all(|split| !split.is_whole()),
        ContextParallel::Gather => tied.all(|split| split.is_whole()),
    }
}

/// A choice for people: the splits from the cheapest on, the one that is taken with a star.
pub(super) struct Reasons<'a> {
    pub choice: &'a Choice,
    pub offers: &'a Offers,
    pub mesh: &'a MeshShape,
}

impl Display for Reasons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { taken, turned_down } = self.choice;
        let mut others: Vec<&Priced> = turned_down.iter().collect();
        others.sort_by(|one, other| {
            let order = one.cost.partial_cmp(&other.cost);
            order.unwrap_or(std::cmp::Ordering::Equal)
        });
        for (sign, Priced { offer, cost }) in [('*', taken)]
            .into_iter()
            .chain(others.into_iter().map(|other| (' ', other)))
        {
            let Offer { split, times, .. } = &self.offers.splits[*offer];
            let layouts = |of: &[std::sync::Arc<crate::layout::Layout>]| {
                let texts = of
                    .iter()
                    .map(|layout| layout.display(self.mesh).to_string());
                texts.collect::<Vec<_>>().join(", ")
            };
            let (needs, makes) = (layouts(&split.inputs), layouts(&split.outputs));
            writeln!(f, "{sign} {needs} -> {makes}")?;
            write!(f, "    {:.3} us", cost.ns / 1e3)?;
            let of_part = |part: Part| {
                let of = times.iter().filter(|(other, _)| *other == part);
                of.map(|(_, ns)| ns).sum::<f64>()
            };
            let mut parts: Vec<(String, f64)> = vec![
                ("work".into(), of_part(Part::Work)),
                ("results".into(), of_part(Part::Results)),
                ("terms to add up".into(), of_part(Part::Terms)),
                ("to where it is wanted".into(), of_part(Part::Wanted)),
            ];
            let operands = (0..split.inputs.len()).map(|at| {
                let name = format!("operand {}", at + 1);
                (name, of_part(Part::Operand(at)))
            });
            parts.extend(operands);
            for (index, (name, ns)) in parts.iter().filter(|(_, ns)| *ns > 0.0).enumerate() {
                let before = if index == 0 { ": " } else { ", " };
                write!(f, "{before}{name} {:.3}", ns / 1e3)?;
            }
            for (count, what) in [
                (cost.asked, "layout(s) asked for are not kept"),
                (cost.gathered, "axis(es) of rows are gathered to sum them"),
                (cost.moved, "parameter(s) leave the axes of their style"),
            ] {
                if count > 0 {
                    write!(f, "; {count} {what}")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
