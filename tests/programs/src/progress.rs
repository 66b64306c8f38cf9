//! What a program reports, kept in memory in place of a terminal interface.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::train::metric::{MetricDefinition, MetricId};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
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

/// A renderer that keeps what it is told; clones share it.
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
        if let MetricState::Numeric(entry, value) = state {
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

    fn render_train(&mut self, _at: TrainingProgress, _indicators: Vec<ProgressType>) {}

    fn render_valid(&mut self, _at: TrainingProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for Log {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update("test", state);
    }

    fn render_test(&mut self, _at: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for Log {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }
}
