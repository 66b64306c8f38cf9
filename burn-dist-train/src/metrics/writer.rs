//! The thread that writes, and its queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::layer::EventLayer;
use super::message::Message;
use super::{Event, Figures, MetricsError, Record, Sink, Text};

/// Records that wait for the writer at most.
pub const QUEUE: usize = 1024;

/// The queue before there is a writer: it takes the events of a program's start, when its files are not known yet.
#[derive(Debug)]
pub struct Inbox {
    sender: SyncSender<Message>,
    receiver: Receiver<Message>,
    /// Events of the log that found the queue full.
    left_out: Arc<AtomicU64>,
}

impl Default for Inbox {
    fn default() -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        Self {
            sender,
            receiver,
            left_out: Arc::default(),
        }
    }
}

impl Inbox {
    /// Returns a layer for a `tracing` subscriber that hands over what is logged.
    ///
    /// It never waits: an event that finds the queue full is left out, and counted in an event `log_full`.
    pub fn layer(&self) -> EventLayer {
        EventLayer::new(self.sender.clone(), self.left_out.clone())
    }

    /// Starts the thread, which writes to all of `sinks`.
    ///
    /// # Errors
    /// [`MetricsError::NoThread`].
    pub fn open(self, sinks: Vec<Box<dyn Sink>>) -> Result<Metrics, MetricsError> {
        let troubles = Arc::new(Mutex::new(Vec::new()));
        let writer = Writer {
            outlets: sinks.into_iter().map(Outlet::new).collect(),
            left_out: self.left_out,
            troubles: troubles.clone(),
        };
        let receiver = self.receiver;
        let thread = std::thread::Builder::new().name("metrics".to_string());
        let thread = thread
            .spawn(move || writer.run(&receiver))
            .map_err(MetricsError::NoThread)?;
        Ok(Metrics {
            sender: self.sender,
            thread: Some(thread),
            troubles,
        })
    }
}

/// The figures of a run, which a thread writes to its files. Dropping it writes what was handed over.
#[derive(Debug)]
pub struct Metrics {
    sender: SyncSender<Message>,
    thread: Option<JoinHandle<Result<(), MetricsError>>>,
    /// Problems that no one was notified of yet.
    troubles: Arc<Mutex<Vec<String>>>,
}

impl Metrics {
    /// Starts a writer to all of `sinks`.
    ///
    /// # Errors
    /// [`MetricsError::NoThread`].
    pub fn start(sinks: Vec<Box<dyn Sink>>) -> Result<Self, MetricsError> {
        Inbox::default().open(sinks)
    }

    /// Hands figures over; waits while the queue is full.
    pub fn figures(&self, figures: Figures) {
        self.send(Message::Record(Record::Figures(figures)));
    }

    /// Hands an event over; waits while the queue is full.
    pub fn event(&self, event: Event) {
        self.send(Message::Record(Record::Event(event)));
    }

    /// Hands a text over; waits while the queue is full.
    pub fn text(&self, text: Text) {
        self.send(Message::Record(Record::Text(text)));
    }

    /// Waits until everything handed over was written, or could not be. A program does so before it saves a checkpoint:
    /// then the files have the figures of every step that is in one.
    pub fn settle(&self) {
        let (answer, settled) = sync_channel(1);
        self.send(Message::Settle(answer));
        // No answer: the writer has ended, and nothing is under way.
        let _ = settled.recv();
    }

