//! Figures of a run while it runs: one writer, a thread of one process, writes them as lines of JSON and as TensorBoard
//! reads them.
//!
//! ```
//! use burn_dist_train::metrics::{Event, Figures, Jsonl, Metrics, TensorBoard, name};
//!
//! # let folder = std::env::temp_dir().join(format!("some-metrics-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let done = 0; // steps that an earlier program did
//! let metrics = Metrics::start(vec![
//!     Box::new(Jsonl::open(folder.join("metrics.jsonl"), done)?),
//!     Box::new(TensorBoard::open(folder.join("tensorboard"), done)?),
//! ])?;
//! metrics.event(Event::new("begin").with("mesh", "fsdp=2"));
//! for step in 1..=3 {
//!     metrics.figures(Figures::at(step).with(name::TRAIN_LOSS, 4.0 / step as f64));
//! }
//! metrics.finish()?;
//! let lines = std::fs::read_to_string(folder.join("metrics.jsonl"))?;
//! let second = lines.lines().nth(2).expect("an event and three steps");
//! assert!(second.starts_with(r#"{"step":2,"#) && second.ends_with(r#","train/loss":2.0}"#), "{second}");
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! - What is handed over is written at once, each line or event by one call of the system: a program that is killed
//!   leaves whole lines. [`Metrics::settle`] waits until all of it is written.
//! - Figures are never lost silently. While the writer is behind by more than [`QUEUE`] records, whoever has more
//!   figures waits; what a disk that is full does not take is counted, and is a [`MetricsError`] at the end, and an
//!   event `lost` in the file once it takes lines again. No error of a file ends a run.
//! - A run that goes on after step k has no figures of later steps twice: they are cut from the lines, and an event for
//!   TensorBoard says that the run was started anew.
//!
//! Not here: which figures there are of a step on a mesh; `burn_dist::train` knows.

mod append;
mod error;
mod jsonl;
mod layer;
mod message;
pub mod name;
mod record;
mod tensorboard;
mod writer;

pub use error::MetricsError;
pub use jsonl::Jsonl;
pub use layer::EventLayer;
pub use record::{Event, Figures, Record, Text};
pub use tensorboard::TensorBoard;
pub use writer::{Inbox, Metrics, QUEUE};

use std::io;
use std::path::Path;

/// Where records are written.
pub trait Sink: Send {
    /// Returns the file, for errors.
    fn path(&self) -> &Path;

    /// Writes a record, all of it or nothing; one that the form has no place for is left out.
    ///
    /// # Errors
    /// Those of the system.
    fn write(&mut self, record: &Record) -> io::Result<()>;

    /// Waits until all is safe on the disk.
    ///
    /// # Errors
    /// Those of the system.
    fn sync(&mut self) -> io::Result<()>;
}
