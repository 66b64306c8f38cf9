//! A diagnosis in words.

use super::diagnosis::{Cause, Diagnosis};
use super::evidence::{RankState, Whereabouts};
use burn_dist_comm::flight::CallRecord;
use std::fmt::{self, Formatter};
use std::time::Duration;

/// Ranks of which a report speaks one by one.
const SHOWN_MAX: usize = 64;

/// `rank 3 (process 1, host b, pid 12)`.
fn who(diagnosis: &Diagnosis, rank: u32) -> String {
    match diagnosis.rank(rank) {
        Some(whereabouts) => format!("rank {rank} ({})", process(diagnosis, whereabouts.process)),
        None => format!("rank {rank}"),
    }
}

/// `process 1, host b, pid 12`.
fn process(diagnosis: &Diagnosis, process: u32) -> String {
    match diagnosis.processes.get(process as usize) {
        Some(peer) => format!("process {process}, host {}, pid {}", peer.host, peer.pid),
        None => format!("process {process}"),
    }
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<String> = items.into_iter().collect();
    match items.split_last() {
        None => "nobody".into(),
        Some((one, [])) => one.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

fn time(us: u64) -> String {
    let time = Duration::from_micros(us);
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// Time of the day, UTC.
fn clock(us: u64) -> String {
    let of_day = us / 1_000_000 % 86_400;
    let (hours, minutes, seconds) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02} UTC")
}

/// `Some`, in words, or that there was none.
fn call(call: &Option<CallRecord>, none: &str) -> String {
    call.as_ref()
        .map_or_else(|| none.into(), ToString::to_string)
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (all, absent) = (self.processes.len(), self.absent.len());
        writeln!(
            f,
            "Mesh `{}`, {} ranks in {all} processes; records of {} of them.",
            self.mesh,
            self.ranks.len(),
            all - absent
        )?;
        writeln!(f, "\nWhat happened")?;
        self.cause(f)?;
        for (other, text) in &self.others {
            writeln!(f, "  Process {other} says: {text}")?;
        }
        if absent > 0 {
            let absent = self
                .absent
                .iter()
                .take(SHOWN_MAX)
                .map(|other| process(self, *other));
            writeln!(f, "  No record of {}.", list(absent))?;
        }
        writeln!(f, "\nWho was where")?;
        for rank in self.ranks.iter().take(SHOWN_MAX) {
            self.whereabouts(f, rank)?;
        }
        if self.ranks.len() > SHOWN_MAX {
            writeln!(f, "  ... and {} more ranks", self.ranks.len() - SHOWN_MAX)?;
        }
        for straggler in &self.stragglers {
            writeln!(
                f,
                "  Straggler: {} starts its calls {} after the first of its group, on average over {} calls.",
                who(self, straggler.rank),
                time(straggler.late_us),
                straggler.num_calls
            )?;
        }
        for late in &self.late_hosts {
            writeln!(
                f,
                "  All ranks of host {} start their calls {} later than those of others, over {} calls: it is slow, or \
                 its clock is ahead.",
                late.host,
                time(late.late_us),
                late.num_calls
            )?;
        }
        writeln!(f, "\nWhat to do")?;
        self.advice(f)
    }
}

impl Diagnosis {
    fn cause(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let at = clock(self.stopped_us);
        let witness = process(self, self.witness);
        match &self.cause {
            Cause::Failed { rank: Some(rank) } => writeln!(
                f,
                "  {at}: {} failed, which stopped all others.",
                capital(&who(self, *rank))
            )?,
            Cause::Failed { rank: None } => writeln!(
                f,
                "  {at}: {} failed, which stopped all others.",
                capital(&witness)
            )?,
            Cause::Program => writeln!(
                f,
                "  {at}: {} asked for something that cannot be.",
                capital(&witness)
            )?,
            Cause::Mismatch {
                first,
                second,
                second_text,
            } => {
                writeln!(
                    f,
                    "  {at}: two ranks made different calls at the same place of their sequences."
                )?;
                match second {
                    Some(second) => {
                        let rows = [
                            ("", who(self, first.rank), who(self, second.rank)),
                            ("place", place(first), place(second)),
                            ("call", first.what.clone(), second.what.clone()),
                            ("module", or_none(&first.module), or_none(&second.module)),
                        ];
                        let width = rows
                            .iter()
                            .map(|(_, left, _)| left.chars().count())
                            .max()
                            .unwrap_or(0);
                        for (name, left, right) in rows {
                            writeln!(f, "    {name:<6}  {left:<width$}  {right}")?;
                        }
                    }
                    None => {
                        writeln!(f, "    rank {} called {first}", first.rank)?;
                        writeln!(f, "    {second_text}")?;
                    }
                }
            }
            Cause::ProgramsDiffer => {
                writeln!(f, "  {at}: the processes do not run the same program.")?
            }
            Cause::Missing {
                call,
                window,
                ranks,
                circle,
            } => {
                match (call, window) {
                    (Some(call), _) => {
                        writeln!(f, "  {at}: rank {} waited in vain in {call}.", call.rank)?
                    }
                    (None, Some(window)) => writeln!(
                        f,
                        "  {at}: {} waited in vain for window {window}.",
                        capital(&witness)
                    )?,
                    (None, None) => writeln!(f, "  {at}: {} waited in vain.", capital(&witness))?,
                }
                for rank in ranks.iter().take(SHOWN_MAX) {
                    self.missing(f, *rank)?;
                }
                if let Some(circle) = circle {
                    let waits = circle
                        .iter()
                        .map(|call| format!("rank {} waits in {call}", call.rank));
                    writeln!(f, "  They wait for each other: {}.", list(waits))?;
                }
            }
            Cause::Undelivered { call, ranks } => {
                writeln!(f, "  {at}: rank {} waited in vain in {call}.", call.rank)?;
                let they = ranks.iter().take(SHOWN_MAX).map(|rank| who(self, *rank));
                writeln!(
                    f,
                    "  {} had made that call: what was sent has not arrived.",
                    capital(&list(they))
                )?;
            }
            Cause::Lost { process: lost } => {
                writeln!(
                    f,
                    "  {at}: {} ended without a word: it was killed, or crashed.",
                    capital(&process(self, *lost))
                )?;
                for rank in self.ranks.iter().filter(|rank| rank.process == *lost) {
                    self.missing(f, rank.rank)?;
                }
            }
            Cause::Left {
                rank,
                process: left,
            } => {
                let who = rank
                    .map(|rank| who(self, rank))
                    .or(left.map(|left| process(self, left)));
                writeln!(
                    f,
                    "  {at}: {} left while others waited for it.",
                    capital(&who.unwrap_or("a rank".into()))
                )?;
            }
            Cause::Connection => writeln!(
                f,
                "  {at}: messages between processes failed, as {witness} saw it."
            )?,
            Cause::Relayed { by } => {
                let by = by.map_or("another process".into(), |by| process(self, by));
                writeln!(
                    f,
                    "  {at}: {} was stopped by {by}, whose record is not here.",
                    capital(&witness)
                )?;
            }
            Cause::Other => writeln!(f, "  {at}: {} stopped.", capital(&witness))?,
        }
        writeln!(f, "  In its words: {}", self.text)
    }

    fn missing(&self, f: &mut Formatter<'_>, rank: u32) -> fmt::Result {
        let name = capital(&who(self, rank));
        let Some(whereabouts) = self.rank(rank) else {
            return writeln!(f, "  {name} had not made it.");
        };
        let since = time(whereabouts.since_us);
        match &whereabouts.state {
            RankState::NoRecord(last) => writeln!(
                f,
                "  {name} wrote no record: it was killed, hangs, or is cut off; its peers last saw it at {}.",
                call(last, "no call")
            ),
            RankState::Waiting(other) => {
                writeln!(f, "  {name} was in another call: {other}, for {since}.")
            }
            RankState::Failed(_) => writeln!(f, "  {name} had failed."),
            RankState::Elsewhere(last) => writeln!(
                f,
                "  {name} was alive and in no call for {since}: computing, or waiting for its program; its last one \
                 was {}.",
                call(last, "none")
            ),
        }
    }

    fn whereabouts(&self, f: &mut Formatter<'_>, rank: &Whereabouts) -> fmt::Result {
        write!(f, "  {}: ", who(self, rank.rank))?;
        let since = time(rank.since_us);
        match &rank.state {
            RankState::NoRecord(last) => {
                write!(f, "no record; last seen at {}", call(last, "no call"))?
            }
            RankState::Failed(last) => {
                write!(f, "failed; its last call was {}", call(last, "none"))?
            }
            RankState::Waiting(call) => {
                write!(f, "waited for {since} in {call}")?;
                if !call.awaited.is_empty() {
                    write!(f, ", for ranks {:?}", call.awaited)?;
                }
            }
            RankState::Elsewhere(last) => write!(
                f,
                "in no call for {since}; its last one was {}",
                call(last, "none")
            )?,
        }
        if let Some(num_calls) = rank.num_calls {
            write!(f, " ({num_calls} calls")?;
            if let Some(window) = rank.window {
                write!(f, ", window {window}")?;
            }
            write!(f, ")")?;
        }
        writeln!(f)
    }

    fn advice(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let again = "A restart would end the same way.";
        match &self.cause {
            Cause::Failed { .. } => writeln!(
                f,
                "  Look at the operation and module above: it failed on that rank's own part. {again}"
            ),
            Cause::Program => writeln!(f, "  The text above says what would be right. {again}"),
            Cause::Mismatch { .. } => writeln!(
                f,
                "  Look for a branch that ranks take differently (on a rank, a process, a clock, data of another \
                 shape) before that place. {again}"
            ),
            Cause::ProgramsDiffer => writeln!(
                f,
                "  All processes have to record the same operations, on the same data: look for a branch on the \
                 process number, a clock, unseeded random numbers, or files that differ. {again}"
            ),
            Cause::Lost { process: lost } => {
                let host = self
                    .processes
                    .get(*lost as usize)
                    .map_or("its host", |peer| &peer.host);
                writeln!(
                    f,
                    "  Ask {host} why: its kernel log (out of memory?), its scheduler, the process's own output. A \
                     restart may help."
                )
            }
            Cause::Left { .. } => writeln!(
                f,
                "  Its program ended, or dropped the mesh: look at the first panic or error in that process's own \
                 output. A restart helps only if that came from outside."
            ),
            Cause::Undelivered { .. } | Cause::Connection => writeln!(
                f,
                "  Look at the network between the hosts, and at whether another process has ended. A restart may help."
            ),
            Cause::Missing {
                circle: Some(_), ..
            } => writeln!(
                f,
                "  Ranks have to make their calls in one order: look for a branch that ranks take differently. {again}"
            ),
            Cause::Missing { ranks, .. } if ranks.iter().any(|rank| self.has_no_record(*rank)) => {
                writeln!(
                    f,
                    "  Look whether those processes still run (`ps -o pid,stat,wchan:20 -p PID`: T is stopped, D waits \
                     for a device), and end them; then restart. If they only started late or were busy, raise \
                     `DeviceMeshBuilder::timeout`."
                )
            }
            Cause::Missing { .. } => writeln!(
                f,
                "  They were slow, not gone: raise `DeviceMeshBuilder::timeout`, or look at what those ranks or their \
                 programs did meanwhile (loading data, saving, a shared core)."
            ),
            Cause::Relayed { .. } => writeln!(f, "  Give the record of that process too."),
            Cause::Other => writeln!(f, "  The text above is all that is known."),
        }
    }
}

/// `call 17 on group [0, 1] lane 0`.
fn place(call: &CallRecord) -> String {
    format!(
        "call {} on group {:?} lane {}",
        call.sequence, call.group, call.lane
    )
}

fn or_none(text: &str) -> String {
    match text.is_empty() {
        true => "(none)".into(),
        false => text.into(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}
