//! What a lock file says, read as text.

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
