//! Costs of modules: how long their operations take.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;

use super::Simulation;
use super::events::COMPUTE;

/// How long the operations of each module take on modelled hardware, in nanoseconds.
///
/// An operation counts for the module whose parameter it uses, or used last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleCosts(BTreeMap<Arc<str>, u64>);

impl ModuleCosts {
    /// Adds up what the first rank computes in simulated windows.
    ///
    /// The costs of whole modules are found on a mesh that does not cut the model into stages.
    pub fn new(windows: &[Simulation]) -> Self {
        let ranks = windows.iter().flat_map(|window| window.ranks.first());
        let entries = ranks.flat_map(|rank| &rank.entries);
        let mut costs = Self::default();
        for entry in entries.filter(|entry| entry.lane == COMPUTE) {
            if let Some(path) = &entry.path {
                *costs.0.entry(path.clone()).or_default() += entry.end_ns - entry.start_ns;
            }
        }
        costs
    }

    /// Paths of modules, with what each costs without the modules inside it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(path, ns)| (&**path, *ns))
    }

    /// Returns what a module costs with all modules inside it; 0 if none has an operation.
    pub fn of(&self, path: &str) -> u64 {
        if path.is_empty() {
            return self.0.values().sum();
        }
        // Paths inside lie between `path.` and what comes after the dot.
        let (first, after) = (format!("{path}."), format!("{path}/"));
        let inside = (Included(first.as_str()), Excluded(after.as_str()));
        let inside = self.0.range::<str, _>(inside);
        let own = self.0.get(path).copied().unwrap_or(0);
        own + inside.map(|(_, ns)| ns).sum::<u64>()
    }
}

/// Returns whether `path` is that of a module, or of something in it; everything is in the module `""`.
pub fn is_inside(path: &str, module: &str) -> bool {
    let rest = path.strip_prefix(module);
    module.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl FromIterator<(String, u64)> for ModuleCosts {
    /// Costs that were found elsewhere.
    fn from_iter<T: IntoIterator<Item = (String, u64)>>(costs: T) -> Self {
        let mut found = Self::default();
        for (path, ns) in costs {
            *found.0.entry(path.into()).or_default() += ns;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_costs_what_is_in_it() {
        let costs = [("a.1", 3), ("a.10", 5), ("a.1.b", 7), ("", 1), ("a.1", 2)];
        let costs: ModuleCosts = costs
            .map(|(path, ns)| (path.to_owned(), ns))
            .into_iter()
            .collect();
        let of = ["a.1", "a.10", "a", "", "b"].map(|path| costs.of(path));
        assert_eq!(of, [12, 5, 17, 18, 0]);
    }
}
