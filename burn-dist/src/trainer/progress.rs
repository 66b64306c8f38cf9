//! The progress of a training phase: a bar on a terminal, a line for each step elsewhere, as logs of batch systems
//! have.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::report::{RankMemory, bytes_text, count_text};
use super::voice::{note, say, speaks};

/// The part of a step that is shown.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// Steps done, this one included.
    pub done: usize,
    /// Its loss.
    pub loss: f32,
    /// The figures beside it, of the model.
    pub figures: &'a [f32],
    /// Tokens, or what else a batch counts, per second at the median step time.
    pub tokens_per_second: f64,
    /// The learning rate.
    pub rate: f64,
    /// The time of the step.
    pub time: Duration,
    /// The norm of its gradients, if it is known.
    pub gradient_norm: Option<f32>,
}

/// Makes the text of a step.
pub type Text = Box<dyn Fn(&Shown<'_>) -> String>;

/// Shows loss, speed and memory of one phase.
pub struct Progress {
    name: String,
    steps: usize,
    /// The ranks of all processes.
    num_ranks: usize,
    bar: Option<ProgressBar>,
    /// Steps from one line on standard error to the next; none, where there is a bar alone.
    every: Option<usize>,
    /// Steps from one line on standard output to the next, and their text, if that is wanted in place of all else.
    lines: Option<(usize, Text)>,
    quiet: bool,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Progress({}, {} steps)", self.name, self.steps)
    }
}

impl Progress {
    /// Starts the display of a phase of `steps` steps, on `num_ranks` ranks in all processes.
    pub fn new(name: &str, steps: usize, num_ranks: usize) -> Self {
        let speaks = speaks();
        let bar = (speaks && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template(
                "{prefix:>9} {bar:24.cyan/blue} {pos}/{len} {msg} {elapsed}<{eta}",
            )
            .expect("the template is constant and well formed")
            .progress_chars("━╸─");
            ProgressBar::new(steps as u64)
                .with_style(style)
                .with_prefix(name.to_string())
        });
        Self {
            name: name.to_string(),
            steps,
            num_ranks,
            every: bar.is_none().then_some(1),
            bar,
            lines: None,
            quiet: !speaks,
        }
    }

    /// Writes a line every so many steps, and for the last, on a terminal too: as many as usual, without a number.
    pub fn log_every(self, steps: Option<usize>) -> Self {
        Self {
            every: steps.or(self.every),
            ..self
        }
    }

    /// Writes lines of a program's own to standard output, on a terminal and elsewhere: of the first step, of every
    /// `every`-th and of the last. For logs of batch systems.
    pub fn lines(
        steps: usize,
        every: usize,
        line: impl Fn(&Shown<'_>) -> String + 'static,
    ) -> Self {
        Self {
            steps,
            lines: Some((every.max(1), Box::new(line))),
            ..Self::quiet()
        }
    }

    /// A display that shows nothing.
    pub fn quiet() -> Self {
        Self {
            name: String::new(),
            steps: 0,
            num_ranks: 0,
            every: None,
            bar: None,
            lines: None,
            quiet: true,
        }
    }

    /// Shows that a step is done; `memory` is of the ranks of this process.
    pub fn step(&self, shown: &Shown<'_>, memory: &[RankMemory]) {
        let Shown {
            done,
            loss,
            tokens_per_second,
            ..
        } = *shown;
        if let Some((every, line)) = &self.lines
            && (done == 1 || done == self.steps || done.is_multiple_of(*every))
        {
            say!("{}", line(shown));
        }
        if self.quiet {
            return;
        }
        let message = message(loss, tokens_per_second, memory, self.num_ranks);
        let is_due = |every: usize| done == self.steps || done.is_multiple_of(every);
        if self.every.is_some_and(is_due) {
            let (name, steps) = (&self.name, self.steps);
            self.write(format!(
                "{name:>9} {done:>5}/{steps} {message}{}",
                more(shown)
            ));
        }
        if let Some(bar) = &self.bar {
            bar.set_message(message);
            bar.set_position(done as u64);
        }
    }

    /// Writes a line, above the bar if there is one.
    fn write(&self, line: String) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => note!("{line}"),
        }
    }

    /// Shows the loss on what is held out, after `done` steps.
    pub fn validated(&self, done: usize, loss: f32) {
        if self.quiet {
            return;
        }
        let line = format!(
            "{:>9} validation loss {loss:.4} after step {done}",
            self.name
        );
        self.write(line);
    }

    /// Leaves the last state on the screen.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }

    /// Leaves the last state on the screen, and says where the phase was stopped.
    pub fn interrupted(&self, done: usize) {
        self.finish();
        if self.lines.is_some() {
            say!("stopped after step {done}");
        }
        if !self.quiet {
            note!(
                "{:>9} interrupted after step {done} of {}",
                self.name,
                self.steps
            );
        }
    }
}

