//! Event files that TensorBoard reads: scalars of its plugin `scalars`, texts of its plugin `text`.
//!
//! Values are 32-bit floats there: the lines of JSON have all digits. A file is named after the time and the process
//! that made it; TensorBoard reads those of a directory in the order of their names. Each run of a program makes one,
//! and says in it after which step it goes on: TensorBoard then forgets what earlier files say of later steps.
//!
//! # Source
//! The forms are those of TensorBoard 2 (`tensorboard/compat/proto/`), the framing that of TFRecord
//! (`tensorflow/core/lib/io/record_writer.cc`).

mod framing;
mod proto;

use std::io;
use std::path::{Path, PathBuf};

use prost::Message;

use self::proto::Content;
use super::append::Append;
use super::record::now_unix_ms;
use super::{Figures, MetricsError, Record, Sink};

/// A directory of event files, of which one is written.
#[derive(Debug)]
pub struct TensorBoard {
    file: Append,
    message: Vec<u8>,
    frame: Vec<u8>,
}

impl TensorBoard {
    /// Begins a file in the directory of a run that has done `done` steps; the directory is made if need be.
    ///
    /// # Errors
    /// [`MetricsError::Unusable`].
    pub fn open(directory: impl AsRef<Path>, done: u64) -> Result<Self, MetricsError> {
        let directory = directory.as_ref();
        let unusable = |path: &Path| {
            let path = path.to_path_buf();
            move |source| MetricsError::Unusable { path, source }
        };
        std::fs::create_dir_all(directory).map_err(unusable(directory))?;
        let path = directory.join(file_name(directory, now_unix_ms()));
        let file = Append::open(&path).map_err(unusable(&path))?;
        let mut board = Self {
            file,
            message: Vec::new(),
            frame: Vec::new(),
        };
        let first = [
            Content::Version("brain.Event:2".to_string()),
            Content::Start,
        ];
        for said in first {
            board
                .append(now_unix_ms(), done + 1, said)
                .map_err(unusable(&path))?;
        }
        Ok(board)
    }

    fn append(&mut self, time_unix_ms: u64, step: u64, content: Content) -> io::Result<()> {
        self.message.clear();
        let event = proto::event(time_unix_ms, step, content);
        event.encode(&mut self.message).map_err(io::Error::other)?;
        framing::frame(&self.message, &mut self.frame);
        self.file.append(&self.frame)
    }
}

impl Sink for TensorBoard {
    fn path(&self) -> &Path {
        self.file.path()
    }

