//! Why an operation is split as it is: the splits that it was offered, and what each of them costs.

use std::fmt;
use std::str::FromStr;

use crate::error::PlanError;
use crate::ir::{Mark, Op, Slot, ValueIndex, Window};
use crate::mesh::MeshShape;
use crate::options::PlanOptions;
use crate::planner::Planner;
use crate::rule::OpRule;

/// A value by the name that it has in what [`text_after`](crate::text_after) returns: `%12`, or a slot that holds it after the pass
/// `propagate`, `s34`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedValue {
    /// A value of the window.
    Value(ValueIndex),
    /// A slot of the program.
    Slot(Slot),
}

impl FromStr for AskedValue {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let number = |digits: &str| digits.parse().ok();
        let named = match text.strip_prefix('s') {
            Some(slot) => number(slot).map(Self::Slot),
            None => number(text.strip_prefix('%').unwrap_or(text)).map(Self::Value),
        };
        named.ok_or_else(|| PlanError::NoValue { text: text.into() })
    }
}

impl fmt::Display for AskedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "%{value}"),
            Self::Slot(slot) => write!(f, "s{slot}"),
        }
    }
}

/// Returns why the operation that makes a value is split as it is, as text: the splits that it was offered with what
/// each costs, that which is taken first and with a star; of an operation that was offered none, why.
///
/// # Errors
/// As [`plan`](crate::plan); [`PlanError::UnknownValue`] if the window has no such value.
pub fn why<O: Op>(
    window: &Window<O>,
    mesh: &MeshShape,
    options: &PlanOptions,
    name: AskedValue,
) -> Result<String, PlanError> {
    let planned = |why| {
        let mut planner = Planner::new(window, mesh, options);
        planner.context.why = why;
        planner.run(Some("propagate")).map(|()| planner)
    };
    let (planner, value) = match name {
        AskedValue::Value(value) => (planned(Some(value))?, Some(value)),
        AskedValue::Slot(slot) => {
            let planner = planned(None)?;
            let slot = planner.state.program().slots.get(slot as usize);
            match slot.map(|slot| slot.value) {
                Some(value) => (planned(Some(value))?, Some(value)),
                None => (planner, None),
            }
        }
    };
    let window = &planner.state.window;
    let value = value.filter(|value| (*value as usize) < window.dies.len());
    let value = value.ok_or_else(|| PlanError::UnknownValue {
        name: name.to_string(),
        values: window.dies.len(),
        slots: planner.state.program().slots.len(),
    })?;
    let mut ops = window.ops.iter();
    let Some(op) = ops.find(|op| op.outputs().any(|out| out.id == value)) else {
        return Ok(format!("%{value} comes from outside the window\n"));
    };
    let operands = op.inputs().map(|input| format!("%{}", input.id));
    let operands = operands.collect::<Vec<_>>().join(", ");
    let head = format!("%{value} = {}({operands})", op.name());
    if let Some(why) = &planner.report.why {
        return Ok(format!("{head}\n{why}"));
    }
    let why = match (op.mark(), op.rule()) {
        (Some(Mark::Param(spec)), _) => format!("the parameter {} rests so", spec.path),
        (Some(Mark::Redistribute(_)), _) => "the program asks for this layout".into(),
        (None, OpRule::Replicated(why)) => format!("whole on every rank: {why}"),
        (None, OpRule::Create) => "made from nothing, in the layouts that its uses need".into(),
        (None, _) => {
            "made of what any rank has any part of: split as a batch, or as its uses need it".into()
        }
    };
    Ok(format!("{head}\n  {why}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Builder, options};

    fn asked(b: &Builder, name: &str) -> Result<String, String> {
        let name = name.parse().map_err(|error: PlanError| error.to_string())?;
        why(&b.window, &b.mesh, &options(&b.mesh), name).map_err(|error| error.to_string())
    }

    #[test]
    fn a_value_is_named_as_texts_name_it() {
        for (text, expected) in [
            ("%12", Ok(AskedValue::Value(12))),
            ("12", Ok(AskedValue::Value(12))),
            ("s3", Ok(AskedValue::Slot(3))),
        ] {
            let found = text.parse::<AskedValue>();
            assert_eq!(found.map_err(|error| error.to_string()), expected);
        }
        for wrong in ["", "%", "s", "x", "%s3", "-1", "wq"] {
            let error = wrong.parse::<AskedValue>().expect_err(wrong).to_string();
            assert!(error.contains("as in `%12`"), "{error}");
        }
    }

    /// A linear layer split by rows of its weight: what it was offered, by value and by slot.
    #[test]
    fn options_are_listed_with_their_costs() {
        let mut b = Builder::new("dp=2,tp=2");
        let mut spec = Builder::spec("up.weight", &[64, 64], None);
        let tp = b.mesh.axis("tp").expect("an axis");
        spec.layout.dims[1].factors[0].axes = vec![tp];
        let weight = b.param(spec);
        let x = b.data(&[64, 64]);
        let made = b.linear(x, weight);
        let other = b.exp(x);
        b.survive(made);
        b.survive(other);
        let text = asked(&b, &format!("%{made}")).expect("a value");
        insta::assert_snapshot!("why_linear", text);
        let program = crate::text_after(&b.window, &b.mesh, &options(&b.mesh), "propagate");
        let program = program.expect("a program");
        let slot = program.lines().find(|line| line.contains("= linear("));
        let slot = slot
            .and_then(|line| line.split(' ').next())
            .expect("a slot");
        assert_eq!(asked(&b, slot).expect("a slot"), text);
        assert_eq!(
            asked(&b, &format!("%{x}")),
            Ok(format!("%{x} comes from outside the window\n"))
        );
        let free = asked(&b, &format!("%{other}")).expect("a value");
        assert!(free.contains("split as a batch"), "{free}");
        for wrong in ["%99", "s999"] {
            let error = asked(&b, wrong).expect_err(wrong);
            assert!(error.contains(&format!("no value `{wrong}`")), "{error}");
        }
    }
}
