//! Membership: the processes of the program, as this one knows them.
//!
//! ```text
//! Silent --hello--> Here --bye--> Gone
//!    |               |             |
//!    +---------------+----ended----+--> (after a grace) Lost
//! ```
//!
//! Plain data: what happens and the time come in.

use super::peer::Peer;
use crate::StartError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The version of burn-dist in this process; all processes are of one.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long messages of a process that has ended may still arrive.
const GRACE: Duration = Duration::from_millis(200);

/// The state of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// It has not introduced itself.
    Silent,
    Here,
    /// It has taken its leave: its program ends, it needs nothing any more, and only asks.
    Gone,
    /// It has ended without waiting for the others.
    Lost,
}

/// How the end of a process was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The system of this machine says so.
    Process,
    /// Its connection has ended, in these words of the system: it has ended, or a link to it.
    Connection(Arc<str>),
}

impl End {
    /// Returns the words of the system about the connection.
    pub(crate) fn of_connection(&self) -> Option<Arc<str>> {
        match self {
            Self::Process => None,
            Self::Connection(how) => Some(Arc::clone(how)),
        }
    }
}

/// All processes, once they have introduced themselves, or why the program cannot run.
#[derive(Clone, Debug)]
pub(super) enum Introduced {
    /// These have not.
    Waiting(Vec<u32>),
    All(Arc<[Arc<Peer>]>),
    Failed(StartError),
}