    /// Returns what has gone wrong since the last call, for people: of each file the first time that it does not take
    /// a record.
    pub fn troubles(&self) -> Vec<String> {
        std::mem::take(&mut *self.troubles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes what is left, and waits until it is safe on the disk.
    ///
    /// # Errors
    /// [`MetricsError::Lost`] if a file did not take everything: the first such file.
    pub fn finish(mut self) -> Result<(), MetricsError> {
        self.end()
    }

    fn send(&self, message: Message) {
        // A writer ends before its `Metrics` only by a panic, which `finish` passes on.
        let _ = self.sender.send(message);
    }

    fn end(&mut self) -> Result<(), MetricsError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        self.send(Message::End);
        match thread.join() {
            Ok(ended) => ended,
            Err(panic) if std::thread::panicking() => {
                drop(panic);
                Ok(())
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("{error}");
        }
    }
}

/// The side of the thread.
struct Writer {
    outlets: Vec<Outlet>,
    left_out: Arc<AtomicU64>,
    troubles: Arc<Mutex<Vec<String>>>,
}

impl Writer {
    fn run(mut self, receiver: &Receiver<Message>) -> Result<(), MetricsError> {
        for message in receiver {
            match message {
                Message::Record(record) => self.put(&record),
                // Who no longer waits needs no answer.
                Message::Settle(answer) => drop(answer.send(())),
                Message::End => break,
            }
        }
        self.outlets
            .into_iter()
            .map(Outlet::end)
            .fold(Ok(()), Result::and)
    }

    fn put(&mut self, record: &Record) {
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let full = Record::Event(Event::new("log_full").with("events", left_out));
        for outlet in &mut self.outlets {
            let trouble = match left_out {
                0 => None,
                _ => outlet.put(&full),
            };
            let trouble = trouble.or(outlet.put(record));
            self.troubles
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(trouble);
        }
    }
}

/// A sink, and what it did not take.
struct Outlet {
    sink: Box<dyn Sink>,
    lost: u64,
    /// Records that were lost and that the file does not mention yet.
    untold: u64,
    first: Option<String>,
}

impl Outlet {
    fn new(sink: Box<dyn Sink>) -> Self {
        Self {
            sink,
            lost: 0,
            untold: 0,
            first: None,
        }
    }

    /// Writes a record; returns what to tell, the first time that it cannot be.
    fn put(&mut self, record: &Record) -> Option<String> {
        let error = self.tell().and_then(|()| self.sink.write(record)).err()?;
        (self.lost, self.untold) = (self.lost + 1, self.untold + 1);
        let path = self.sink.path().display();
        let trouble = format!("cannot write figures to {path}, the run goes on without: {error}");
        let is_first = self.first.is_none();
        self.first.get_or_insert_with(|| error.to_string());
        is_first.then_some(trouble)
    }

    /// Says in the file how many records before this one it lacks.
    fn tell(&mut self) -> std::io::Result<()> {
        if self.untold > 0 {
            let lost = Event::new("lost").with("records", self.untold);
            self.sink.write(&Record::Event(lost))?;
            self.untold = 0;
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), MetricsError> {
        let told = self.tell().and_then(|()| self.sink.sync());
        let path = self.sink.path().to_path_buf();
        match (self.first, told) {
            (Some(first), _) => Err(MetricsError::Lost {
                path,
                lost: self.lost,
                first,
            }),
            (None, Err(source)) => Err(MetricsError::Unusable { path, source }),
            (None, Ok(())) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;

    /// Keeps what is written to it, and refuses it while it is full.
    struct Disk {
        is_full: Arc<Mutex<bool>>,
        kept: Arc<Mutex<Vec<Record>>>,
    }

    impl Sink for Disk {
        fn path(&self) -> &Path {
            Path::new("disk")
        }

        fn write(&mut self, record: &Record) -> io::Result<()> {
            if *self.is_full.lock().unwrap() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.kept.lock().unwrap().push(record.clone());
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    type Kept = Arc<Mutex<Vec<Record>>>;

    fn disk() -> (Metrics, Arc<Mutex<bool>>, Kept) {
        let (is_full, kept) = (Arc::new(Mutex::new(false)), Kept::default());
        let disk = Disk {
            is_full: is_full.clone(),
            kept: kept.clone(),
        };
        (Metrics::start(vec![Box::new(disk)]).unwrap(), is_full, kept)
    }

    fn steps(kept: &Kept) -> Vec<u64> {
        let kept = kept.lock().unwrap();
        let steps = kept.iter().map(|record| match record {
            Record::Figures(figures) => figures.step(),
            Record::Event(event) => event.fields["records"].as_u64().unwrap() + 1000,
            Record::Text(_) => unreachable!("none was handed over"),
        });
        steps.collect()
    }

    #[test]
    fn all_is_written_in_order_however_much_it_is() {
        let (metrics, _, kept) = disk();
        let num = QUEUE as u64 * 3;
        for step in 1..=num {
            metrics.figures(Figures::at(step));
        }
        metrics.settle();
        assert_eq!(kept.lock().unwrap().len(), num as usize);
        metrics.finish().unwrap();
        assert_eq!(steps(&kept), (1..=num).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_disk_loses_records_that_are_counted() {
        let (metrics, is_full, kept) = disk();
        for step in 1..=6 {
            metrics.settle();
            *is_full.lock().unwrap() = matches!(step, 2..=4);
            metrics.figures(Figures::at(step));
        }
        metrics.settle();
        let troubles = metrics.troubles();
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        assert!(troubles[0].starts_with("cannot write figures to disk, the run goes on without"));
        assert_eq!(metrics.troubles(), Vec::<String>::new());
        let error = metrics.finish().unwrap_err().to_string();
        assert!(
            error.starts_with("disk lacks 3 records of this run"),
            "{error}"
        );
        assert_eq!(steps(&kept), [1, 1003, 5, 6]);
    }
}
