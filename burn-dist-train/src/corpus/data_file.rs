//! Files of texts, folders and patterns of them, as the command line names them.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use glob::MatchOptions;
use thiserror::Error;

use super::{CorpusError, Fields, Format, Source, Split};

/// A file, or a folder or pattern of files, and how it is read: `FILE[,KEY=VALUE]...`.
#[derive(Debug, Clone, PartialEq)]
pub struct DataFile {
    /// The file, folder or pattern.
    pub path: PathBuf,
    /// The format of its content; by its name if it is not set. Of several files, those of this format are read.
    pub format: Option<Format>,
    /// Its part of all positions, as against those of the other files.
    pub weight: f64,
    /// The fields or columns that are read.
    pub fields: Fields,
    /// The documents of a plain text.
    pub split: Split,
}

/// The keys after the name of a file.
const KEYS: [&str; 7] = [
    "weight", "format", "text", "prompt", "response", "messages", "split",
];

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
    #[error(
        "give text=FIELD, or prompt=FIELD and response=FIELD, or messages=FIELD, or none of them"
    )]
    Fields,
}

burn_dist_mesh::debug_by_message!(DataFileError);

/// Files of which is not known how they are read.
#[derive(Error)]
pub enum DataFilesError {
    /// They cannot be looked for.
    #[error("cannot read {place}: {error}")]
    Io {
        /// Where they are.
        place: Several,
        /// Why.
        error: io::Error,
    },
    /// Among them is something that is no file of texts.
    #[error(
        "{place} has {other}, which is no file of texts: give the files one by one, or a format behind it ({}), whose \
         files are then read and no others", place.example()
    )]
    Other {
        /// Where they are.
        place: Several,
        /// The name of it.
        other: String,
    },
    /// They are of several formats.
    #[error(
        "{place} has {one} and {other}, which are in different formats: give a format behind it ({}), whose files are \
         then read and no others", place.example()
    )]
    Formats {
        /// Where they are.
        place: Several,
        /// The name of a file.
        one: String,
        /// The name of another.
        other: String,
    },
    /// There are no files to read.
    #[error("{place} has no files of texts{}", of(*format))]
    Empty {
        /// Where they would be.
        place: Several,
        /// The format that was asked for.
        format: Option<Format>,
    },
    /// There is no file, and the name is no pattern.
    #[error("there is no file {pattern}, and as a pattern it cannot be read: {reason}")]
    Pattern {
        /// The name.
        pattern: String,
        /// Its fault in words.
        reason: String,
    },
    /// One of them cannot be read, or its format is not known.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
}

burn_dist_mesh::debug_by_message!(DataFilesError);

/// Where several files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Several {
    /// In a folder.
    Folder(PathBuf),
    /// Wherever names fit a pattern.
    Pattern(String),
}

impl Several {
    fn example(&self) -> String {
        match self {
            Self::Folder(path) => format!("{},format=jsonl", path.display()),
            Self::Pattern(pattern) => format!("'{pattern},format=jsonl'"),
        }
    }
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "the folder {}", path.display()),
            Self::Pattern(pattern) => write!(f, "the pattern {pattern}"),
        }
    }
}

fn of(format: Option<Format>) -> String {
    format.map_or_else(String::new, |format| {
        format!(" whose names end as those of {format} do")
    })
}

/// The files of a folder or pattern that are read, in the order of their names, and the names of what else is there.
struct Listed {
    files: Vec<(PathBuf, Format)>,
    left_out: Vec<String>,
}

/// The characters that make a pattern of a name.
const OF_PATTERNS: [char; 3] = ['*', '?', '['];

impl DataFile {
    /// Returns what is read from it: a source, or those of a folder or pattern, of which each has a part of the weight
    /// as its bytes are of all, unpacked; and the names of what is there besides.
    ///
    /// # Errors
    /// [`CorpusError::Format`] if a name does not tell a format, and neither does the command line; [`DataFilesError`].
    pub fn sources(&self) -> Result<(Vec<Source>, Vec<String>), DataFilesError> {
        let source = |path: &Path, format| {
            Source::file(path, format)
                .fields(self.fields.clone())
                .split(self.split)
        };
        let Some(place) = self.several() else {
            let format = match self.format {
                Some(format) => format,
                None => Format::of(&self.path)?,
            };
            return Ok((
                vec![source(&self.path, format).weight(self.weight)],
                Vec::new(),
            ));
        };
        let Listed { files, left_out } = self.list(place)?;
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, format)| source(path, *format))
            .collect();
        let mut sizes = Vec::with_capacity(sources.len());
        for source in &sources {
            sizes.push(source.size()? as f64);
        }
        let all: f64 = sizes.iter().sum();
        let part = |size: f64| match all > 0.0 {
            true => self.weight * size / all,
            false => self.weight,
        };
        let sources = sources.into_iter().zip(sizes);
        let sources = sources.map(|(source, size)| source.weight(part(size)));
        Ok((sources.collect(), left_out))
    }

    /// Where its files are, if it may stand for several. A name that is there is no pattern, whatever is in it.
    fn several(&self) -> Option<Several> {
        if self.path.is_dir() {
            return Some(Several::Folder(self.path.clone()));
        }
        let pattern = self
            .path
            .to_str()
            .filter(|name| name.contains(OF_PATTERNS))?;
        (!self.path.exists()).then(|| Several::Pattern(pattern.to_string()))
    }

    /// Finds its files, and tells those that are read from the others.
    fn list(&self, place: Several) -> Result<Listed, DataFilesError> {
        let mut files: Vec<(PathBuf, Format)> = Vec::new();
        let mut left_out = Vec::new();
        for path in found(&place)? {
            let other = shown(&path, &place);
            let format = Format::of(&path).ok().filter(|_| path.is_file());
            match (format, self.format, files.first()) {
                (Some(found), Some(wanted), _) if found == wanted => files.push((path, found)),
                (_, Some(_), _) => left_out.push(other),
                (None, None, _) => return Err(DataFilesError::Other { place, other }),
                (Some(found), None, Some((first, format))) if found != *format => {
                    let one = shown(first, &place);
                    return Err(DataFilesError::Formats { place, one, other });
                }
                (Some(found), None, _) => files.push((path, found)),
            }
        }
        match files.is_empty() {
            true => Err(DataFilesError::Empty {
                place,
                format: self.format,
            }),
            false => Ok(Listed { files, left_out }),
        }
    }
}

