//! The state that passes share, as one text.

use std::borrow::Cow;
use std::sync::Arc;

use super::facts::set;
use super::{Failed, Form, FormError, Known, Reader, Writer, form, lines, numbered};
use crate::Facts;
use crate::PlanOptions;
use crate::facts::Visits;
use crate::facts::stages::Stages;
use crate::ir::{CollectiveRecord, Op, ParamSpec, Program, Window};
use crate::layout::Policy;
use crate::mesh::{MeshShape, Rank};
use crate::passes::lower::Lowered;
use crate::passes::{Context, Report, State};
use crate::pipeline::Action;
use crate::planner::Planner;

/// All that passes have made.
#[derive(Debug, PartialEq)]
pub(super) struct Made<O: Op> {
    window: Window<O>,
    reduces_first: Vec<bool>,
    facts: Facts,
    visits: Visits,
    policies: Vec<Arc<Policy>>,
    programs: Vec<Program<O>>,
    stages: Option<Stages>,
    actions: Vec<Option<Action>>,
    collectives: Vec<CollectiveRecord>,
    ranks: Vec<(Rank, Lowered<O>)>,
    report: Report,
}

form!(struct Made<O> {
    "" window, "\nreduces first " reduces_first as set, "\nfacts of " facts, "\nvisits " visits, "\npolicies " policies,
    "\nprograms " programs as lines, "\nstages " stages, "\nactions " actions, "\ncollectives " collectives as lines,
    "\nranks " ranks as ranks, "\nreport " report,
});

/// Ranks with their tasks.
mod ranks {
    use super::*;

    pub(super) fn write<O: Op + Form>(ranks: &[(Rank, Lowered<O>)], to: &mut Writer<'_>) {
        to.lines(ranks, |to, _, (rank, lowered)| {
            to.put("rank ");
            rank.write(to);
            to.put("\n");
            lowered.write(to);
        });
    }

    pub(super) fn read<O: Op + Form>(
        from: &mut Reader<'_>,
    ) -> Result<Vec<(Rank, Lowered<O>)>, Failed> {
        from.lines(|from, _| {
            from.word("rank")?;
            let rank = Rank::read(from)?;
            from.word("\n")?;
            Ok((rank, Lowered::read(from)?))
        })
    }
}

impl<O: Op> Made<O> {
    /// Returns a copy of what passes have made so far.
    pub(super) fn of(planner: &Planner<'_, O>) -> Self {
        let Planner { state, report, .. } = planner;
        let State {
            window,
            reduces_first,
            facts,
            visits,
            policies,
            programs,
            stages,
            split,
            actions,
            collectives,
            ranks,
        } = state;
        assert!(split.is_none(), "programs are written down");
        Self {
            window: window.clone().into_owned(),
            reduces_first: reduces_first.clone(),
            facts: facts.clone(),
            visits: visits.clone(),
            policies: policies.clone(),
            programs: programs.clone(),
            stages: stages.clone(),
            actions: actions.clone(),
            collectives: collectives.clone(),
            ranks: ranks.clone(),
            report: report.clone(),
        }
    }
}

/// Returns what passes have made so far, as text.
pub(crate) fn print<O: Op + Form>(planner: &Planner<'_, O>) -> String {
    let context = planner.context;
    let made = Made::of(planner);
    let mut body = Writer::new(Known::new(context.mesh));
    made.write(&mut body);
    // Parameters name policies too.
    let Known {
        params, policies, ..
    } = body.known;
    let mut listed = Writer::new(Known {
        policies,
        ..Known::new(context.mesh)
    });
    numbered::write(
        &params
            .iter()
            .map(|spec| (**spec).clone())
            .collect::<Vec<ParamSpec>>(),
        &mut listed,
    );
    let mut head = Writer::new(Known::new(context.mesh));
    head.put("policies ");
    let policies = listed
        .known
        .policies
        .iter()
        .map(|policy| (**policy).clone());
    numbered::write(&policies.collect::<Vec<Policy>>(), &mut head);
    format!("{}\nparameters {}\n{}\n", head.text, listed.text, body.text)
}

/// Reads what passes have made.
///
/// # Errors
/// [`FormError`] if the text is none, with the line and what was expected there.
pub(crate) fn parse<'a, O: Op + Form>(
    text: &'a str,
    mesh: &'a MeshShape,
    options: &'a PlanOptions,
) -> Result<Planner<'a, O>, FormError> {
    let context = Context {
        mesh,
        options,
        why: None,
    };
    let mut from = Reader::new(text, mesh);
    match read::<O>(&mut from) {
        Ok(made) => Ok(Planner {
            context,
            state: State {
                reduces_first: made.reduces_first,
                facts: Facts {
                    rules: made
                        .window
                        .ops
                        .iter()
                        .map(|op| Arc::new(op.rule()))
                        .collect(),
                    ..made.facts
                },
                window: Cow::Owned(made.window),
                visits: made.visits,
                policies: made.policies,
                programs: made.programs,
                stages: made.stages,
                split: None,
                actions: made.actions,
                collectives: made.collectives,
                ranks: made.ranks,
            },
            report: made.report,
        }),
        Err(Failed) => Err(from.error()),
    }
}

fn read<O: Op + Form>(from: &mut Reader<'_>) -> Result<Made<O>, Failed> {
    from.word("policies")?;
    let policies: Vec<Policy> = numbered::read(from)?;
    from.known.policies = policies.into_iter().map(Arc::new).collect();
    from.word("\nparameters")?;
    let params: Vec<ParamSpec> = numbered::read(from)?;
    from.known.params = params.into_iter().map(Arc::new).collect();
    from.word("\n")?;
    let made = Made::read(from)?;
    from.word("\n")?;
    match from.rest().is_empty() {
        true => Ok(made),
        false => from.fail("the end of the text"),
    }
}
