//! What a lock file says, read as text.

use std::collections::{BTreeMap, BTreeSet};

/// A package of a lock file.
pub(crate) struct Package<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    /// Names, each with its version where there are several.
    pub(crate) dependencies: Vec<&'a str>,
    pub(crate) is_of_workspace: bool,
}

/// Returns the packages of a lock file, in its order.
pub(crate) fn packages(lock: &str) -> Vec<Package<'_>> {
    lock.split("[[package]]")
        .skip(1)
        .map(Package::read)
        .collect()
}

impl<'a> Package<'a> {
    fn read(text: &'a str) -> Self {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim_matches('"'))
        };
        let expected = |key: &str| value(key).unwrap_or_else(|| panic!("no {key}in{text}"));
        let dependencies = text
            .split_once("dependencies = [")
            .map_or("", |(_, list)| list);
        let dependencies = dependencies.split(']').next().unwrap_or_default();
        Self {
            name: expected("name = "),
            version: expected("version = "),
            dependencies: dependencies.split('"').skip(1).step_by(2).collect(),
            is_of_workspace: value("source = ").is_none(),
        }
    }
}

/// Returns the dependencies of each package, as indices.
pub(crate) fn edges(packages: &[Package<'_>]) -> Vec<Vec<usize>> {
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, package) in packages.iter().enumerate() {
        by_name.entry(package.name).or_default().push(index);
    }
    let find = |dependency: &&str| {
        let (name, version) = dependency.split_once(' ').unwrap_or((dependency, ""));
        let version = version.split(' ').next().unwrap_or_default();
        let of_name = by_name.get(name).into_iter().flatten();
        let mut found =
            of_name.filter(|index| version.is_empty() || packages[**index].version == version);
        *found
            .next()
            .unwrap_or_else(|| panic!("the lock file lacks {dependency}"))
    };
    packages
        .iter()
        .map(|package| package.dependencies.iter().map(find).collect())
        .collect()
}

/// Returns the packages that one is built with, itself among them.
pub(crate) fn built_with(edges: &[Vec<usize>], root: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(index) = open.pop() {
        open.extend(edges[index].iter().filter(|next| found.insert(**next)));
    }
    found
}
