//! Patterns over module paths: `layers.*.attention.wq`, `**.*_norm`.

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// `**`: any number of segments, none included.
    Any,
    /// One segment; `*` in it stands for any characters.
    One(String),
    /// One segment, taken literally.
    Exactly(String),
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
                "**" => Segment::Any,
                one if one.contains("**") => {
                    return Err(format!(
                        "`**` in `{one}` stands for whole segments: write `*` within one"
                    ));
                }
                one => Segment::One(one.into()),
            });
        }
        Ok(Self(segments))
    }

    /// The pattern that names exactly this path.
    pub fn exactly(path: &[String]) -> Self {
        Self(path.iter().cloned().map(Segment::Exactly).collect())
    }

    /// Whether the pattern names `path`, all of it.
    pub fn matches(&self, path: &[String]) -> bool {
        matches(&self.0, path)
    }
}

fn matches(pattern: &[Segment], path: &[String]) -> bool {
    let Some((segment, rest)) = pattern.split_first() else {
        return path.is_empty();
    };
    match segment {
        Segment::Any => (0..=path.len()).any(|skipped| matches(rest, &path[skipped..])),
        Segment::One(glob) => path.split_first().is_some_and(|(first, path)| {
            part(glob.as_bytes(), first.as_bytes()) && matches(rest, path)
        }),
        Segment::Exactly(name) => path
            .split_first()
            .is_some_and(|(first, path)| name == first && matches(rest, path)),
    }
}

/// Whether `*`s in `glob` can be filled to give `text`.
fn part(glob: &[u8], text: &[u8]) -> bool {
    match glob.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skipped| part(rest, &text[skipped..])),
        Some((c, rest)) => text
            .split_first()
            .is_some_and(|(t, text)| c == t && part(rest, text)),
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
        Pattern::parse(pattern).expect("readable").matches(&path)
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
    fn derived_paths_are_literal() {
        let star = Pattern::exactly(&["*".to_string()]);
        assert!(star.matches(&["*".to_string()]));
        assert!(!star.matches(&["a".to_string()]));
    }

    #[test]
    fn unreadable() {
        for pattern in ["a..b", ".a", "a.", "a.**b"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