/// The part of a step's line that a bar has no room for.
fn more(shown: &Shown<'_>) -> String {
    let norm = shown.gradient_norm;
    let norm = norm.map_or_else(String::new, |norm| format!("  norm {norm:.3}"));
    format!(
        "  lr {:.3e}{norm}  {:.1} ms",
        shown.rate,
        shown.time.as_secs_f64() * 1e3
    )
}

fn message(loss: f32, tokens_per_second: f64, memory: &[RankMemory], num_ranks: usize) -> String {
    let mut message = format!(
        "loss {loss:.4}  {} tokens/s",
        count_text(tokens_per_second as u64)
    );
    if !memory.is_empty() {
        // The largest rank decides whether a model fits; the spread shows whether the layout is even.
        let peaks = memory.iter().map(|rank| rank.peak_bytes);
        let (low, high) = (peaks.clone().min().unwrap_or(0), peaks.max().unwrap_or(0));
        let per = match memory.len() {
            here if here < num_ranks => "/rank in process 0",
            1 => "",
            _ => "/rank",
        };
        if low == high {
            message += &format!("  {}{per}", bytes_text(high));
        } else {
            message += &format!("  {}..{}{per}", bytes_text(low), bytes_text(high));
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_rate_and_the_time_of_its_step() {
        let shown = Shown {
            done: 3,
            loss: 1.25,
            figures: &[],
            tokens_per_second: 5.0,
            rate: 2e-3,
            time: Duration::from_micros(12_340),
            gradient_norm: None,
        };
        assert_eq!(more(&shown), "  lr 2.000e-3  12.3 ms");
        let norm = Shown {
            gradient_norm: Some(0.5),
            ..shown
        };
        assert_eq!(more(&norm), "  lr 2.000e-3  norm 0.500  12.3 ms");
    }

    #[test]
    fn a_number_of_steps_goes_over_the_usual_one() {
        let plain = Progress {
            every: Some(1),
            ..Progress::quiet()
        };
        let bar = Progress::quiet();
        assert_eq!(plain.log_every(Some(7)).every, Some(7));
        assert_eq!(bar.log_every(None).every, None);
    }

    #[test]
    fn the_message_shows_the_range_over_ranks() {
        let rank = |rank, peak_bytes| RankMemory {
            rank,
            predicted_peak_bytes: peak_bytes,
            peak_bytes,
            peak_bytes_by_class: Default::default(),
            most_bytes_by_class: Default::default(),
            host_peak_bytes: 0,
            at_rest_bytes: 0,
        };
        let none = message(1.25, 12_345.6, &[], 1);
        assert_eq!(none, "loss 1.2500  12,345 tokens/s");
        let one = message(1.25, 5.0, &[rank(0, 1 << 20)], 1);
        assert_eq!(one, "loss 1.2500  5 tokens/s  1.0 MiB");
        let even = [rank(0, 1 << 20), rank(1, 1 << 20)];
        let all = message(1.25, 5.0, &even, 2);
        assert_eq!(all, "loss 1.2500  5 tokens/s  1.0 MiB/rank");
        let some = message(1.25, 5.0, &even, 4);
        assert_eq!(some, format!("{all} in process 0"));
        let uneven = message(1.25, 5.0, &[rank(0, 1 << 20), rank(1, 3 << 19)], 2);
        assert_eq!(uneven, "loss 1.2500  5 tokens/s  1.0 MiB..1.5 MiB/rank");
    }
}
