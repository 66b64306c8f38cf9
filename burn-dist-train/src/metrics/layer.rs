//! Events that a program logs by `tracing`, among those of its run.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use super::message::Message;
use super::{Event, Record};

/// A layer that hands events of a `tracing` subscriber to a writer: `{"event":"log","level":"WARN",...}`.
///
/// Put on a registry by [`EventLayer::filtered`], it sees warnings and errors of all crates and what burn-dist says at
/// level `INFO`: engines that were chosen, say. Spans of windows and collectives (level `DEBUG`) stay off.
///
/// ```
/// use burn_dist_train::metrics::{Inbox, Jsonl};
/// use tracing_subscriber::layer::SubscriberExt;
///
/// # let folder = std::env::temp_dir().join(format!("a-layer-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let inbox = Inbox::default();
/// let subscriber = tracing_subscriber::registry().with(inbox.layer().filtered());
/// tracing::subscriber::with_default(subscriber, || tracing::warn!(rank = 3, "a rank is slow"));
/// // The files may be opened later: the queue keeps what was logged before.
/// let metrics = inbox.open(vec![Box::new(Jsonl::open(folder.join("metrics.jsonl"), 0)?)])?;
/// metrics.finish()?;
/// let line = std::fs::read_to_string(folder.join("metrics.jsonl"))?;
/// assert!(line.contains(r#""level":"WARN""#) && line.contains(r#""message":"a rank is slow""#), "{line}");
/// assert!(line.contains(r#""rank":3"#), "{line}");
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct EventLayer {
    sender: SyncSender<Message>,
    left_out: Arc<AtomicU64>,
}

impl fmt::Debug for EventLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLayer").finish_non_exhaustive()
    }
}

impl EventLayer {
    pub(super) fn new(sender: SyncSender<Message>, left_out: Arc<AtomicU64>) -> Self {
        Self { sender, left_out }
    }

    /// Returns the layer with the filter that its docs name; other layers of the subscriber see what they ask for.
    pub fn filtered<S: Subscriber + for<'a> LookupSpan<'a>>(self) -> impl Layer<S> {
        let targets = Targets::new()
            .with_default(LevelFilter::WARN)
            .with_target("burn_dist", LevelFilter::INFO);
        self.with_filter(Events(targets))
    }
}

impl<S: Subscriber> Layer<S> for EventLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut said = Event::new("log")
            .with("level", metadata.level().as_str())
            .with("target", metadata.target())
            .with("message", fields.message);
        if !fields.others.is_empty() {
            said = said.with("fields", fields.others);
        }
        // Who logs may hold locks, and may be the writer: nobody waits here.
        match self.sender.try_send(Message::Record(Record::Event(said))) {
            Err(TrySendError::Full(_)) => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
            }
            // Written, or the run is over.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
    }
}

/// Events of some targets, and no spans.
struct Events(Targets);

impl<S: Subscriber> Filter<S> for Events {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        metadata.is_event() && self.0.would_enable(metadata.target(), metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.others.insert(name.to_string(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let value = match value.is_finite() {
            true => value.into(),
            false => value.to_string().into(),
        };
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}
