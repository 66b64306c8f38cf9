//! Examples from a file with one JSON object per line, of which every process looks through a part.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Example;
use crate::processes::Processes;

/// A file of examples that cannot be used. Line numbers start at 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonlError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A line is no JSON object with the two fields.
    #[error(
        "{}:{line}: {reason}; each line must be {{\"prompt\": \"...\", \"response\": \"...\"}}",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// Why.
        reason: String,
    },
    /// There is nothing to learn from.
    #[error("{}: no examples: the file has no line other than blank ones", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Processes have other files.
    #[error(
        "{} has {expected} bytes in process 0 and {found} in process {process}: give all processes the same file",
        path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// The first process that has another one.
        process: usize,
        /// Bytes of its file.
        found: usize,
        /// Bytes of that of process 0.
        expected: usize,
    },
    /// The file has been written to.
    #[error("{} has changed since the start: there was an example at byte {at}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Where an example was.
        at: u64,
    },
}

/// Why a part of a file is of no use, as its process tells it to the others: what comes before the part, it does not
/// know.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Trouble {
    Io(String),
    Line { line: usize, reason: String },
}

impl Trouble {
    fn error(self, path: &Path, lines_before: usize) -> JsonlError {
        let path = path.to_path_buf();
        match self {
            Self::Io(reason) => JsonlError::Io { path, reason },
            Self::Line { line, reason } => JsonlError::Line {
                path,
                line: lines_before + line,
                reason,
            },
        }
    }
}

/// Where an example is in its file: the first byte of its line, and how many there are.
type Place = (u64, usize);

/// What is in a part of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    /// Of the whole file.
    file_bytes: usize,
    num_lines: usize,
    places: Vec<Place>,
}

/// The examples of a file: their places, and each when it is asked for.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: File,
    places: Vec<Place>,
    mine: Range<usize>,
}

impl Lines {
    /// Looks through the lines that begin in this process's part of a file, and hears from the others what is in
    /// theirs. Blank lines are skipped, other fields ignored.
    ///
    /// # Communication
    /// Two numbers per example, of each process. Waits for the others.
    /// # Errors
    /// [`JsonlError`], naming the file, the line and the reason: the first of the whole file, in all processes. If
    /// another process is late or has ended.
    pub fn open(path: &Path, processes: &Processes) -> anyhow::Result<Self> {
        let mut scanner =
            Scanner::open(path, processes).map_err(|error| Trouble::Io(error.to_string()));
        let places = match &mut scanner {
            Ok(scanner) => processes.in_turns(scanner)?,
            Err(trouble) => processes.in_turns(std::iter::once(Err(trouble.clone())))?,
        };
        let part = scanner.and_then(|scanner| {
            Ok(Part {
                file_bytes: scanner.file_bytes,
                num_lines: scanner.num_lines,
                places: places?,
            })
        });
        let (mut all, mut mine, mut lines_before) = (Vec::new(), 0..0, 0);
        let mut file_bytes = None;
        for (process, part) in processes.gather(part)?.into_iter().enumerate() {
            let part = part.map_err(|trouble| trouble.error(path, lines_before))?;
            let expected = *file_bytes.get_or_insert(part.file_bytes);
            if part.file_bytes != expected {
                return Err(JsonlError::Differs {
                    path: path.to_path_buf(),
                    process,
                    found: part.file_bytes,
                    expected,
                }
                .into());
            }
            if process == processes.process() {
                mine = all.len()..all.len() + part.places.len();
            }
            lines_before += part.num_lines;
            all.extend(part.places);
        }
        if all.is_empty() {
            return Err(JsonlError::Empty {
                path: path.to_path_buf(),
            }
            .into());
        }
        Ok(Self {
            file: File::open(path).map_err(|error| unreadable(path, &error))?,
            path: path.to_path_buf(),
            places: all,
            mine,
        })
    }

    /// How many examples there are.
    pub fn num(&self) -> usize {
        self.places.len()
    }

