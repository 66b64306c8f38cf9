//! Lines of JSON: one for the figures of a step, one for an event.
//!
//! ```text
//! {"step":12,"time_unix_ms":1790000000000,"train/loss":3.25,"train/learning_rate":0.0003}
//! {"event":"checkpoint","time_unix_ms":1790000000250,"step":12}
//! ```
//!
//! JSON has no numbers that are not finite: they are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`, as in the JSON
//! form of protocol buffers; Python's `float` reads them.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::append::Append;
use super::{MetricsError, Record, Sink};
use crate::files;

/// A file of lines.
#[derive(Debug)]
pub struct Jsonl {
    file: Append,
    line: Vec<u8>,
}

impl Jsonl {
    /// Opens the file of a run that has done `done` steps, and makes it if need be. Figures of later steps, of which an
    /// earlier program kept no checkpoint, are taken out, and so is a last line that it did not end; events stay. The
    /// file is replaced as a whole.
    ///
    /// # Errors
    /// [`MetricsError::Unusable`]; [`MetricsError::Malformed`] if a line is none of a run.
    pub fn open(path: impl Into<PathBuf>, done: u64) -> Result<Self, MetricsError> {
        let path = path.into();
        cut(&path, done)?;
        let file = Append::open(&path).map_err(|source| MetricsError::Unusable { path, source })?;
        Ok(Self {
            file,
            line: Vec::new(),
        })
    }
}

impl Sink for Jsonl {
    fn path(&self) -> &Path {
        self.file.path()
    }

    /// Texts have no place here: what is theirs is in a file of its own.
    fn write(&mut self, record: &Record) -> io::Result<()> {
        if matches!(record, Record::Text(_)) {
            return Ok(());
        }
        self.line.clear();
        serde_json::to_writer(&mut self.line, &Line(record))?;
        self.line.push(b'\n');
        self.file.append(&self.line)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

/// A record as a line.
struct Line<'a>(&'a Record);

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.0 {
            Record::Figures(figures) => {
                map.serialize_entry("step", &figures.step)?;
                map.serialize_entry("time_unix_ms", &figures.time_unix_ms)?;
                for (name, value) in &figures.values {
                    map.serialize_entry(name, &Number(*value))?;
                }
            }
            Record::Event(event) => {
                map.serialize_entry("event", &event.kind)?;
                map.serialize_entry("time_unix_ms", &event.time_unix_ms)?;
                for (name, value) in &event.fields {
                    map.serialize_entry(name, value)?;
                }
            }
            Record::Text(text) => map.serialize_entry("text", &text.name)?,
        }
        map.end()
    }
}

/// A number, whatever it is.
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_nan() => serializer.serialize_str("NaN"),
            f64::INFINITY => serializer.serialize_str("Infinity"),
            f64::NEG_INFINITY => serializer.serialize_str("-Infinity"),
            value => serializer.serialize_f64(value),
        }
    }
}

/// The fields of a line that decide whether it stays.
#[derive(Deserialize)]
struct Head {
    event: Option<IgnoredAny>,
    step: Option<u64>,
}

/// Takes out figures of steps after `done`, and what follows the last line end.
fn cut(path: &Path, done: u64) -> Result<(), MetricsError> {
    let unusable = |source| MetricsError::Unusable {
        path: path.to_path_buf(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unusable(error)),
    };
    // Another name in the same folder, of which a crash leaves a part at most.
    let partial = path.with_extension("jsonl.partial");
    let mut kept = io::BufWriter::new(File::create(&partial).map_err(unusable)?);
    let mut lines = BufReader::new(file);
    let (mut line, mut number, mut has_cut) = (Vec::new(), 0, false);
    let outcome = loop {
        line.clear();
        number += 1;
        match files::read_line(&mut lines, &mut line) {
            Ok(0) => break Ok(()),
            Ok(_) if !line.ends_with(b"\n") => has_cut = true,
            Ok(_) => match stays(&line, done) {
                Ok(true) => {
                    if let Err(error) = kept.write_all(&line) {
                        break Err(unusable(error));
                    }
                }
                Ok(false) => has_cut = true,
                Err(reason) => {
                    break Err(MetricsError::Malformed {
                        path: path.to_path_buf(),
                        line: number,
                        reason,
                    });
                }
            },
            Err(error) => break Err(unusable(error)),
        }
    };
    let replaced = outcome.and_then(|()| {
        if !has_cut {
            return fs::remove_file(&partial).map_err(unusable);
        }
        let file = kept
            .into_inner()
            .map_err(|error| unusable(error.into_error()))?;
        file.sync_all().map_err(unusable)?;
        fs::rename(&partial, path).map_err(unusable)
    });
    if replaced.is_err() {
        // The first error counts; nothing reads the part.
        let _ = fs::remove_file(&partial);
    }
    replaced
}

/// Returns whether a line stays in the file of a run that has done `done` steps.
fn stays(line: &[u8], done: u64) -> Result<bool, String> {
    let head: Head = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match (head.event, head.step) {
        (Some(_), _) => Ok(true),
        (None, Some(step)) => Ok(step <= done),
        (None, None) => Err("it has neither `step` nor `event`".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Event, Figures};
    use super::*;
    use proptest::prelude::*;

    fn figures(step: u64, loss: f64) -> Record {
        Record::Figures(Figures::at(step).with("train/loss", loss))
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter_map(|line: serde_json::Value| line["step"].as_u64())
            .collect()
    }

    #[test]
    fn a_run_that_goes_on_has_no_step_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut lines = Jsonl::open(&path, 0).unwrap();
        for step in 1..=5 {
            lines.write(&figures(step, 1.0)).unwrap();
        }
        lines.write(&Record::Event(Event::new("fault"))).unwrap();
        // As a program leaves it that is killed in the middle of a line.
        let mut text = fs::read(&path).unwrap();
        text.extend(b"{\"step\":6,\"tra");
        fs::write(&path, text).unwrap();
        let mut lines = Jsonl::open(&path, 3).unwrap();
        for step in 4..=6 {
            lines.write(&figures(step, 2.0)).unwrap();
        }
        assert_eq!(steps(&path), [1, 2, 3, 4, 5, 6]);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines()
                .filter(|line| line.contains("\"fault\""))
                .count(),
            1
        );
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 1, "no other file is left");
        // From the beginning, nothing but the event is left.
        Jsonl::open(&path, 0).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    }

    #[test]
    fn a_line_of_something_else_is_named_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        for (bad, reason) in [
            ("hello", "expected value"),
            ("{\"loss\": 1}", "neither `step` nor `event`"),
        ] {
            let text = format!("{{\"step\":1}}\n{bad}\n{{\"step\":2}}\n");
            fs::write(&path, &text).unwrap();
            let error = Jsonl::open(&path, 1).unwrap_err().to_string();
            assert!(
                error.contains("line 2") && error.contains(reason),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back_bit_by_bit(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            let text = serde_json::to_string(&Line(&figures(1, value))).unwrap();
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            let found = match &line["train/loss"] {
                serde_json::Value::String(text) => text.parse().unwrap(),
                // As decimal text: serde_json's own reading may be off by one bit.
                _ => text.rsplit(':').next().unwrap().trim_end_matches('}').parse::<f64>().unwrap(),
            };
            prop_assert!(found.to_bits() == bits || (found.is_nan() && value.is_nan()));
        }
    }
}
