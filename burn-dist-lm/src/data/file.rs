//! Files of texts, and folders of them, as the command line names them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use burn_dist::train::corpus::{CorpusError, Fields, Format, Source, Split};
use thiserror::Error;

/// A file, or a folder of files, and how it is read: `FILE[,KEY=VALUE]...`.
#[derive(Debug, Clone, PartialEq)]
pub struct DataFile {
    /// The file or folder.
    pub path: PathBuf,
    /// The format of its content; by its name if it is not set. Of a folder, the files of this format are read.
    pub format: Option<Format>,
    /// Its part of all positions, as against those of the other files.
    pub weight: f64,
    /// The fields or columns that are read.
    pub fields: Fields,
    /// The documents of a plain text.
    pub split: Split,
}

/// The keys after the name of a file.
const KEYS: [&str; 6] = ["weight", "format", "text", "prompt", "response", "split"];

/// A file whose name and keys cannot be understood.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum DataFileError {
    /// There is no name.
    #[error("there is no file in `{text}`: write FILE, or FILE,weight=2")]
    NoFile {
        /// The argument.
        text: String,
    },
    /// A key has no value.
    #[error("`{part}` has no value: write KEY=VALUE after the file, with a key of {}", KEYS.join(", "))]
    NoValue {
        /// The part without a value.
        part: String,
    },
    /// There is no such key.
    #[error("there is no key `{key}`: did you mean `{nearest}`? Keys are {}", KEYS.join(", "))]
    UnknownKey {
        /// The unknown key.
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
        /// The value.
        value: String,
        /// Why it is none.
        reason: String,
    },
    /// Fields that do not go together.
    #[error("give text=FIELD, or prompt=FIELD and response=FIELD, or none of them")]
    Fields,
}

burn_dist_mesh::debug_by_message!(DataFileError);

/// A folder of which is not known what is to be read.
#[derive(Error)]
pub enum DataFolderError {
    /// It cannot be looked into.
    #[error("cannot read the folder {}: {error}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It has something that is no file of texts.
    #[error(
        "the folder {} has {other}, which is no file of texts: give the files one by one, or a format after the folder \
         ({}), whose files are then read and no others", folder.display(), example(folder)
    )]
    Other {
        /// The folder.
        folder: PathBuf,
        /// The name of what it has.
        other: String,
    },
    /// Its files are of several formats.
    #[error(
        "the folder {} has {one} and {other}, which are in different formats: give a format after the folder ({}), \
         whose files are then read and no others", folder.display(), example(folder)
    )]
    Formats {
        /// The folder.
        folder: PathBuf,
        /// The name of a file.
        one: String,
        /// The name of another.
        other: String,
    },
    /// It has no files to read.
    #[error("the folder {} has no files of texts{}", folder.display(), of(*format))]
    Empty {
        /// The folder.
        folder: PathBuf,
        /// The format that was asked for.
        format: Option<Format>,
    },
    /// The format of the one file is not known.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
}

burn_dist_mesh::debug_by_message!(DataFolderError);

fn example(folder: &Path) -> String {
    format!("{},format=jsonl", folder.display())
}

fn of(format: Option<Format>) -> String {
    format.map_or_else(String::new, |format| {
        format!(" whose names end as those of {format} do")
    })
}

/// The files of a folder that are read, in the order of their names, and the names of what else is in it.
struct Listed {
    files: Vec<(PathBuf, Format)>,
    left_out: Vec<String>,
}

impl DataFile {
    /// Returns what is read from it: a source, or those of a folder, of which each has a part of the weight as its
    /// bytes are of all; and the names of what a folder has besides.
    ///
    /// # Errors
    /// [`CorpusError::Format`] if a name does not tell a format, and neither does the command line; of a folder,
    /// [`DataFolderError`].
    pub fn sources(&self) -> Result<(Vec<Source>, Vec<String>), DataFolderError> {
        let source = |path: &Path, format, weight| {
            let source = Source::file(path, format).weight(weight);
            source.fields(self.fields.clone()).split(self.split)
        };
        if !self.path.is_dir() {
            let format = match self.format {
                Some(format) => format,
                None => Format::of(&self.path)?,
            };
            return Ok((vec![source(&self.path, format, self.weight)], Vec::new()));
        }
        let unreadable = |error| DataFolderError::Io {
            folder: self.path.clone(),
            error,
        };
        let Listed { files, left_out } = self.list()?;
        let mut sizes = Vec::with_capacity(files.len());
        for (path, _) in &files {
            sizes.push(path.metadata().map_err(unreadable)?.len() as f64);
        }
        let all: f64 = sizes.iter().sum();
        let part = |size: f64| match all > 0.0 {
            true => self.weight * size / all,
            false => self.weight,
        };
        let sources = files.iter().zip(sizes);
        let sources = sources.map(|((path, format), size)| source(path, *format, part(size)));
        Ok((sources.collect(), left_out))
    }