    /// Events have no place here.
    fn write(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Event(_) => Ok(()),
            Record::Figures(Figures {
                step,
                time_unix_ms,
                values,
            }) => {
                let values = values.iter().map(|(name, value)| (name.as_ref(), *value));
                let summary = proto::scalars(values);
                self.append(*time_unix_ms, *step, Content::Summary(summary))
            }
            Record::Text(text) => {
                let summary = proto::text(&text.name, &verbatim(&text.text));
                self.append(text.time_unix_ms, text.step, Content::Summary(summary))
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

/// A text as Markdown, which TensorBoard shows, that is displayed as it is.
fn verbatim(text: &str) -> String {
    let lines = text.lines().map(|line| format!("    {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A name that sorts after those of earlier files, whatever became of the clock.
fn file_name(directory: &Path, time_unix_ms: u64) -> PathBuf {
    let number = |name: &str| -> Option<u64> {
        let rest = name.strip_prefix("events.out.tfevents.")?;
        rest.split('.').next()?.parse().ok()
    };
    let earlier = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = earlier.filter_map(|entry| number(entry.file_name().to_str()?));
    let second = (time_unix_ms / 1000).max(names.max().map_or(0, |last| last + 1));
    let host = gethostname::gethostname();
    format!(
        "events.out.tfevents.{second:010}.{}.{}",
        host.display(),
        std::process::id()
    )
    .into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;

    use super::super::{Event, Jsonl, Metrics, Text};
    use super::*;

    /// By name: steps and values.
    type Points<T> = BTreeMap<String, Vec<(u64, T)>>;

    /// Everything that TensorBoard shows of a run: figures and texts.
    fn read_by_tensorboard(directory: &Path) -> (Points<f64>, Points<String>) {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = std::env::var_os("TENSORBOARD_PYTHON").map(PathBuf::from);
        let python = python.unwrap_or_else(|| here.join("../target/tensorboard/bin/python"));
        let output = Command::new(python)
            .arg(here.join("tests/read_tensorboard.py"))
            .arg(directory)
            .output()
            .expect("a Python with TensorBoard");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    #[test]
    #[ignore = "needs Python with TensorBoard in target/tensorboard (as .ci/run makes it), or in TENSORBOARD_PYTHON"]
    fn tensorboard_reads_what_the_lines_say() {
        let folder = tempfile::tempdir().unwrap();
        let lines = folder.path().join("metrics.jsonl");
        let directory = folder.path().join("tensorboard");
        let mut expected: Points<f64> = BTreeMap::new();
        // A run that is killed after step 7 and goes on from step 4; then it is killed at once, and goes on again.
        for (part, (done, end)) in [(0, 7), (4, 6), (5, 9)].into_iter().enumerate() {
            let metrics = Metrics::start(vec![
                Box::new(Jsonl::open(&lines, done).unwrap()),
                Box::new(TensorBoard::open(&directory, done).unwrap()),
            ])
            .unwrap();
            expected
                .values_mut()
                .for_each(|kept| kept.retain(|(step, _)| *step <= done));
            metrics.event(Event::new("begin"));
            metrics.text(Text::new(
                "configuration",
                done,
                format!("part = {part}\nend = {end}"),
            ));
            for step in done + 1..=end {
                let mut figures = Figures::at(step)
                    .with("train/loss", 1.0 / (step + 10 * part as u64) as f64)
                    .with("memory/peak_bytes", ((1_u64 << 40) + step) as f64);
                if step % 2 == 0 {
                    figures.push("validation/loss", step as f64 * 0.1);
                }
                for (name, value) in &figures.values {
                    let of_name = expected.entry(name.to_string()).or_default();
                    of_name.push((step, f64::from(*value as f32)));
                }
                metrics.figures(figures);
            }
            metrics.finish().unwrap();
        }
        let (figures, texts) = read_by_tensorboard(&directory);
        assert_eq!(figures, expected);
        let name = "configuration/text_summary".to_string();
        let text = |part: u64, end: u64| format!("    part = {part}\n    end = {end}");
        let shown = vec![(0, text(0, 7)), (4, text(1, 6)), (5, text(2, 9))];
        assert_eq!(texts, BTreeMap::from([(name, shown)]));
        let mut in_lines: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
        for line in std::fs::read_to_string(&lines).unwrap().lines() {
            let line: serde_json::Map<_, _> = serde_json::from_str(line).unwrap();
            for (name, value) in line.iter().filter(|_| !line.contains_key("event")) {
                if !["step", "time_unix_ms"].contains(&name.as_str()) {
                    let of_name = in_lines.entry(name.clone()).or_default();
                    let value = value.as_f64().unwrap() as f32;
                    of_name.push((line["step"].as_u64().unwrap(), f64::from(value)));
                }
            }
        }
        assert_eq!(in_lines, expected);
    }

    #[test]
    fn a_text_is_written_as_its_plugin_reads_it() {
        use super::proto::Event;

        let folder = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::open(folder.path(), 4).unwrap();
        let text = Text::new("configuration", 4, "[run]\nseed = 1");
        board.write(&Record::Text(text)).unwrap();
        let bytes = std::fs::read(board.path()).unwrap();
        // The last record: its length, a checksum, the message, a checksum.
        let mut left = &bytes[..];
        let mut last = Vec::new();
        while let Some((length, _)) = left.split_first_chunk::<8>() {
            let end = 12 + u64::from_le_bytes(*length) as usize;
            last = left[12..end].to_vec();
            left = &left[end + 4..];
        }
        let event = Event::decode(&last[..]).unwrap();
        let shown = format!("{event:?}");
        for part in [
            "step: 4",
            "\"configuration/text_summary\"",
            "plugin_name: \"text\"",
            "data_class: 2",
            "dtype: 7",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let expected = b"    [run]\n    seed = 1";
        assert!(last.windows(expected.len()).any(|part| part == expected));
    }

    #[test]
    fn files_sort_in_the_order_in_which_they_were_begun() {
        let folder = tempfile::tempdir().unwrap();
        let open = || TensorBoard::open(folder.path(), 0).unwrap();
        let paths = [open(), open(), open()].map(|board| board.path().to_path_buf());
        assert!(paths.is_sorted() && paths[0] != paths[1], "{paths:?}");
    }
}
