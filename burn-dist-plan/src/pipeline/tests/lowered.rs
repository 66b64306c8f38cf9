//! Steps of ranks from their text form: nothing but tests reads them.

use std::str::FromStr;

use burn_dist_mesh::TextError;

use crate::pipeline::line::read_line;
use crate::pipeline::{Action, Kind, Lowered, ScheduleError, Step};

impl FromStr for Step {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason| TextError::new(text, reason);
        let number = |digits: &str| {
            digits
                .parse()
                .map_err(|_| error("is not a step: it ends with no number of a stage or rank"))
        };
        let message = |rest: &str, sign| {
            let (of, rank) = rest
                .split_once(sign)
                .ok_or_else(|| error("is not a step: a send is SF0.3>1, a receive RF0.3<0"))?;
            let of: Action = of.parse()?;
            if of.kind == Kind::Weight {
                return Err(error(
                    "is not a step: gradients of weights stay on their rank",
                ));
            }
            Ok((of, number(rank)?))
        };
        if let Some(stage) = text.strip_prefix("AG") {
            Ok(Self::Gather {
                stage: number(stage)?,
            })
        } else if let Some(stage) = text.strip_prefix("RS") {
            Ok(Self::Reduce {
                stage: number(stage)?,
            })
        } else if let Some(rest) = text.strip_prefix('S') {
            message(rest, '>').map(|(of, to)| Self::Send { of, to })
        } else if let Some(rest) = text.strip_prefix('R') {
            message(rest, '<').map(|(of, from)| Self::Recv { of, from })
        } else {
            text.parse().map(Self::Compute)
        }
    }
}

impl FromStr for Lowered {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lines = text.lines().enumerate();
        let order = lines.map(|(rank, text)| read_line(text, rank + 1));
        Ok(Self {
            order: order.collect::<Result<_, _>>()?,
        })
    }
}
