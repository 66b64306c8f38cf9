//! Paths with gaps: `layers.*.attention.wq.weight`.

/// A path in which `*` stands for any one name between points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<String>);

const GAP: &str = "*";

impl Pattern {
    /// Reads a pattern; none if a name is empty, or `*` is only part of one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_name = |name: &&str| {
            let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\\');
            !name.is_empty() && !name.contains(is_bad) && (*name == GAP || !name.contains('*'))
        };
        let names: Vec<&str> = text.split('.').collect();
        let is_fine = names.iter().all(is_name);
        is_fine.then(|| Self(names.into_iter().map(str::to_owned).collect()))
    }

    /// Returns it with these names before its own ones, and others in place of its last.
    pub(super) fn with_ends(&self, before: &[&str], after: &[&str]) -> Self {
        let own = self.0.iter().take(self.0.len() - 1).map(String::as_str);
        let names = before
            .iter()
            .copied()
            .chain(own)
            .chain(after.iter().copied());
        Self(names.map(str::to_owned).collect())
    }

    /// Returns its last name.
    pub(super) fn last(&self) -> Option<&str> {
        self.0.last().map(String::as_str)
    }

    /// Returns how many gaps it has.
    pub(super) fn num_gaps(&self) -> usize {
        self.0.iter().filter(|name| *name == GAP).count()
    }

    /// Returns what stands in the gaps, if `path` is one of its paths.
    pub(super) fn gaps<'a>(&self, path: &'a str) -> Option<Vec<&'a str>> {
        let names: Vec<&str> = path.split('.').collect();
        let mut pairs = self.0.iter().zip(&names);
        let is_match = self.0.len() == names.len() && pairs.all(|(own, name)| fits(own, name));
        let gap = |(own, name): (&String, &'a str)| (own == GAP).then_some(name);
        is_match.then(|| self.0.iter().zip(names).filter_map(gap).collect())
    }

    /// Returns the path that has `gaps` in its gaps; those for which there are none stay.
    pub(super) fn fill(&self, gaps: &[&str]) -> String {
        let mut gaps = gaps.iter();
        let names = self.0.iter().map(|name| match name == GAP {
            true => gaps.next().copied().unwrap_or(GAP),
            false => name,
        });
        names.collect::<Vec<_>>().join(".")
    }

    /// Returns whether there is a path of both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs.all(|(a, b)| fits(a, b) || fits(b, a))
    }
}

fn fits(own: &str, name: &str) -> bool {
    own == GAP && !name.is_empty() || own == name
}

/// The text that it was read from.
impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("."))
    }
}
