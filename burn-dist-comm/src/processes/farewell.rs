//! The end of a program, which waits for those of the others: they are asked whether they are still there. One that
//! works answers, however long it does; one that is stopped, hangs or is cut off does not.
//!
//! Plain data: what happens and the time come in.

use std::time::{Duration, Instant};

/// How often the others are asked, at most.
const TURN: Duration = Duration::from_secs(2);

/// Processes that have been heard of since the program of this process has ended.
pub(super) struct Farewell {
    patience: Duration,
    /// When each process was last heard of.
    heard: Vec<Instant>,
    next: Instant,
    /// When this process last looked.
    looked: Instant,
    /// Processes that have been silent for too long.
    silent: Vec<u32>,
}

impl Farewell {
    pub(super) fn new(num_processes: usize, patience: Duration, now: Instant) -> Self {
        Self {
            patience,
            heard: vec![now; num_processes],
            next: now,
            looked: now,
            silent: Vec::new(),
        }
    }

    /// A process says anything.
    pub(super) fn hear(&mut self, process: u32, now: Instant) {
        if let Some(heard) = self.heard.get_mut(process as usize) {
            *heard = now;
        }
    }

    /// Looks after those that are waited for; returns whether they are to be asked.
    pub(super) fn look(&mut self, awaited: impl Iterator<Item = u32>, now: Instant) -> bool {
        if now.duration_since(self.looked) > TURN.min(self.patience / 2) {
            // It was this process that stood still.
            self.heard.fill(now);
        }
        self.looked = now;
        let is_silent = |process: &u32| {
            let heard = self.heard.get(*process as usize);
            heard.is_some_and(|heard| now.duration_since(*heard) >= self.patience)
        };
        self.silent = awaited.filter(is_silent).collect();
        let is_due = now >= self.next;
        if is_due {
            self.next = now + TURN.min(self.patience / 4);
        }
        is_due
    }

    /// Returns the processes that have been silent for too long, of which this process waits for none any more.
    pub(super) fn silent(&self) -> &[u32] {
        &self.silent
    }

    /// How long a process may be silent.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_is_waited_for_and_who_does_not_is_left() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut farewell = Farewell::new(3, Duration::from_secs(30), start);
        let mut asked = 0;
        // Process 1 answers whenever it is asked, process 2 until it is stopped.
        for second in 0..100 {
            if farewell.look([1, 2].into_iter(), at(second)) {
                asked += 1;
                farewell.hear(1, at(second));
                if second < 50 {
                    farewell.hear(2, at(second));
                }
            }
            let expected: &[u32] = if second < 48 + 30 { &[] } else { &[2] };
            assert_eq!(farewell.silent(), expected, "after {second} s");
        }
        assert_eq!(asked, 50);
        // It has said goodbye after all.
        farewell.look([1].into_iter(), at(100));
        assert!(farewell.silent().is_empty());
        // If it was this process that was stopped, nobody is accused.
        let mut farewell = Farewell::new(2, Duration::from_secs(30), start);
        for second in 100..130 {
            farewell.look([1].into_iter(), at(second));
            assert!(farewell.silent().is_empty(), "after {second} s");
        }
        farewell.look([1].into_iter(), at(130));
        assert_eq!(farewell.silent(), [1]);
    }
}