impl Default for Introduced {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

/// The processes of the program.
pub(super) struct Membership {
    process: u32,
    presence: Vec<Presence>,
    peers: Vec<Option<Arc<Peer>>>,
    /// Why the program cannot run.
    refused: Option<StartError>,
    /// Processes that have ended, since when, and how that was seen.
    ended: Vec<(u32, Instant, End)>,
    /// Processes that are lost.
    lost: Vec<(u32, End)>,
}

impl Membership {
    pub(super) fn new(process: u32, num_processes: usize) -> Self {
        Self {
            process,
            presence: vec![Presence::Silent; num_processes],
            peers: vec![None; num_processes],
            refused: None,
            ended: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// A process introduces itself: its first message.
    pub(super) fn hello(&mut self, process: u32, peer: Peer, version: &str) {
        let Some(presence @ Presence::Silent) = self.presence.get_mut(process as usize) else {
            return;
        };
        if version != VERSION {
            return self.refuse(StartError::config(format!(
                "process {process} ({peer}) runs burn-dist {version}, this one {VERSION}: build and start the same \
                 program everywhere"
            )));
        }
        *presence = Presence::Here;
        self.peers[process as usize] = Some(Arc::new(peer));
    }

    /// The program of a process ends.
    pub(super) fn bye(&mut self, process: u32) {
        if let Some(presence @ (Presence::Silent | Presence::Here)) =
            self.presence.get_mut(process as usize)
        {
            *presence = Presence::Gone;
        }
    }

    /// A process has ended, as one sees it; what it has sent may still arrive.
    pub(super) fn ended(&mut self, process: u32, now: Instant, end: End) {
        let is_lost = self.presence.get(process as usize) == Some(&Presence::Lost);
        match self.ended.iter_mut().find(|(ended, ..)| *ended == process) {
            // The more exact of both.
            Some((_, _, seen)) if end == End::Process => *seen = end,
            None if !is_lost => self.ended.push((process, now, end)),
            Some(_) | None => {}
        }
    }

    /// Returns a process that has ended some time ago, once: what waits for it waits in vain.
    pub(super) fn lose(&mut self, now: Instant) -> Option<(u32, End)> {
        let is_over = |(_, since, _): &(u32, Instant, End)| now.duration_since(*since) >= GRACE;
        let at = self.ended.iter().position(is_over)?;
        let (process, _, end) = self.ended.swap_remove(at);
        *self.presence.get_mut(process as usize)? = Presence::Lost;
        self.lost.push((process, end.clone()));
        Some((process, end))
    }

    /// The program cannot run, unless all processes have met already.
    pub(super) fn refuse(&mut self, error: StartError) {
        self.refused.get_or_insert(error);
    }

    /// Returns who has introduced themselves.
    pub(super) fn introduced(&self) -> Introduced {
        let all: Option<Vec<_>> = self.peers.iter().cloned().collect();
        match (all, &self.refused) {
            (Some(all), _) => Introduced::All(all.into()),
            (None, Some(error)) => Introduced::Failed(error.clone()),
            (None, None) => {
                let silent = (0..).zip(&self.peers).filter(|(_, peer)| peer.is_none());
                Introduced::Waiting(silent.map(|(process, _)| process).collect())
            }
        }
    }

    /// Returns whether a process takes messages, as far as is known.
    pub(super) fn takes_messages(&self, process: u32) -> bool {
        let presence = self.presence.get(process as usize);
        matches!(presence, Some(Presence::Silent | Presence::Here))
    }

    /// The other processes that are still there.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> {
        let all = 0..self.presence.len() as u32;
        all.filter(|process| *process != self.process && self.takes_messages(*process))
    }

    /// Returns a process, as people find it.
    pub(super) fn named(&self, process: u32) -> String {
        match self.peers.get(process as usize) {
            Some(Some(peer)) => format!("process {process} ({peer})"),
            _ => format!("process {process}"),
        }
    }

    /// The processes that have ended without waiting for the others, and how that was seen.
    pub(super) fn lost(&self) -> &[(u32, End)] {
        &self.lost
    }

    /// Returns whether a process has ended that may still be lost.
    pub(super) fn is_waiting(&self) -> bool {
        !self.ended.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(membership: &mut Membership, process: u32, version: &str) {
        let peer = Peer {
            host: "node7".into(),
            pid: 10 + process,
        };
        membership.hello(process, peer, version);
    }

    #[test]
    fn all_are_known_once_all_have_spoken() {
        let mut membership = Membership::new(0, 2);
        hello(&mut membership, 1, VERSION);
        let introduced = membership.introduced();
        assert!(matches!(introduced, Introduced::Waiting(silent) if silent == [0]));
        hello(&mut membership, 0, VERSION);
        // What happens later changes nothing.
        hello(&mut membership, 1, "0.0.7");
        membership.refuse(StartError::temporary("cut off"));
        let Introduced::All(all) = membership.introduced() else {
            panic!("all have spoken");
        };
        assert_eq!(all[1].to_string(), "host node7, pid 11");
    }

    #[test]
    fn another_version_is_named() {
        let mut membership = Membership::new(0, 2);
        hello(&mut membership, 1, "0.0.7");
        let Introduced::Failed(error) = membership.introduced() else {
            panic!("another version");
        };
        assert_eq!(error.exit_code(), 78);
        let text = error.to_string();
        for part in ["process 1", "node7", "0.0.7", VERSION] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn strangers_are_nobody() {
        let mut membership = Membership::new(0, 2);
        let now = Instant::now();
        hello(&mut membership, 2, VERSION);
        membership.bye(2);
        membership.ended(2, now, End::Process);
        assert_eq!(membership.lose(now + GRACE), None);
        assert_eq!(membership.others().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn an_end_is_seen_once_and_as_exactly_as_it_can_be() {
        let mut membership = Membership::new(0, 2);
        let now = Instant::now();
        hello(&mut membership, 1, VERSION);
        membership.ended(1, now, End::Connection("reset".into()));
        membership.ended(1, now + GRACE, End::Process);
        membership.ended(1, now + GRACE, End::Connection("closed".into()));
        assert_eq!(membership.lose(now + GRACE), Some((1, End::Process)));
        membership.ended(1, now + GRACE, End::Process);
        assert!(!membership.is_waiting());
    }

    #[derive(Clone, Copy)]
    enum Event {
        Hello(u32),
        Bye(u32),
        Ended(u32),
    }

    /// Calls `check` with every order of `events` in which those of one process keep theirs.
    fn interleave(
        events: &mut [Vec<Event>],
        order: &mut Vec<Event>,
        check: &mut impl FnMut(&[Event]),
    ) {
        if events.iter().all(Vec::is_empty) {
            return check(order);
        }
        for of in 0..events.len() {
            if events[of].is_empty() {
                continue;
            }
            let event = events[of].remove(0);
            order.push(event);
            interleave(events, order, check);
            order.pop();
            events[of].insert(0, event);
        }
    }

    #[test]
    fn in_every_order_everyone_is_introduced_and_lost_once() {
        // Process 1 says goodbye and process 2 does not; the system tells of the end of both.
        let of_one = vec![Event::Hello(1), Event::Bye(1), Event::Ended(1)];
        let of_two = vec![Event::Hello(2), Event::Ended(2)];
        let mut num_orders = 0;
        let mut events = [vec![Event::Hello(0)], of_one, of_two];
        interleave(&mut events, &mut Vec::new(), &mut |order| {
            num_orders += 1;
            let start = Instant::now();
            let mut membership = Membership::new(0, 3);
            for event in order {
                match *event {
                    Event::Hello(process) => hello(&mut membership, process, VERSION),
                    Event::Bye(process) => membership.bye(process),
                    Event::Ended(process) => membership.ended(process, start, End::Process),
                }
                // Within the grace, nobody is lost.
                assert_eq!(membership.lose(start), None);
            }
            assert!(matches!(membership.introduced(), Introduced::All(_)));
            assert!(membership.lost().is_empty() && membership.is_waiting());
            assert!(!membership.takes_messages(1) && membership.takes_messages(2));
            let lost = (0..3).filter_map(|_| membership.lose(start + GRACE));
            let mut lost: Vec<u32> = lost.map(|(process, _)| process).collect();
            lost.sort_unstable();
            assert_eq!(lost, [1, 2]);
            assert!(membership.lost().len() == 2 && !membership.is_waiting());
            assert_eq!(membership.others().count(), 0);
        });
        assert_eq!(num_orders, 60);
    }
}
