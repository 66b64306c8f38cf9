//! Progress as plain lines, one per metric and step, in place of the terminal interface.

use std::collections::HashMap;

use burn::train::metric::{MetricDefinition, MetricId};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};

/// Prints `train 1/3 step 4 Loss 2.2870162` and the like.
#[derive(Default)]
pub struct Lines {
    names: HashMap<MetricId, String>,
    /// Metrics of the step that is being reported.
    step: Vec<(MetricId, f64)>,
}

impl Lines {
    fn update(&mut self, state: MetricState) {
        if let MetricState::Numeric(entry, value) = state {
            self.step.push((entry.metric_id, value.current()));
        }
    }

    fn print(&mut self, split: &str, at: &TrainingProgress) {
        let epochs = &at.global_progress;
        let (epoch, of) = (epochs.items_processed, epochs.items_total);
        let step = at.iteration.unwrap_or_default();
        for (id, value) in self.step.drain(..) {
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

    fn render_train(&mut self, at: TrainingProgress, _indicators: Vec<ProgressType>) {
        self.print("train", &at);
    }

    fn render_valid(&mut self, at: TrainingProgress, _indicators: Vec<ProgressType>) {
        self.print("valid", &at);
    }
}

impl MetricsRendererEvaluation for Lines {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update(state);
    }

    fn render_test(&mut self, at: EvaluationProgress, _indicators: Vec<ProgressType>) {
        self.print("test", &TrainingProgress::from(&at));
    }
}

impl MetricsRenderer for Lines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }
}
