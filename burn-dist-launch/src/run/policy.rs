//! The launcher's answers to what happens to the processes of one start. Nothing here waits, and the time is what
//! the caller says.
//!
//! | what happens | what is done |
//! | --- | --- |
//! | a process fails | after `linger` SIGTERM for the others, after `grace` SIGKILL; those that stand still have nothing to say, and nobody lingers for them |
//! | one stands still, and all others have ended well | after [`STANDS_MAX`] it has failed |
//! | a signal asks for the end | it is passed on; nobody is killed, however long they take |
//! | the same at least [`INTERRUPT_GAP`] later | SIGKILL |
//! | a third time | the launcher leaves |
//! | something fails on another machine | as if it were here |
//! | `mpirun` ends under running programs | their supervisors end them |
//! | a supervisor comes after any of these | its program is not started |

use super::outcome::Outcome;
use super::supervisor::End;
use nix::libc::{SIGKILL, SIGTERM};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Signals that come closer together are one: `timeout` sends its twice.
const INTERRUPT_GAP: Duration = Duration::from_secs(1);

/// How long a process may stand still that has been stopped, and for which nobody but the launcher waits.
const STANDS_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its supervisor has not come.
    Awaited,
    Running,
    /// It runs, and stands still: this signal has stopped it.
    Stopped(i32),
    /// It has ended, or will not be started.
    Over,
}

/// A signal that asked for the end before anything had failed.
struct Asked {
    signal: i32,
    all_were_there: bool,
}

/// The answer to a signal that asks for the end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Nothing: it belongs to the one before.
    Ignore,
    /// Send this one to all that run.
    Send(i32),
    /// Leave, whatever still runs.
    Leave,
}

/// The state of the processes of this machine, by their local ranks.
pub(super) struct Policy {
    linger: Duration,
    grace: Duration,
    states: Vec<State>,
    /// The processes that failed, first to last, but for those that may have been ended by the launcher.
    failures: Vec<(usize, End)>,
    asked: Option<Asked>,
    num_interrupts: u32,
    interrupted_at: Option<Instant>,
    /// True if something had failed on another machine before anything did here.
    is_elsewhere: bool,
    /// True if the launcher has asked processes to end after a failure.
    has_signalled: bool,
    /// When the next signal is due for those that still run, and which.
    due: Option<(Instant, i32)>,
    /// When those that stand still have failed, if all others have ended.
    stand_until: Option<Instant>,
}

impl Policy {
    pub(super) fn new(num_processes: usize, linger: Duration, grace: Duration) -> Self {
        Self {
            linger,
            grace,
            states: vec![State::Awaited; num_processes],
            failures: Vec::new(),
            asked: None,
            num_interrupts: 0,
            interrupted_at: None,
            is_elsewhere: false,
            has_signalled: false,
            due: None,
            stand_until: None,
        }
    }

    /// Notes that the supervisor of a process has come; returns whether to start its program.
    pub(super) fn connected(&mut self, local: usize) -> bool {
        if self.states[local] != State::Awaited {
            return false;
        }
        let may_start = !self.is_stopping();
        self.states[local] = match may_start {
            true => State::Running,
            false => State::Over,
        };
        may_start
    }

    /// Notes how a process has ended; only the first word counts.
    pub(super) fn ended(&mut self, local: usize, end: End, now: Instant) {
        if !self.is_running(local) {
            return;
        }
        self.states[local] = State::Over;
        let is_failure = !end.is_good() && (!self.has_signalled || self.asked.is_some());
        if is_failure {
            self.failures.push((local, end));
            // Who was asked to end by a person may take the time it needs.
            if self.num_interrupts == 0 {
                self.due.get_or_insert((now + self.linger, SIGTERM));
            }
        }
        self.hurry(now);
    }

    /// Notes that a process stands still, by a signal, or goes on.
    pub(super) fn stands(&mut self, local: usize, by: Option<i32>, now: Instant) {
        if self.is_running(local) {
            self.states[local] = by.map_or(State::Running, State::Stopped);
            self.hurry(now);
        }
    }

    /// If only those are left that stand still: lingers no longer after a failure; else, if others have ended, gives
    /// them some time.
    fn hurry(&mut self, now: Instant) {
        let is_stopped = |state: &State| matches!(state, State::Stopped(_));
        let mut states = self.states.iter();
        let is_vain = states.all(|state| is_stopped(state) || *state == State::Over)
            && self.states.iter().any(is_stopped);
        if let (true, Some((at, SIGTERM))) = (is_vain, &mut self.due) {
            *at = now.min(*at);
        }
        let waits = is_vain && self.states.contains(&State::Over) && !self.is_stopping();
        self.stand_until = match waits && self.due.is_none() {
            true => self.stand_until.or(Some(now + STANDS_MAX)),
            false => None,
        };
    }