    /// Those that begin in this process's part of the file.
    pub fn mine(&self) -> Range<usize> {
        self.mine.clone()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads an example.
    ///
    /// # Errors
    /// [`JsonlError::Io`]; [`JsonlError::Changed`] if the file is not what it was.
    /// # Panics
    /// If there are not as many.
    pub fn get(&self, index: usize) -> Result<Example, JsonlError> {
        let (start, len) = self.places[index];
        let mut line = vec![0; len];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(&mut line))
            .map_err(|error| unreadable(&self.path, &error))?;
        let changed = || JsonlError::Changed {
            path: self.path.clone(),
            at: start,
        };
        example(&line).ok().flatten().ok_or_else(changed)
    }
}

fn unreadable(path: &Path, error: &io::Error) -> JsonlError {
    JsonlError::Io {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}

/// Goes through the lines that begin in a part of a file; gives the places of those that are not blank.
struct Scanner {
    reader: BufReader<File>,
    file_bytes: usize,
    /// Where the next line begins.
    at: u64,
    /// Where the part ends.
    end: u64,
    num_lines: usize,
    line: Vec<u8>,
}

impl Scanner {
    fn open(path: &Path, processes: &Processes) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other(
                "it is no regular file, and examples are read from their places in one",
            ));
        }
        let file_bytes = usize::try_from(metadata.len()).map_err(io::Error::other)?;
        let part = processes.share(file_bytes);
        let mut reader = BufReader::new(file);
        let mut at = part.start as u64;
        if at > 0 {
            // The line of the byte before begins in an earlier part.
            reader.seek(SeekFrom::Start(at - 1))?;
            at = at - 1 + reader.skip_until(b'\n')? as u64;
        }
        Ok(Self {
            reader,
            file_bytes,
            at,
            end: part.end as u64,
            num_lines: 0,
            line: Vec::new(),
        })
    }
}

impl Iterator for Scanner {
    type Item = Result<Place, Trouble>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.end {
            let start = self.at;
            self.line.clear();
            let len = match self.reader.read_until(b'\n', &mut self.line) {
                Ok(0) => return Some(Err(Trouble::Io("it has become shorter".into()))),
                Ok(len) => len,
                Err(error) => return Some(Err(Trouble::Io(error.to_string()))),
            };
            self.at += len as u64;
            self.num_lines += 1;
            match example(&self.line) {
                Ok(Some(_)) => return Some(Ok((start, len))),
                Ok(None) => {}
                Err(reason) => {
                    let line = self.num_lines;
                    return Some(Err(Trouble::Line { line, reason }));
                }
            }
        }
        None
    }
}