    /// Looks into the folder; what is hidden there is not there.
    fn list(&self) -> Result<Listed, DataFolderError> {
        let folder = self.path.clone();
        let unreadable = |error| DataFolderError::Io {
            folder: self.path.clone(),
            error,
        };
        let mut names = Vec::new();
        for entry in self.path.read_dir().map_err(unreadable)? {
            names.push(entry.map_err(unreadable)?.file_name());
        }
        names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
        names.sort();
        let told = |name: &OsString| name.display().to_string();
        let mut files: Vec<(PathBuf, Format)> = Vec::new();
        let mut left_out = Vec::new();
        for name in &names {
            let path = self.path.join(name);
            let format = Format::of(&path).ok().filter(|_| path.is_file());
            match (format, self.format, files.first()) {
                (Some(found), Some(wanted), _) if found == wanted => files.push((path, found)),
                (_, Some(_), _) => left_out.push(told(name)),
                (None, None, _) => {
                    let other = told(name);
                    return Err(DataFolderError::Other { folder, other });
                }
                (Some(found), None, Some((first, format))) if found != *format => {
                    return Err(DataFolderError::Formats {
                        folder,
                        one: told(&first.file_name().unwrap_or_default().to_os_string()),
                        other: told(name),
                    });
                }
                (Some(found), None, _) => files.push((path, found)),
            }
        }
        match files.is_empty() {
            true => Err(DataFolderError::Empty {
                folder,
                format: self.format,
            }),
            false => Ok(Listed { files, left_out }),
        }
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
        if self.fields != Fields::Usual {
            write!(f, ",{}", self.fields)?;
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
    fn a_folder_is_its_files_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("texts");
        std::fs::create_dir(&folder).unwrap();
        let read = |more: &str| {
            let file: DataFile = format!("{}{more}", folder.display()).parse().unwrap();
            let (sources, left_out) = file.sources().map_err(|error| error.to_string())?;
            let name = |source: &Source| Path::new(source.name()).file_name().unwrap().to_owned();
            let told = sources
                .iter()
                .map(|source| (name(source), format!("{source:?}")));
            Ok::<_, String>((told.collect::<Vec<_>>(), left_out))
        };
        let names = |more: &str| -> Vec<String> {
            let (files, _) = read(more).unwrap();
            let names = files.iter().map(|(name, _)| name.display().to_string());
            names.collect()
        };
        let write = |name: &str, bytes: usize| {
            std::fs::write(folder.join(name), "x".repeat(bytes)).unwrap()
        };
        assert!(
            read("")
                .unwrap_err()
                .ends_with("texts has no files of texts")
        );
        write("b.jsonl", 30);
        write("a.jsonl", 10);
        write(".hidden", 1);
        assert_eq!(names(""), ["a.jsonl", "b.jsonl"]);
        // A folder weighs what is given after it, whatever number of files it has.
        let (files, left_out) = read(",weight=2,text=body").unwrap();
        assert!(
            files[0].1.contains("weight: 0.5") && files[1].1.contains("weight: 1.5"),
            "{files:?}"
        );
        assert!(
            files
                .iter()
                .all(|(_, told)| told.contains("Text(\"body\")")),
            "{files:?}"
        );
        assert_eq!(left_out, Vec::<String>::new());
        write("c.md", 5);
        let error = read("").unwrap_err();
        assert!(
            error.contains("has a.jsonl and c.md, which are in different formats"),
            "{error}"
        );
        assert!(error.contains("texts,format=jsonl)"), "{error}");
        assert_eq!(names(",format=jsonl"), ["a.jsonl", "b.jsonl"]);
        assert_eq!(read(",format=jsonl").unwrap().1, ["c.md"]);
        assert_eq!(names(",format=text"), ["c.md"]);
        let error = read(",format=parquet").unwrap_err();
        assert!(
            error.ends_with("no files of texts whose names end as those of parquet do"),
            "{error}"
        );
        std::fs::create_dir(folder.join("1.jsonl")).unwrap();
        let error = read("").unwrap_err();
        assert!(
            error.contains("texts has 1.jsonl, which is no file of texts"),
            "{error}"
        );
        assert_eq!(read(",format=jsonl").unwrap().1, ["1.jsonl", "c.md"]);
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
