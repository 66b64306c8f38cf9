//! The figures of a run while it lasts: which processes know what, and which of them writes.

use std::time::Duration;

use super::exit::End;
use super::processes::Processes;
use super::validation::Measured;
use super::voice::{complain, in_one_line};
use crate::train::StepFigures;
use crate::train::metrics::{Event, Figures, Inbox, Jsonl, Metrics, Sink, TensorBoard, Text, name};
use crate::train::run::RunFolder;

/// The figures of a run, if it writes any.
#[derive(Debug, Default)]
pub struct RunMetrics(Option<Kept>);

#[derive(Debug)]
struct Kept {
    rows: Wanted,
    /// In the process that writes.
    metrics: Option<Metrics>,
}

/// Which rows there are, and what is in them.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Steps from one to the next.
    pub every: usize,
    /// Steps from one with the norm of the gradients to the next, unless gradients are clipped: then all have it. To
    /// compute it for the figures alone takes time.
    pub norm_every: usize,
    /// The most that a rank's device can do, if that is known.
    pub tflops_per_rank: Option<f64>,
}

impl Wanted {
    /// A row for each step, with a norm every ten steps.
    pub const ALL: Self = Self {
        every: 1,
        norm_every: 10,
        tflops_per_rank: None,
    };
}

/// The figures of a step that the loop knows.
#[derive(Debug, Clone, Default)]
pub struct StepRow {
    /// Steps that the run has done, this one included.
    pub step: usize,
    /// The loss before it.
    pub loss: f32,
    /// The norm of its gradients.
    pub gradient_norm: Option<f32>,
    /// Its learning rate.
    pub rate: f64,
    /// Positions of its rows.
    pub tokens: usize,
    /// From the batch to the loss on the host.
    pub time: Duration,
    /// The part of it that was waiting for the batch.
    pub waiting_for_data: Duration,
    /// The loss on what is held out, after it, and how long that took.
    pub validation: Option<Measured>,
    /// Figures of the model, by name.
    pub figures: Vec<(String, f32)>,
}

impl RunMetrics {
    /// Writes nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Opens the files of a run that has done `done` steps, in the process that has the `inbox`.
    ///
    /// # Communication
    /// All processes open them together.
    /// # Errors
    /// In all processes, if a file cannot be opened.
    pub fn open(
        folder: &RunFolder,
        inbox: Option<Inbox>,
        done: usize,
        rows: Wanted,
        processes: &Processes,
    ) -> anyhow::Result<Self> {
        let open = |inbox: Inbox| -> anyhow::Result<Metrics> {
            let done = done as u64;
            let sinks: Vec<Box<dyn Sink>> = vec![
                Box::new(Jsonl::open(folder.metrics(), done)?),
                Box::new(TensorBoard::open(folder.tensorboard(), done)?),
            ];
            Ok(inbox.open(sinks)?)
        };
        let metrics = processes.together(inbox.map(open).transpose(), "open the run's metrics")?;
        Ok(Self(Some(Kept { rows, metrics })))
    }

    /// Returns whether a row of the step is to be written: the number of steps done, this one included.
    pub fn takes(&self, step: usize, is_last: bool) -> bool {
        let kept = self.0.as_ref();
        kept.is_some_and(|kept| is_last || step.is_multiple_of(kept.rows.every))
    }

    /// Returns whether that row has the norm of the gradients even if nothing else needs it.
    pub fn takes_norm(&self, step: usize, is_last: bool) -> bool {
        let kept = self.0.as_ref();
        kept.is_some_and(|kept| is_last || step.is_multiple_of(kept.rows.norm_every))
    }

    /// Writes a row, with what the ranks of this process did in the step.
    ///
    /// # Communication
    /// The processes tell each other what their ranks did.
    /// # Errors
    /// If another process is late or has ended.
    pub fn row(
        &self,
        row: &StepRow,
        ranks: StepFigures,
        processes: &Processes,
    ) -> anyhow::Result<()> {
        let Some(kept) = &self.0 else {
            return Ok(());
        };
        let ranks = processes.gather(ranks)?;
        let Some(metrics) = &kept.metrics else {
            return Ok(());
        };
        metrics.figures(row.figures(&StepFigures::merged(ranks), kept.rows.tflops_per_rank));
        for trouble in metrics.troubles() {
            complain(&anyhow::Error::msg(trouble));
        }
        Ok(())
    }

    /// Writes an event.
    pub fn event(&self, event: Event) {
        if let Some(metrics) = self.0.as_ref().and_then(|kept| kept.metrics.as_ref()) {
            metrics.event(event);
        }
    }

    /// Writes a text of the run that has done `done` steps, for TensorBoard.
    pub fn text(&self, name: &'static str, done: usize, text: &str) {
        if let Some(metrics) = self.0.as_ref().and_then(|kept| kept.metrics.as_ref()) {
            metrics.text(Text::new(name, done as u64, text));
        }
    }

    /// Waits until everything so far is written.
    pub fn settle(&self) {
        if let Some(metrics) = self.0.as_ref().and_then(|kept| kept.metrics.as_ref()) {
            metrics.settle();
        }
    }

    /// Notes how the run has ended, and ends the files; returns what the run returned.
    ///
    /// # Errors
    /// That of the run; without any, if one of the files lacks something.
    pub fn close(self, end: anyhow::Result<End>) -> anyhow::Result<End> {
        self.event(match &end {
            Ok(End::Done | End::Unfit) => Event::new("end"),
            Ok(End::Interrupted(_)) => Event::new("interrupted"),
            Err(error) => Event::new("error").with("reason", in_one_line(error)),
        });
        let metrics = self.0.and_then(|kept| kept.metrics);
        match (end, metrics.map_or(Ok(()), Metrics::finish)) {
            (end, Ok(())) => end,
            (Ok(_), Err(error)) => Err(error.into()),
            (Err(first), Err(error)) => {
                complain(&error.into());
                Err(first)
            }
        }
    }
}

impl StepRow {
    fn figures(&self, ranks: &StepFigures, tflops_per_rank: Option<f64>) -> Figures {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut figures = Figures::at(self.step as u64)
            .with(name::TRAIN_LOSS, self.loss.into())
            .with(name::LEARNING_RATE, self.rate)
            .with(
                name::TOKENS_PER_SECOND,
                self.tokens as f64 / self.time.as_secs_f64(),
            )
            .with(name::STEP_MS, ms(self.time))
            .with(name::WAITING_FOR_DATA_MS, ms(self.waiting_for_data));
        if let Some(norm) = self.gradient_norm {
            figures.push(name::GRADIENT_NORM, norm.into());
        }
        if let Some(found) = self.validation {
            figures.push(name::VALIDATION_LOSS, found.loss.into());
            figures.push(name::VALIDATION_MS, ms(found.time));
        }
        for (name, value) in &self.figures {
            figures.push(format!("model/{name}"), f64::from(*value));
        }
        ranks.add_speed_to(&mut figures, self.time, tflops_per_rank);
        ranks.add_to(&mut figures);
        figures
    }
}
