//! The reports of a program, kept in memory in place of a terminal interface.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};

/// The numbers that a program reports, with what they are: `train Loss`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers(pub Vec<(String, f64)>);

impl Numbers {
    /// Adds one.
    pub fn add(&mut self, name: &str, value: f64) {
        self.0.push((name.to_string(), value));
    }

    /// Returns those of one name, in order.
    pub fn of(&self, name: &str) -> Vec<f64> {
        let those = self.0.iter().filter(|(other, _)| other == name);
        those.map(|(_, value)| *value).collect()
    }

    /// Returns the losses: all numbers with `Loss` in their name, in order.
    pub fn losses(&self) -> Vec<(&str, f64)> {
        let those = self.0.iter().filter(|(name, _)| name.contains("Loss"));
        those.map(|(name, value)| (name.as_str(), *value)).collect()
    }
}

/// A renderer that keeps what it is to show; clones share it.
#[derive(Clone, Default)]
pub struct Log {
    names: HashMap<MetricId, String>,
    numbers: Arc<Mutex<Numbers>>,
}

impl Log {
    /// Returns what was reported so far.
    pub fn numbers(&self) -> Numbers {
        self.numbers
            .lock()
            .expect("nothing panics while it is held")
            .clone()
    }

    fn update(&self, split: &str, state: MetricState) {
        // What an epoch comes to is told once more at its end.
        if let MetricState::Numeric(entry, Some(value)) = state
            && !matches!(value, NumericEntry::Final(_))
        {
            let name = self.names.get(&entry.metric_id).map_or("?", String::as_str);
            let mut numbers = self
                .numbers
                .lock()
                .expect("nothing panics while it is held");
            numbers.add(&format!("{split} {name}"), value.current());
        }
    }
}

impl MetricsRendererTraining for Log {
    fn update_train(&mut self, state: MetricState) {
        self.update("train", state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update("valid", state);
    }
}

impl TrainingProgressLogger for Log {
    fn start(&mut self, _: usize, _: usize, _: Option<usize>, _: Option<&str>) {}

    fn update_epoch(&mut self, _: usize) {}

    fn start_split(&mut self, _: &str, _: usize) {}

    fn update_split(&mut self, _: usize) {}

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _: String) {}
}

impl MetricsRendererEvaluation for Log {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update("test", state);
    }
}

impl EvaluationProgressLogger for Log {
    fn start_global_progress(&mut self, _: usize) {}

    fn start_test(&mut self, _: &str, _: usize) {}

    fn update_test_progress(&mut self, _: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _: String) {}
}

impl MetricsRenderer for Log {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names
            .insert(definition.metric_id, definition.name.to_string());
    }
}
