//! Examples from a file with one JSON object per line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::Example;

/// A file of examples that cannot be used. Line numbers start at 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonlError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
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
}

#[derive(Deserialize)]
struct Line {
    prompt: String,
    response: String,
}

/// Reads every example of a file; blank lines are skipped, other fields ignored.
///
/// # Errors
/// [`JsonlError`], naming the file, the line and the reason.
pub fn read(path: &Path) -> Result<Vec<Example>, JsonlError> {
    let io = |source| JsonlError::Io {
        path: path.to_path_buf(),
        source,
    };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let mut examples = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(io)? == 0 {
            break;
        }
        let fail = |reason| JsonlError::Line {
            path: path.to_path_buf(),
            line,
            reason,
        };
        let text =
            std::str::from_utf8(&bytes).map_err(|error| fail(format!("not UTF-8 ({error})")))?;
        if text.trim().is_empty() {
            continue;
        }
        // serde_json counts lines within the text it is given, always 1 here: only its column is of use.
        let Line { prompt, response } = serde_json::from_str(text).map_err(|error| {
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or(&what);
            fail(format!("{what} (column {})", error.column()))
        })?;
        if response.trim().is_empty() {
            return Err(fail("the response is empty".to_string()));
        }
        examples.push(Example {
            kind: None,
            prompt,
            response,
        });
    }
    if examples.is_empty() {
        return Err(JsonlError::Empty {
            path: path.to_path_buf(),
        });
    }
    Ok(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: impl AsRef<[u8]>) -> Result<Vec<Example>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.jsonl");
        std::fs::write(&path, text).unwrap();
        read(&path).map_err(|error| error.to_string().replace(dir.path().to_str().unwrap(), "."))
    }

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
    fn a_bad_line_is_named_with_its_reason() {
        let good = "{\"prompt\": \"a\", \"response\": \"b\"}\n";
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
            let error = read_text(format!("{good}\n{bad}")).unwrap_err();
            assert!(error.starts_with(message), "{error}");
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
        let error = read(Path::new("/nonexistent/x.jsonl"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("cannot read /nonexistent/x.jsonl: "),
            "{error}"
        );
    }
}
