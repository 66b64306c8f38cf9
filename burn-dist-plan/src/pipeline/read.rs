//! Schedules from their text form.

use std::str::FromStr;

use super::line::{line, read_line};
use super::{Bytes, Limits, Schedule, ScheduleError};

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim_end();
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default();
        let error = |token: &str, problem: &str| ScheduleError::Text {
            line: 1,
            token: token.to_owned(),
            problem: problem.to_owned(),
        };
        let mut fields = header.split_whitespace();
        if fields.next() != Some("schedule") {
            return Err(error(
                header,
                "is not the header of a schedule: `schedule ranks=P chunks=V placement=loop|v microbatches=M`",
            ));
        }
        let mut field = |name: &str| {
            let token = fields.next().unwrap_or_default();
            let value = token
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('='));
            value
                .map(|value| (token, value))
                .ok_or_else(|| error(token, &format!("should be `{name}=...`")))
        };
        let count = |(token, value): (&str, &str)| {
            value
                .parse()
                .map_err(|_| error(token, "has no number that can be counted to"))
        };
        let ranks = count(field("ranks")?)?;
        let chunks = count(field("chunks")?)?;
        let (token, placement) = field("placement")?;
        let placement = placement
            .parse()
            .map_err(|_| error(token, "is not a placement: use loop or v"))?;
        let microbatches = count(field("microbatches")?)?;
        if let Some(token) = fields.next() {
            return Err(error(token, "follows the last field of the header"));
        }
        let order = lines
            .enumerate()
            .map(|(rank, text)| read_line(text, line(rank)))
            .collect::<Result<_, _>>()?;
        let schedule = Self {
            ranks,
            chunks,
            placement,
            microbatches,
            order,
        };
        schedule.validate(Limits::default(), |_| Bytes::default())?;
        Ok(schedule)
    }
}
