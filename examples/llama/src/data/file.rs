//! Files of texts, as the command line names them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use burn_dist::train::corpus::{CorpusError, Fields, Format, Source, Split};
use thiserror::Error;

/// A file, and how it is read: `FILE[,KEY=VALUE]...`.
#[derive(Debug, Clone, PartialEq)]
pub struct DataFile {
    /// The file.
    pub path: PathBuf,
    /// What is in it; by its name if it is not given.
    pub format: Option<Format>,
    /// Its part of all positions, as against those of the other files.
    pub weight: f64,
    /// The fields or columns that are read.
    pub fields: Fields,
    /// What a document of plain text is.
    pub split: Split,
}

/// The keys after the name of a file.
const KEYS: [&str; 6] = ["weight", "format", "text", "prompt", "response", "split"];

/// A file that is named in a way that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DataFileError {
    /// There is no name.
    #[error("there is no file in `{text}`: write FILE, or FILE,weight=2")]
    NoFile {
        /// What was given.
        text: String,
    },
    /// A key has no value.
    #[error("`{part}` has no value: write KEY=VALUE after the file, with a key of {}", KEYS.join(", "))]
    NoValue {
        /// What was given.
        part: String,
    },
    /// There is no such key.
    #[error("there is no key `{key}`: did you mean `{nearest}`? Keys are {}", KEYS.join(", "))]
    UnknownKey {
        /// What was given.
        key: String,
        /// The key that is most like it.
        nearest: &'static str,
    },
    /// A key appears twice.
    #[error("`{key}` appears twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// A value is none.
    #[error("`{key}={value}`: {reason}")]
    Value {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// Why it is none.
        reason: String,
    },
    /// Fields that do not go together.
    #[error("give text=FIELD, or prompt=FIELD and response=FIELD, or none of them")]
    Fields,
}

impl DataFile {
    /// What is read from it.
    ///
    /// # Errors
    /// [`CorpusError::Format`] if its name does not tell its format, and neither does the command line.
    pub fn source(&self) -> Result<Source, CorpusError> {
        let format = match self.format {
            Some(format) => format,
            None => Format::of(&self.path)?,
        };
        let source = Source::file(&self.path, format).weight(self.weight);
        Ok(source.fields(self.fields.clone()).split(self.split))
    }
}

impl From<&Path> for DataFile {
    fn from(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            format: None,
            weight: 1.0,
            fields: Fields::default(),
            split: Split::default(),
        }
    }
}

impl FromStr for DataFile {
    type Err = DataFileError;

    fn from_str(text: &str) -> Result<Self, DataFileError> {
        let mut parts = text.split(',');
        let path = parts.next().filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| DataFileError::NoFile { text: text.into() })?;
        let mut file = Self::from(Path::new(path));
        let (mut prompt, mut response, mut whole) = (None, None, None);
        let mut seen: Vec<&str> = Vec::new();
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| DataFileError::NoValue { part: part.into() })?;
            let fails = |reason: String| DataFileError::Value {
                key: key.into(),
                value: value.into(),
                reason,
            };
            if seen.contains(&key) {
                return Err(DataFileError::Twice { key: key.into() });
            }
            seen.push(key);
            match key {
                "weight" => {
                    file.weight = value.parse().map_err(|error| fails(format!("{error}")))?
                }
                "format" => {
                    let format = value.parse().map_err(|error| fails(format!("{error}")))?;
                    file.format = Some(format);
                }
                "split" => file.split = value.parse().map_err(|error| fails(format!("{error}")))?,
                "text" => whole = Some(value.to_string()),
                "prompt" => prompt = Some(value.to_string()),
                "response" => response = Some(value.to_string()),
                _ => {
                    let likeness = |name: &&&str| {
                        // Between 0 and 1: as whole numbers, so that there is a largest.
                        (strsim::jaro_winkler(name, key) * 1e6) as u64
                    };
                    let nearest = KEYS.iter().max_by_key(likeness);
                    return Err(DataFileError::UnknownKey {
                        key: key.into(),
                        nearest: nearest.expect("there are keys"),
                    });
                }
            }
        }
        file.fields = match (whole, prompt, response) {
            (None, None, None) => Fields::Usual,
            (Some(text), None, None) => Fields::Text(text),
            (None, Some(prompt), Some(response)) => Fields::Pair { prompt, response },
            _ => return Err(DataFileError::Fields),
        };
        Ok(file)
    }
}

impl fmt::Display for DataFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.weight != 1.0 {
            write!(f, ",weight={}", self.weight)?;
        }
        if let Some(format) = self.format {
            write!(f, ",format={format}")?;
        }
        match &self.fields {
            Fields::Usual => {}
            Fields::Text(text) => write!(f, ",text={text}")?,
            Fields::Pair { prompt, response } => write!(f, ",prompt={prompt},response={response}")?,
        }
        if self.split != Split::default() {
            write!(f, ",split={}", self.split)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_they_are_written() {
        for text in [
            "a.jsonl",
            "a/b.parquet,weight=0.25,text=body",
            "a,format=jsonl,prompt=q,response=a",
            "a.txt,split=line",
        ] {
            let file: DataFile = text.parse().unwrap();
            assert_eq!(file.to_string(), text);
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        let error = |text: &str| text.parse::<DataFile>().unwrap_err().to_string();
        for (text, expected) in [
            ("", "no file in ``"),
            (",weight=2", "no file"),
            ("a.txt,weigth=2", "no key `weigth`: did you mean `weight`?"),
            ("a.txt,spilt=line", "did you mean `split`?"),
            ("a.txt,line", "`line` has no value"),
            ("a.txt,weight=two", "`weight=two`: invalid float literal"),
            (
                "a.txt,split=word",
                "`word` is none of paragraph, line and file",
            ),
            ("a.txt,split=line,split=file", "`split` appears twice"),
            ("a.jsonl,prompt=q", "prompt=FIELD and response=FIELD"),
        ] {
            let found = error(text);
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
