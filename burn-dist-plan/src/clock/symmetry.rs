//! Ranks that do the same are simulated once.
//!
//! Two ranks are of one class if their actions take the same time, and the members of each call of the one are of the
//! same classes as those of the same call of the other. Then they do everything at the same time, and a call of a group
//! is a call of the classes in it.

use std::collections::HashMap;
use std::sync::Arc;

use super::rank::RankActions;
use crate::mesh::Rank;

/// Ranks that do the same.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Class {
    /// Index of the rank that is simulated.
    pub first: usize,
    /// Indices of all of them.
    pub ranks: Vec<usize>,
    /// For each call, the classes of its members, in rising order.
    pub calls: Vec<Vec<usize>>,
}

/// Numbers what is equal alike, in order of first appearance.
fn number<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> Vec<usize> {
    let mut known: HashMap<K, usize> = HashMap::new();
    let mut numbers = Vec::new();
    for key in keys {
        let next = known.len();
        numbers.push(*known.entry(key).or_insert(next));
    }
    numbers
}

/// Returns the classes of ranks; those of a group that are not among `numbers` are left out.
pub(super) fn classes(numbers: &[Rank], ranks: &[RankActions]) -> Vec<Class> {
    let place: HashMap<Rank, usize> = numbers.iter().copied().zip(0..).collect();
    let mut colors = number(ranks.iter().map(|rank| &rank.actions));
    let members = |colors: &[usize], groups: &[Arc<[Rank]>]| {
        let mut known: HashMap<Arc<[Rank]>, Vec<usize>> = HashMap::new();
        let mut of_group = |group: &Arc<[Rank]>| {
            let found = known.entry(group.clone()).or_insert_with(|| {
                let here = group.iter().filter_map(|rank| place.get(rank));
                let mut found: Vec<usize> = here.map(|&rank| colors[rank]).collect();
                found.sort_unstable();
                found.dedup();
                found
            });
            found.clone()
        };
        groups.iter().map(&mut of_group).collect::<Vec<_>>()
    };
    loop {
        let count = colors.iter().max().map_or(0, |most| most + 1);
        let keys = ranks.iter().zip(&colors);
        let keys = keys.map(|(rank, color)| (*color, members(&colors, &rank.groups)));
        let finer = number(keys);
        let is_stable = finer.iter().max().map_or(0, |most| most + 1) == count;
        colors = finer;
        if is_stable {
            break;
        }
    }
    let count = colors.iter().max().map_or(0, |most| most + 1);
    let class = |color: usize| {
        let ranks_of: Vec<usize> = (0..colors.len()).filter(|&r| colors[r] == color).collect();
        let first = ranks_of[0];
        Class {
            first,
            ranks: ranks_of,
            calls: members(&colors, &ranks[first].groups),
        }
    };
    (0..count).map(class).collect()
}