/// Reads a line; a blank one is none.
fn example(line: &[u8]) -> Result<Option<Example>, String> {
    #[derive(Deserialize)]
    struct Line {
        prompt: String,
        response: String,
    }
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8 ({error})"))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    // serde_json counts lines within the text it is given, always 1 here: only its column is of use.
    let Line { prompt, response } = serde_json::from_str(text).map_err(|error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what);
        format!("{what} (column {})", error.column())
    })?;
    if response.trim().is_empty() {
        return Err("the response is empty".to_string());
    }
    Ok(Some(Example {
        kind: None,
        prompt,
        response,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::tests::in_processes;

    /// What a process finds in a file: its own part, and all examples.
    type Found = Result<(Range<usize>, Vec<Example>), String>;

    /// What each of several processes finds in a file of this text.
    fn read_in(num_processes: usize, text: impl AsRef<[u8]>) -> Vec<Found> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.jsonl");
        std::fs::write(&path, text).unwrap();
        in_processes(num_processes, |processes| {
            let lines = Lines::open(&path, &processes)
                .map_err(|error| error.to_string().replace(dir.path().to_str().unwrap(), "."))?;
            let all = (0..lines.num()).map(|index| lines.get(index).unwrap());
            Ok((lines.mine(), all.collect()))
        })
    }

    fn read_text(text: impl AsRef<[u8]>) -> Result<Vec<Example>, String> {
        let mut found = read_in(1, text);
        found.remove(0).map(|(_, examples)| examples)
    }

    const GOOD: &str = "{\"prompt\": \"a\", \"response\": \"b\"}\n";

    #[test]
    fn reads_examples_and_skips_blank_lines() {
        let text = "{\"prompt\": \"a\", \"response\": \"b\"}\r\n\n{\"response\": \"d\", \"prompt\": \"c\", \"id\": 3}";
        let examples = read_text(text).unwrap();
        assert_eq!(examples.len(), 2);
        assert_eq!(
            (examples[1].prompt.as_str(), examples[1].response.as_str()),
            ("c", "d")
        );
    }

    #[test]
    fn every_line_begins_in_the_part_of_one_process() {
        // Long and short lines, blank ones, one without an end: borders fall anywhere.
        let line = |n: usize| {
            let prompt = "x".repeat(n * n % 50);
            let blank = if n.is_multiple_of(4) { "\n" } else { "" };
            format!("{{\"prompt\": \"{prompt}\", \"response\": \"{n}\"}}\n{blank}")
        };
        for num_lines in [1, 2, 9] {
            let text: String = (0..num_lines).map(line).collect();
            for text in [text.as_str(), text.trim_end()] {
                let whole = read_text(text).unwrap();
                assert_eq!(whole.len(), num_lines);
                for processes in [2, 3, 5] {
                    let mut next = 0;
                    for found in read_in(processes, text) {
                        let (mine, all) = found.unwrap();
                        assert_eq!(all, whole, "{processes} processes");
                        assert_eq!(mine.start, next, "{processes} processes");
                        next = mine.end;
                    }
                    assert_eq!(next, num_lines, "{processes} processes");
                }
            }
        }
    }

    #[test]
    fn a_bad_line_is_named_with_its_reason() {
        for (bad, message) in [
            (
                "{\"prompt\": \"a\"",
                "./data.jsonl:3: EOF while parsing an object (column 14); ",
            ),
            (
                "{\"prompt\": \"a\"}",
                "./data.jsonl:3: missing field `response` (column 15); ",
            ),
            (
                "{\"prompt\": 1, \"response\": \"b\"}",
                "./data.jsonl:3: invalid type: integer `1`, expected a string",
            ),
            (
                "{\"prompt\": \"a\", \"response\": \" \"}",
                "./data.jsonl:3: the response is empty; ",
            ),
            (
                "hello",
                "./data.jsonl:3: expected value (column 1); each line must be {\"prompt\"",
            ),
        ] {
            let error = read_text(format!("{GOOD}\n{bad}")).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn the_first_bad_line_is_an_error_of_all_processes() {
        let text = format!("{}oh\n{GOOD}dear\n{GOOD}", GOOD.repeat(3));
        for processes in [1, 2, 3] {
            for found in read_in(processes, &text) {
                let error = found.unwrap_err();
                assert!(
                    error.starts_with("./data.jsonl:4: expected value"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn other_files_are_refused() {
        assert!(
            read_text([b'{', 0xFF, b'}'])
                .unwrap_err()
                .contains("data.jsonl:1: not UTF-8")
        );
        assert!(read_text("\n \n").unwrap_err().contains("no examples"));
        let open = |path: &Path| Lines::open(path, &Processes::default()).unwrap_err();
        let error = open(Path::new("/nonexistent/x.jsonl")).to_string();
        assert!(
            error.starts_with("cannot read /nonexistent/x.jsonl: "),
            "{error}"
        );
        let dir = tempfile::tempdir().unwrap();
        let error = open(dir.path()).to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }

    #[test]
    fn other_processes_have_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = |process: usize| dir.path().join(format!("{process}.jsonl"));
        std::fs::write(path(0), GOOD).unwrap();
        std::fs::write(path(1), GOOD.repeat(2)).unwrap();
        let errors = in_processes(2, |processes| {
            let error = Lines::open(&path(processes.process()), &processes).unwrap_err();
            error.to_string()
        });
        for error in errors {
            assert!(
                error.contains("in process 0 and 66 in process 1"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_changes_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.jsonl");
        std::fs::write(&path, GOOD.repeat(2)).unwrap();
        let lines = Lines::open(&path, &Processes::default()).unwrap();
        std::fs::write(&path, GOOD.repeat(2).replace('{', "[")).unwrap();
        let error = lines.get(1).unwrap_err().to_string();
        assert!(error.contains("an example at byte 33"), "{error}");
    }
}
