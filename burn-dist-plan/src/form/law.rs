//! The law of the text form: what a window has after a pass is read as what it was written of, and the other passes
//! make the same plan of it.

use super::Form;
use super::state::{Made, parse, print};
use crate::Facts;
use crate::facts::Visits;
use crate::ir::{Op, Window};
use crate::mesh::MeshShape;
use crate::passes::State;
use crate::planner::{Planner, finish, plan};
use crate::{PASSES, PlanOptions};

/// Checks the law of a window: the text after each pass is read as what it was written of, and the next pass goes on
/// with that; the last has the plan that there is without texts. Returns the texts.
///
/// # Panics
/// If it does not hold; and if there is no plan of the window.
pub fn check<O: Op + Form>(
    window: &Window<O>,
    mesh: &MeshShape,
    options: &PlanOptions,
    what: &str,
) -> Vec<String> {
    let planned = plan(window, mesh, options).expect("a plan");
    let mut texts: Vec<String> = Vec::new();
    for (index, (pass, _)) in PASSES.iter().enumerate() {
        let mut planner = match texts.last() {
            Some(text) => parse::<O>(text, mesh, options).expect("it was read before"),
            None => Planner::new(window, mesh, options),
        };
        planner.run_from(index, Some(pass)).expect("a pass");
        check_facts(&planner.state, &format!("{what}, after {pass}"));
        let text = print(&planner);
        let read = parse::<O>(&text, mesh, options);
        let read = read.unwrap_or_else(|error| panic!("{what}, after {pass}: {error}\n{text}"));
        assert_eq!(print(&read), text, "{what}, after {pass}");
        // Not as text, which the printer might leave something out of.
        let is_same = Made::of(&read) == Made::of(&planner);
        assert!(
            is_same,
            "{what}: {pass} is read otherwise than it was\n{text}"
        );
        drop((planner, read));
        texts.push(text);
    }
    let last = texts.last().expect("there are passes");
    let read = parse::<O>(last, mesh, options).expect("it was read before");
    assert_eq!(finish(read, window), planned, "{what}");
    texts
}

/// Checks the law of facts: those that followed a window through its rewritings are those that are found of it anew.
fn check_facts<O: Op>(state: &State<'_, O>, what: &str) {
    let anew = Facts::new(&state.window);
    let names = state.window.dies.iter().zip(0..).map(|(_, value)| value);
    for value in names {
        let of = |facts: &Facts| {
            let at = value as usize;
            (
                facts.roles[at].clone(),
                facts.view_of[at].clone(),
                facts.update_of[at].clone(),
                [
                    facts.backward[at],
                    facts.of_layer[at],
                    facts.updating[at],
                    facts.lasting[at],
                ],
                [
                    facts.gradient_of[at],
                    facts.reshape_of[at],
                    Some(facts.tied_to[at]),
                ],
            )
        };
        assert_eq!(of(&state.facts), of(&anew), "{what}: value {value}");
    }
    for at in 0..state.window.ops.len() {
        let of = |facts: &Facts| {
            let (phase, microbatch) = (facts.phases[at], facts.microbatches[at]);
            (
                phase,
                microbatch,
                facts.after_backward[at],
                facts.rules[at].clone(),
            )
        };
        assert_eq!(of(&state.facts), of(&anew), "{what}: operation {at}");
    }
    assert!(state.facts == anew, "{what}: facts");
    if state.programs.is_empty() {
        let visits = Visits::new(&state.window, &anew);
        assert_eq!(state.visits, visits, "{what}: visits");
    }
}