    /// Notes that those have failed that have stood still for too long.
    fn look_at_those_that_stand(&mut self, now: Instant) {
        if self.stand_until.take_if(|until| now >= *until).is_none() {
            return;
        }
        for (local, state) in self.states.iter().enumerate() {
            if let State::Stopped(signal) = state {
                self.failures.push((local, End::Stopped(*signal)));
            }
        }
        self.due = Some((now, SIGTERM));
    }

    /// Notes that the processes of other machines cannot go on.
    pub(super) fn elsewhere(&mut self, now: Instant) {
        if self.failures.is_empty() && self.num_interrupts == 0 {
            self.is_elsewhere = true;
            self.due.get_or_insert((now + self.linger, SIGTERM));
            self.hurry(now);
        }
    }

    /// Returns true if it began on another machine.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Returns the process that failed first, if that was not because of another machine.
    pub(super) fn first_failure(&self) -> Option<&(usize, End)> {
        self.failures.first().filter(|_| !self.is_elsewhere)
    }

    /// Notes that what has started these processes is gone; returns those to end at once, since nothing watches over
    /// their supervisors any more.
    pub(super) fn starter_ended(
        &mut self,
        locals: Range<usize>,
        end: &End,
        now: Instant,
    ) -> Vec<usize> {
        let mut to_end = Vec::new();
        for local in locals {
            match self.states[local] {
                State::Awaited => self.states[local] = State::Over,
                State::Running | State::Stopped(_) => {
                    self.ended(local, end.clone(), now);
                    to_end.push(local);
                }
                State::Over => {}
            }
        }
        to_end
    }

    /// Notes a signal that asks for the end.
    pub(super) fn interrupt(&mut self, signal: i32, now: Instant) -> Interrupt {
        if let Some(before) = self.interrupted_at
            && now < before + INTERRUPT_GAP
        {
            return Interrupt::Ignore;
        }
        self.interrupted_at = Some(now);
        self.num_interrupts += 1;
        // It goes on with the signal.
        self.stand_until = None;
        match self.num_interrupts {
            1 => {
                if self.failures.is_empty() {
                    self.asked = Some(Asked {
                        signal,
                        all_were_there: !self.states.contains(&State::Awaited),
                    });
                } else {
                    self.has_signalled = true;
                }
                Interrupt::Send(signal)
            }
            2 if !self.is_over() => {
                self.has_signalled = true;
                Interrupt::Send(SIGKILL)
            }
            _ => Interrupt::Leave,
        }
    }

