use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::error::{CorpusError, Difference, OF};
use super::lane::Start;

/// How much of a corpus has been handed out, saved with a checkpoint as JSON for instance. It says nothing of batches,
/// processes or meshes.
///
/// A process knows the lanes that it reads. [`merge`](Self::merge) puts together what all processes know: a corpus goes
/// on from that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// All that the rows are a function of: names and values.
    pub(super) identity: Vec<(String, String)>,
    /// Rows handed out.
    pub(super) rows: u64,
    /// The documents of each source before this round of lanes.
    pub(super) before: Vec<u64>,
    /// The documents of each source in each lane: `[lane * sources + source]`.
    pub(super) taken: Vec<u64>,
    /// Where the blocks begin that lanes are in, as far as known; in the same order.
    pub(super) blocks: Vec<Option<Start>>,
}

impl Position {
    /// Rows that have been handed out, in all processes.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns what it says of something that its rows are a function of: of the `tokenizer`, for instance.
    pub fn identity(&self, what: &str) -> Option<&str> {
        let mut all = self.identity.iter();
        let found = all.find(|(name, _)| name == what);
        found.map(|(_, value)| value.as_str())
    }

    /// Puts together what processes know of the same position.
    ///
    /// # Errors
    /// [`CorpusError::Position`] if they are at different ones, or there is none.
    pub fn merge(parts: impl IntoIterator<Item = Self>) -> Result<Self, CorpusError> {
        let mut parts = parts.into_iter();
        let position = |reason: &str| CorpusError::Position {
            reason: reason.to_string(),
        };
        let mut all = parts.next().ok_or_else(|| position("there is none"))?;
        for part in parts {
            let facts = |position: &Self| {
                let Self {
                    identity,
                    rows,
                    before,
                    taken,
                    blocks,
                } = position.clone();
                (identity, rows, before, taken, blocks.len())
            };
            if facts(&part) != facts(&all) {
                return Err(position(
                    "processes have read other data, or other numbers of rows",
                ));
            }
            // A process that has read further in a lane knows where it is; rows from there on are counted.
            for (known, also) in all.blocks.iter_mut().zip(part.blocks) {
                let first = |start: &Option<Start>| start.as_ref().map(|start| start.first_row);
                if first(&also) > first(known) {
                    *known = also;
                }
            }
        }
        Ok(all)
    }

    /// Checks that it is one in these rows.
    pub(super) fn check(
        &self,
        identity: &[(String, String)],
        lanes: usize,
        sources: usize,
    ) -> Result<(), CorpusError> {
        let by_name =
            |of: &[(String, String)]| -> BTreeMap<String, String> { of.iter().cloned().collect() };
        let (before, now) = (by_name(&self.identity), by_name(identity));
        let value = |of: &BTreeMap<String, String>, what: &str| {
            of.get(what).map_or("nothing".to_string(), String::clone)
        };
        let names = identity.iter().chain(&self.identity);
        let mut differences: Vec<Difference> = Vec::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for (what, _) in names {
            if !seen.insert(what) {
                continue;
            }
            let (expected, found) = (value(&before, what), value(&now, what));
            if expected != found {
                differences.push(Difference {
                    what: what.clone(),
                    expected,
                    found,
                });
            }
        }
        // What is another source, or none, is told by its name alone.
        let others: BTreeSet<String> = differences.iter().map(|it| it.what.clone()).collect();
        let is_of_another = |what: &str| {
            let of = what.split_once(OF).map(|(_, whole)| whole);
            of.is_some_and(|whole| others.contains(whole))
        };
        differences.retain(|it| !is_of_another(&it.what));
        if !differences.is_empty() {
            return Err(CorpusError::OtherRows { differences });
        }
        let num = lanes * sources;
        let sum: u64 = self.taken.iter().sum();
        let blocks = self.blocks.iter().zip(&self.taken);
        let is_behind = |(block, taken): (&Option<Start>, &u64)| {
            block.as_ref().is_some_and(|start| start.first_row > *taken)
        };
        let reason =
            if (self.before.len(), self.taken.len(), self.blocks.len()) != (sources, num, num) {
                format!("it is not of {lanes} lanes and {sources} sources")
            } else if sum != self.rows {
                format!("lanes have {sum} rows, and there are {}", self.rows)
            } else if self.before.iter().sum::<u64>() != self.rows - self.rows % lanes as u64 {
                "sources have other numbers of rows".to_string()
            } else if blocks.into_iter().any(is_behind) {
                "a block begins behind the rows of its lane".to_string()
            } else {
                return Ok(());
            };
        Err(CorpusError::Position { reason })
    }
}
