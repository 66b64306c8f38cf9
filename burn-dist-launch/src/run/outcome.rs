//! How a start of all processes went, in words.

use super::output::Tail;
use super::signals;
use super::supervisor::End;
use std::sync::Arc;

/// Lines that are shown of what the failed process has written.
const LAST_WORDS_LINES: usize = 40;

/// How a start went; `F` says which process failed, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome<F> {
    /// Every process has ended with 0.
    Good,
    /// This one failed first.
    Failed(F),
    /// Something failed on another machine.
    Elsewhere(Heard),
    /// A signal asked for the end while all was well; `after` is the first process that neither obeyed it nor ended
    /// with 0.
    Stopped {
        signal: i32,
        code: u8,
        after: Option<F>,
    },
}

impl<F> Outcome<F> {
    pub(super) fn map<G>(self, f: impl FnOnce(F) -> G) -> Outcome<G> {
        match self {
            Self::Good => Outcome::Good,
            Self::Failed(failed) => Outcome::Failed(f(failed)),
            Self::Elsewhere(heard) => Outcome::Elsewhere(heard),
            Self::Stopped {
                signal,
                code,
                after,
            } => Outcome::Stopped {
                signal,
                code,
                after: after.map(f),
            },
        }
    }
}

/// A failure, as the launchers of several machines tell each other of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub text: String,
    /// The exit code of what failed.
    pub code: u8,
}

impl Heard {
    /// Returns true if another start may go better: not if the program is not there (126, 127), or says that it was
    /// asked for something wrong (2 as most do, 64, 65 and 78 of BSD's `sysexits.h`).
    pub(super) fn may_go_better(&self) -> bool {
        !matches!(self.code, 2 | 64 | 65 | 78 | 126 | 127)
    }
}

/// A process that did not end well.
pub(super) struct Failed {
    pub rank: usize,
    pub world_size: usize,
    pub host: String,
    pub pid: Option<u32>,
    pub end: End,
    pub tail: Arc<Tail>,
}

impl Failed {
    fn who(&self) -> String {
        let pid = self.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
        format!(
            "rank {} of {} ({}{pid})",
            self.rank, self.world_size, self.host
        )
    }

    /// Says that it was the first to fail.
    pub(super) fn text(&self) -> String {
        format!("{} failed first, {}", self.who(), self.end)
    }

    /// Returns what to tell the launchers of other machines.
    pub(super) fn heard(&self) -> Heard {
        Heard {
            text: format!("{}{}", self.text(), self.last_words()),
            code: self.end.exit_code(),
        }
    }

    /// Says, after another word, what it has written last.
    pub(super) fn last_words(&self) -> String {
        let lines = self.tail.lines();
        match (&self.end, lines.is_empty()) {
            (End::NotStarted(..), _) => String::new(),
            (_, true) => "; it wrote nothing to stderr".into(),
            (_, false) => format!(
                "; its last words on stderr:\n  {}",
                last_words(&lines).join("\n  ")
            ),
        }
    }
}

/// Says that a signal has ended all.
pub(super) fn stopped_text(signal: i32, after: Option<&Failed>) -> String {
    let stopped = format!("burn-dist: stopped by {}", signals::name(signal));
    match after {
        None => stopped,
        Some(failed) => format!(
            "{stopped}; after that {} ended, {}{}",
            failed.who(),
            failed.end,
            failed.last_words()
        ),
    }
}

/// Chooses the lines that tell most: from the last panic on, whose message stands above its backtrace, or else the last
/// ones.
fn last_words(lines: &[String]) -> &[String] {
    match lines
        .iter()
        .rposition(|line| line.contains(" panicked at "))
    {
        Some(panic) => &lines[panic..lines.len().min(panic + LAST_WORDS_LINES)],
        None => &lines[lines.len().saturating_sub(LAST_WORDS_LINES)..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_have_the_panic_above_its_backtrace() {
        let numbered = |from: usize, to: usize| (from..to).map(|line| format!("line {line}"));
        let panic = |number: usize| format!("thread 'main' panicked at src/main.rs:{number}:5:");
        let long: Vec<String> = numbered(0, 100)
            .chain([panic(1)])
            .chain(numbered(100, 120))
            .chain([panic(2)])
            .chain(numbered(120, 300))
            .collect();
        let short: Vec<String> = numbered(0, 3).chain([panic(1), "why".into()]).collect();
        let plain: Vec<String> = numbered(0, 100).collect();
        // (lines, the first that is shown, how many are)
        for (lines, first, shown) in [
            (&long, panic(2), LAST_WORDS_LINES),
            (&short, panic(1), 2),
            (&plain, "line 60".to_string(), LAST_WORDS_LINES),
        ] {
            let words = last_words(lines);
            assert_eq!((&words[0], words.len()), (&first, shown));
        }
        assert!(last_words(&[]).is_empty());
    }

    #[test]
    fn restarts_are_for_what_another_start_may_mend() {
        let failed = |end: End| Failed {
            rank: 1,
            world_size: 2,
            host: "here".into(),
            pid: Some(7),
            end,
            tail: Arc::default(),
        };
        for (end, may_go_better) in [
            (End::Exited(1), true),
            (End::Exited(75), true),
            (End::Exited(101), true),
            (End::Signalled(9), true),
            (End::Vanished, true),
            (End::NotStarted(127, "not there".into()), false),
            (End::Exited(2), false),
            (End::Exited(64), false),
            (End::Exited(65), false),
            (End::Exited(78), false),
        ] {
            let heard = failed(end).heard();
            assert_eq!(heard.may_go_better(), may_go_better, "{}", heard.text);
        }
        assert_eq!(
            stopped_text(2, Some(&failed(End::Exited(3)))),
            "burn-dist: stopped by SIGINT; after that rank 1 of 2 (here, pid 7) ended, with exit code 3; it wrote \
             nothing to stderr"
        );
    }
}
