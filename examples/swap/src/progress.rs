//! Progress as plain lines, one per metric and step, in place of the terminal interface.

use std::collections::HashMap;

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};

/// Prints `train 1/3 step 4 Loss 2.2870162` and the like.
#[derive(Default)]
pub struct Lines {
    names: HashMap<MetricId, String>,
    /// Metrics of the step that is being reported.
    metrics: Vec<(MetricId, f64)>,
    split: String,
    epoch: usize,
    epochs: usize,
    step: usize,
}

impl Lines {
    fn update(&mut self, state: MetricState) {
        // What an epoch comes to is told once more at its end.
        if let MetricState::Numeric(entry, Some(value)) = state
            && !matches!(value, NumericEntry::Final(_))
        {
            self.metrics.push((entry.metric_id, value.current()));
        }
    }

    fn print(&mut self) {
        self.step += 1;
        let (split, step) = (&self.split, self.step);
        let (epoch, of) = (self.epoch, self.epochs);
        for (id, value) in self.metrics.drain(..) {
            let name = self.names.get(&id).map_or("?", String::as_str);
            println!("{split} {epoch}/{of} step {step} {name} {value:.7}");
        }
    }
}

impl MetricsRendererTraining for Lines {
    fn update_train(&mut self, state: MetricState) {
        self.update(state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update(state);
    }
}

impl TrainingProgressLogger for Lines {
    fn start(&mut self, epochs: usize, first: usize, _items: Option<usize>, _label: Option<&str>) {
        (self.epoch, self.epochs) = (first, epochs);
    }

    fn update_epoch(&mut self, epoch: usize) {
        self.epoch = epoch + 1;
    }

    fn start_split(&mut self, split: &str, _items: usize) {
        (self.split, self.step) = (split.to_string(), 0);
    }

    fn update_split(&mut self, _items: usize) {
        self.print();
    }

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _event: String) {}
}

impl MetricsRendererEvaluation for Lines {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update(state);
    }
}

impl EvaluationProgressLogger for Lines {
    fn start_global_progress(&mut self, _tests: usize) {}

    fn start_test(&mut self, name: &str, _items: usize) {
        (self.split, self.step) = (name.to_string(), 0);
    }

    fn update_test_progress(&mut self, _items: usize) {
        self.print();
    }

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRenderer for Lines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names
            .insert(definition.metric_id, definition.name.to_string());
    }
}