/// A file for people: of a folder its name, of a pattern the path to it.
fn shown(path: &Path, place: &Several) -> String {
    match place {
        Several::Folder(_) => path.file_name().unwrap_or_default().display().to_string(),
        Several::Pattern(_) => path.display().to_string(),
    }
}

/// Returns all that is there, in the order of the names, but for what is hidden.
fn found(place: &Several) -> Result<Vec<PathBuf>, DataFilesError> {
    let unreadable = |error| DataFilesError::Io {
        place: place.clone(),
        error,
    };
    let mut paths = Vec::new();
    match place {
        Several::Folder(folder) => {
            for entry in folder.read_dir().map_err(unreadable)? {
                let entry = entry.map_err(unreadable)?;
                if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                    paths.push(entry.path());
                }
            }
        }
        Several::Pattern(pattern) => {
            let options = MatchOptions {
                case_sensitive: true,
                require_literal_separator: true,
                require_literal_leading_dot: true,
            };
            let matches = glob::glob_with(pattern, options);
            let matches = matches.map_err(|error| DataFilesError::Pattern {
                pattern: pattern.clone(),
                reason: error.to_string(),
            })?;
            for path in matches {
                paths.push(path.map_err(|error| unreadable(error.into()))?);
            }
        }
    }
    paths.sort();
    Ok(paths)
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
        let (mut prompt, mut response, mut whole, mut messages) = (None, None, None, None);
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
                "messages" => messages = Some(value.to_string()),
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
        file.fields = match (whole, prompt, response, messages) {
            (None, None, None, None) => Fields::Usual,
            (Some(text), None, None, None) => Fields::Text(text),
            (None, Some(prompt), Some(response), None) => Fields::Pair { prompt, response },
            (None, None, None, Some(messages)) => Fields::Messages(messages),
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
            "a.jsonl,messages=turns",
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
    fn a_pattern_is_the_files_whose_names_fit_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for folder in ["a", "b/deep"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let write =
            |name: &str, bytes: usize| std::fs::write(root.join(name), "x".repeat(bytes)).unwrap();
        write("b/2.jsonl", 10);
        write("b/10.jsonl", 10);
        write("a/1.jsonl", 20);
        write("b/deep/3.jsonl", 5);
        write("b/.hidden.jsonl", 1);
        write("b/notes.md", 1);
        let read = |pattern: &str| {
            let file: DataFile = format!("{}/{pattern}", root.display()).parse().unwrap();
            let (sources, left_out) = file.sources().map_err(|error| error.to_string())?;
            let short =
                |name: &str| name.strip_prefix(root.to_str().unwrap()).unwrap()[1..].to_string();
            let names: Vec<String> = sources.iter().map(|source| short(source.name())).collect();
            let left_out: Vec<String> = left_out.iter().map(|name| short(name)).collect();
            let weights: Vec<String> = sources.iter().map(|source| format!("{source:?}")).collect();
            Ok::<_, String>((names, left_out, weights))
        };
        let names = |pattern: &str| read(pattern).unwrap().0;
        assert_eq!(names("b/*.jsonl"), ["b/10.jsonl", "b/2.jsonl"]);
        assert_eq!(names("*/[12].jsonl"), ["a/1.jsonl", "b/2.jsonl"]);
        assert_eq!(
            names("**/*.jsonl"),
            ["a/1.jsonl", "b/10.jsonl", "b/2.jsonl", "b/deep/3.jsonl"]
        );
        // Together they weigh what is given behind the pattern, each as it has bytes.
        let (_, _, weights) = read("[ab]/?.jsonl,weight=3").unwrap();
        assert!(
            weights[0].contains("weight: 2.0") && weights[1].contains("weight: 1.0"),
            "{weights:?}"
        );
        let fails = |pattern: &str, parts: &[&str]| {
            let error = read(pattern).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{pattern}: {part:?} in {error}");
            }
        };
        fails("b/*.txt", &["the pattern", "b/*.txt has no files of texts"]);
        fails("b/d*", &["b/deep, which is no file of texts"]);
        fails(
            "b/*.*",
            &[
                "10.jsonl",
                "notes.md, which are in different formats",
                "/b/*.*,format=jsonl'",
            ],
        );
        let (names, left_out, _) = read("b/*,format=text").unwrap();
        assert_eq!(names, ["b/notes.md"]);
        assert_eq!(left_out, ["b/10.jsonl", "b/2.jsonl", "b/deep"]);
        fails(
            "b/[.jsonl",
            &["there is no file", "as a pattern it cannot be read"],
        );
        // A file that is there is no pattern.
        write("b/[x]*.jsonl", 3);
        assert_eq!(read("b/[x]*.jsonl").unwrap().0, ["b/[x]*.jsonl"]);
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