    /// Returns the signal that is due for all that run.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<i32> {
        self.look_at_those_that_stand(now);
        let (_, signal) = self.due.take_if(|(at, _)| now >= *at)?;
        self.has_signalled = true;
        self.due = (signal == SIGTERM).then(|| (now + self.grace, SIGKILL));
        Some(signal)
    }

    /// Returns when the next signal is due.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.due.map(|(at, _)| at).or(self.stand_until)
    }

    pub(super) fn is_running(&self, local: usize) -> bool {
        matches!(self.states[local], State::Running | State::Stopped(_))
    }

    pub(super) fn num_awaited(&self) -> usize {
        let awaited = self.states.iter().filter(|state| **state == State::Awaited);
        awaited.count()
    }

    /// Returns true if all is well, but some of these processes are not there yet.
    pub(super) fn awaits(&self, locals: Range<usize>) -> bool {
        self.failures.is_empty()
            && !self.is_elsewhere
            && !self.is_stopping()
            && self.states[locals].contains(&State::Awaited)
    }

    /// Returns true if nothing runs, and nothing will.
    pub(super) fn is_over(&self) -> bool {
        self.states.iter().all(|state| match state {
            State::Awaited => self.is_stopping(),
            State::Running | State::Stopped(_) => false,
            State::Over => true,
        })
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.num_interrupts > 0
    }

    fn is_stopping(&self) -> bool {
        self.asked.is_some() || self.has_signalled
    }

    /// Returns how it went, and which process it was.
    pub(super) fn outcome(&self) -> Outcome<(usize, End)> {
        let first = self.failures.first();
        let Some(Asked {
            signal,
            all_were_there,
        }) = self.asked
        else {
            let cause = self.failures.iter().find(|(_, end)| end.is_cause());
            return cause
                .or(first)
                .map_or(Outcome::Good, |cause| Outcome::Failed(cause.clone()));
        };
        let code = match first {
            Some((_, end)) if all_were_there => end.exit_code(),
            None if all_were_there && self.is_over() => 0,
            _ => End::Signalled(signal).exit_code(),
        };
        let obeyed = [
            End::Signalled(signal),
            End::Signalled(SIGKILL),
            End::Exited(128 + signal),
        ];
        let after = self.failures.iter().find(|(_, end)| !obeyed.contains(end));
        Outcome::Stopped {
            signal,
            code,
            after: after.cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc::{SIGABRT, SIGINT, SIGSEGV, SIGSTOP};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    enum Step {
        /// The supervisor of a process comes.
        Supervisor(usize),
        Ends(usize, End),
        /// Somebody stops a process.
        Stops(usize),
        GoesOn(usize),
        Signal(i32),
        /// `mpirun` is killed.
        MpirunKilled,
        /// Something fails on another machine.
        Elsewhere,
        /// Nothing but time passes.
        Nothing,
    }
    use Step::{Elsewhere, Ends, GoesOn, MpirunKilled, Nothing, Signal, Stops, Supervisor};

    fn mpirun_gone() -> End {
        End::MpirunGone(ExitStatus::from_raw(SIGKILL))
    }

    /// Plays steps, each at its millisecond, with 3 s of linger and 5 s of grace; returns what is done, and how it
    /// went.
    fn play(num_processes: usize, steps: Vec<(u64, Step)>) -> (String, Policy) {
        let start = Instant::now();
        let (linger, grace) = (Duration::from_secs(3), Duration::from_secs(5));
        let mut policy = Policy::new(num_processes, linger, grace);
        let mut done: Vec<String> = Vec::new();
        for (millis, step) in steps {
            let now = start + Duration::from_millis(millis);
            done.extend(policy.take_due(now).map(|signal| format!("send {signal}")));
            match step {
                Supervisor(local) => {
                    let verb = match policy.connected(local) {
                        true => "start",
                        false => "turn away",
                    };
                    done.push(format!("{verb} {local}"));
                }
                Ends(local, end) => policy.ended(local, end, now),
                Stops(local) => policy.stands(local, Some(SIGSTOP), now),
                GoesOn(local) => policy.stands(local, None, now),
                Signal(signal) => match policy.interrupt(signal, now) {
                    Interrupt::Ignore => {}
                    Interrupt::Send(signal) => done.push(format!("send {signal}")),
                    Interrupt::Leave => done.push("leave".into()),
                },
                MpirunKilled => {
                    let to_end = policy.starter_ended(0..num_processes, &mpirun_gone(), now);
                    done.extend(to_end.into_iter().map(|local| format!("end {local}")));
                }
                Elsewhere => policy.elsewhere(now),
                Nothing => {}
            }
        }
        (done.join(", "), policy)
    }

    /// Two processes that run, and what happens then.
    fn two(steps: Vec<(u64, Step)>) -> (String, Policy) {
        let mut all = vec![(0, Supervisor(0)), (0, Supervisor(1))];
        all.extend(steps);
        let (done, policy) = play(2, all);
        let done = done.strip_prefix("start 0, start 1").expect("both start");
        (done.trim_start_matches(", ").into(), policy)
    }

    fn stopped(code: u8, after: Option<(usize, End)>) -> Outcome<(usize, End)> {
        Outcome::Stopped {
            signal: SIGINT,
            code,
            after,
        }
    }

    #[test]
    fn those_that_do_not_end_after_a_failure_are_ended() {
        let (done, policy) = two(vec![
            (1000, Ends(1, End::Exited(7))),
            (3999, Nothing),
            (4000, Nothing),
            (8999, Nothing),
            (9000, Nothing),
            (9100, Ends(0, End::Signalled(SIGKILL))),
            (60_000, Nothing),
        ]);
        assert_eq!(done, "send 15, send 9");
        assert!(policy.is_over());
        assert_eq!(policy.outcome(), Outcome::Failed((1, End::Exited(7))));
    }

    #[test]
    fn nobody_lingers_for_who_stands_still() {
        let (done, policy) = two(vec![
            (0, Stops(0)),
            (1000, Ends(1, End::Exited(75))),
            (1001, Nothing),
            (1002, GoesOn(0)),
            (6000, Nothing),
            (6001, Nothing),
            (6100, Ends(0, End::Signalled(SIGKILL))),
        ]);
        assert_eq!(done, "send 15, send 9");
        assert!(policy.is_over());
        assert_eq!(policy.outcome(), Outcome::Failed((1, End::Exited(75))));

        // It is stopped while it lingers; before a failure, that means nothing; and one that goes on may speak.
        let (done, _) = two(vec![
            (0, Ends(1, End::Exited(75))),
            (1, Stops(0)),
            (2, Nothing),
        ]);
        assert_eq!(done, "send 15");
        let (done, _) = two(vec![(0, Stops(0)), (1, Stops(1)), (60_000, Nothing)]);
        assert_eq!(done, "");
        let steps = vec![
            (0, Stops(0)),
            (1, GoesOn(0)),
            (2, Ends(1, End::Exited(75))),
            (2999, Nothing),
        ];
        assert_eq!(two(steps).0, "");
    }

    #[test]
    fn who_stands_still_when_all_others_have_ended_has_failed() {
        let ended = || vec![(0, Stops(0)), (1000, Ends(1, End::Exited(0)))];
        let mut steps = ended();
        steps.extend([
            (30_999, Nothing),
            (31_000, Nothing),
            (31_100, Ends(0, End::Exited(0))),
        ]);
        let (done, policy) = two(steps);
        assert_eq!(done, "send 15");
        assert_eq!(
            policy.outcome(),
            Outcome::Failed((0, End::Stopped(SIGSTOP)))
        );

        // It goes on in time, or a person asks for the end.
        let mut steps = ended();
        steps.extend([
            (20_000, GoesOn(0)),
            (60_000, Nothing),
            (60_001, Ends(0, End::Exited(0))),
        ]);
        let (done, policy) = two(steps);
        assert_eq!((done.as_str(), policy.outcome()), ("", Outcome::Good));
        let mut steps = ended();
        steps.extend([(20_000, Signal(SIGINT)), (90_000, Nothing)]);
        assert_eq!(two(steps).0, "send 2");
    }

    #[test]
    fn what_fails_elsewhere_ends_these_too() {
        let (done, policy) = two(vec![
            (1000, Elsewhere),
            (1100, Ends(1, End::Exited(75))),
            (4000, Nothing),
            (9000, Nothing),
            (9100, Ends(0, End::Signalled(SIGKILL))),
        ]);
        assert_eq!(done, "send 15, send 9");
        assert!(policy.is_over() && policy.is_elsewhere());
        assert_eq!(policy.first_failure(), None);

        // Nobody lingers for those that stand still.
        let steps = vec![(0, Stops(0)), (0, Stops(1)), (10, Elsewhere), (11, Nothing)];
        assert_eq!(two(steps).0, "send 15");

        // What had failed here before is what others hear of.
        let (_, policy) = two(vec![(0, Ends(1, End::Exited(7))), (10, Elsewhere)]);
        assert!(!policy.is_elsewhere());
        assert_eq!(policy.first_failure(), Some(&(1, End::Exited(7))));
    }

    #[test]
    fn mpirun_may_not_go_before_its_processes() {
        let (done, policy) = two(vec![(0, MpirunKilled)]);
        assert_eq!(done, "end 0, end 1");
        assert!(policy.is_over());
        assert_eq!(policy.outcome(), Outcome::Failed((0, mpirun_gone())));
        assert_eq!(mpirun_gone().exit_code(), 125);

        // The program heard of it first.
        let (done, policy) = two(vec![(0, Ends(1, End::Exited(1))), (10, MpirunKilled)]);
        assert_eq!(done, "end 0");
        assert_eq!(policy.outcome(), Outcome::Failed((0, mpirun_gone())));

        // Its end may be of our making.
        let (_, policy) = two(vec![
            (0, Ends(1, End::Exited(7))),
            (3000, Nothing),
            (3001, MpirunKilled),
        ]);
        assert_eq!(policy.outcome(), Outcome::Failed((1, End::Exited(7))));

        // Its end comes late: theirs is known.
        let (done, policy) = two(vec![
            (0, Ends(0, End::Exited(0))),
            (0, Ends(1, End::Exited(0))),
            (1, MpirunKilled),
        ]);
        assert_eq!((done.as_str(), policy.outcome()), ("", Outcome::Good));
    }

    #[test]
    fn after_an_interrupt_nobody_is_hurried() {
        let (done, policy) = two(vec![
            (0, Signal(SIGINT)),
            (10, Ends(1, End::Exited(3))),
            (3_600_000, Nothing),
            (3_600_001, Ends(0, End::Exited(0))),
        ]);
        assert_eq!(done, "send 2");
        assert!(policy.is_over() && policy.is_interrupted());
        assert_eq!(policy.outcome(), stopped(3, Some((1, End::Exited(3)))));
    }

    #[test]
    fn whoever_obeys_a_signal_has_not_failed() {
        let signalled = |signal| End::Signalled(signal);
        // (the ends of both, the exit code, who did something else)
        for (ends, code, after) in [
            ([End::Exited(0), End::Exited(0)], 0, None),
            ([signalled(SIGINT), End::Exited(0)], 130, None),
            ([End::Exited(130), signalled(SIGINT)], 130, None),
            ([End::Exited(0), signalled(SIGKILL)], 137, None),
            (
                [signalled(SIGINT), signalled(SIGSEGV)],
                130,
                Some((1, signalled(SIGSEGV))),
            ),
        ] {
            let [first, second] = ends;
            let (_, policy) = two(vec![
                (0, Signal(SIGINT)),
                (1, Ends(0, first)),
                (2, Ends(1, second)),
            ]);
            assert_eq!(policy.outcome(), stopped(code, after));
        }
    }

    #[test]
    fn a_second_signal_kills_and_a_third_leaves() {
        let (done, policy) = two(vec![
            (0, Signal(SIGTERM)),
            (999, Signal(SIGTERM)),
            (1000, Signal(SIGINT)),
            (1500, Signal(SIGINT)),
            (2000, Signal(SIGINT)),
        ]);
        assert_eq!(done, "send 15, send 9, leave");
        let Outcome::Stopped { signal, code, .. } = policy.outcome() else {
            panic!("it was a signal");
        };
        assert_eq!((signal, code), (SIGTERM, 143));
    }

    #[test]
    fn a_failure_before_the_signal_stays_the_failure() {
        let (done, policy) = two(vec![
            (0, Ends(1, End::Exited(5))),
            (100, Signal(SIGINT)),
            (200, Ends(0, End::Signalled(SIGINT))),
        ]);
        assert_eq!(done, "send 2");
        assert!(policy.is_interrupted());
        assert_eq!(policy.outcome(), Outcome::Failed((1, End::Exited(5))));
    }

    #[test]
    fn the_first_failure_counts_unless_one_is_surely_nobodys_consequence() {
        let failed = |end: End| Outcome::Failed((1, end));
        for (second, is_cause) in [
            (End::Exited(1), false),
            (End::Signalled(SIGABRT), false),
            (End::Signalled(SIGTERM), false),
            (End::Vanished, false),
            (End::Signalled(SIGKILL), true),
            (End::Signalled(SIGSEGV), true),
        ] {
            let (_, policy) = two(vec![
                (0, Ends(0, End::Exited(7))),
                (100, Ends(1, second.clone())),
            ]);
            let expected = match is_cause {
                true => failed(second),
                false => Outcome::Failed((0, End::Exited(7))),
            };
            assert_eq!(policy.outcome(), expected);
        }
    }

    #[test]
    fn who_comes_after_the_end_has_begun_is_turned_away() {
        // A signal while they are started: what has started is told, and what has not is not waited for.
        let (done, policy) = play(
            2,
            vec![
                (0, Supervisor(0)),
                (1, Signal(SIGINT)),
                (2, Supervisor(1)),
                (3, Ends(0, End::Exited(0))),
            ],
        );
        assert_eq!(done, "start 0, send 2, turn away 1");
        assert!(policy.is_over());
        assert_eq!(policy.outcome(), stopped(130, None));
        let (done, policy) = play(2, vec![(0, Signal(SIGINT))]);
        assert!(policy.is_over() && policy.num_awaited() == 2, "{done}");
        assert_eq!(policy.outcome(), stopped(130, None));

        // A failure: until the others are told to end, it may come.
        let (done, policy) = play(
            3,
            vec![
                (0, Supervisor(0)),
                (1, Ends(0, End::Exited(7))),
                (2, Supervisor(1)),
                (3001, Supervisor(2)),
                (3002, Ends(1, End::Signalled(SIGTERM))),
            ],
        );
        assert_eq!(done, "start 0, start 1, send 15, turn away 2");
        assert!(policy.is_over() && !policy.awaits(0..3));
        assert_eq!(policy.outcome(), Outcome::Failed((0, End::Exited(7))));
    }
}
