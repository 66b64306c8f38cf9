//! Patterns over module paths: `layers.*.attention.wq`, `**.*_norm`.

use std::fmt;

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<PatternSegment>);

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternSegment {
    /// `**`: any number of segments, none included.
    Any,
    /// One segment, any whose name this is; `*` in it stands for any characters.
    Glob(String),
    /// One segment of this name.
    Name(String),
}

impl PatternSegment {
    /// Returns whether one segment of this name is what the pattern's segment stands for.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Glob(glob) => part(glob, name),
            Self::Name(wanted) => wanted == name,
        }
    }
}

impl Pattern {
    /// Reads a pattern; the empty one names the module itself.
    ///
    /// # Errors
    /// What is wrong with it, and how it is written.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let mut segments = Vec::new();
        for segment in text.split('.') {
            segments.push(match segment {
                "" => return Err("a segment between dots is empty: write `layers.*.wq`".into()),
                "**" => PatternSegment::Any,
                one if one.contains("**") => {
                    return Err(format!(
                        "`**` in `{one}` stands for whole segments: write `*` within one"
                    ));
                }
                one if one.contains('*') => PatternSegment::Glob(one.into()),
                one => PatternSegment::Name(one.into()),
            });
        }
        Ok(Self(segments))
    }

    /// Returns its segments, for who looks names up in a tree of them.
    pub fn segments(&self) -> &[PatternSegment] {
        &self.0
    }

    /// Returns whether the pattern names `path`, all of it.
    pub fn matches(&self, path: &[String]) -> bool {
        matches(&self.0, path)
    }
}

fn matches(pattern: &[PatternSegment], path: &[String]) -> bool {
    let Some((segment, rest)) = pattern.split_first() else {
        return path.is_empty();
    };
    match segment {
        PatternSegment::Any => (0..=path.len()).any(|skipped| matches(rest, &path[skipped..])),
        one => path
            .split_first()
            .is_some_and(|(first, path)| one.matches(first) && matches(rest, path)),
    }
}

/// Returns whether `*`s in `glob` can be filled to make `text`: each part takes the first place that it fits, which
/// leaves the most to the rest.
fn part(glob: &str, text: &str) -> bool {
    let Some((start, rest)) = glob.split_once('*') else {
        return glob == text;
    };
    let (between, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let left = text.strip_prefix(start);
    let left = left.and_then(|left| left.strip_suffix(end));
    let mut parts = between.split('*');
    let after = |left: &str, part: &str| left.find(part).map(|at| at + part.len());
    left.is_some_and(|left| {
        let mut at = 0;
        parts.all(|part| after(&left[at..], part).map(|by| at += by).is_some())
    })
}

/// The text that it was read from.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|segment| match segment {
            PatternSegment::Any => "**",
            PatternSegment::Glob(text) | PatternSegment::Name(text) => text,
        });
        f.write_str(&names.collect::<Vec<_>>().join("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pattern: &str, path: &str) -> bool {
        let path: Vec<String> = path
            .split('.')
            .filter(|s| !s.is_empty())
            .map(Into::into)
            .collect();
        let parsed = Pattern::parse(pattern).expect("readable");
        assert_eq!(parsed.to_string(), pattern);
        parsed.matches(&path)
    }

    #[test]
    fn globs() {
        for (pattern, path, expected) in [
            ("", "", true),
            ("", "a", false),
            ("a.b", "a.b", true),
            ("a.b", "a", false),
            ("a", "a.b", false),
            ("layers.*.wq", "layers.11.wq", true),
            ("layers.*.wq", "layers.1.2.wq", false),
            ("layers.*.*_norm", "layers.0.ffn_norm", true),
            ("layers.*.*_norm", "layers.0.norm", false),
            ("layers.*.w*", "layers.0.w", true),
            ("*a*b", "xaybzb", true),
            ("a*a", "a", false),
            ("a*b*b", "ab", false),
            ("*a*b*", "xbya", false),
            ("*aab*", "aaab", true),
            ("**", "", true),
            ("**", "a.b.c", true),
            ("**.wq", "wq", true),
            ("**.wq", "a.b.wq", true),
            ("a.**.wq", "a.wq", true),
            ("a.**.wq", "b.wq", false),
            ("a.**", "a", true),
        ] {
            assert_eq!(named(pattern, path), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn unreadable() {
        for pattern in ["a..b", ".a", "a.", "a.**b"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
