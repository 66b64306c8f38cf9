//! Which tensor goes to which file, and what the files are called.

use super::{INDEX, SINGLE};
use std::collections::BTreeSet;

/// Ends the names of files that are being written.
pub(super) const PARTIAL: &str = ".partial";

/// Returns the number of tensors of each file, such that as many as fit into `limit` bytes are together.
pub(super) fn split(sizes: impl Iterator<Item = u64>, limit: Option<u64>) -> Vec<usize> {
    let (mut counts, mut bytes) = (vec![0], 0u64);
    for size in sizes {
        let after = bytes.saturating_add(size);
        let last = counts.len() - 1;
        if limit.is_some_and(|limit| after > limit) && counts[last] > 0 {
            counts.push(1);
            bytes = size;
        } else {
            counts[last] += 1;
            bytes = after;
        }
    }
    counts
}

/// Returns the names of so many files, none of which is among `taken`: those of an earlier model keep theirs until the
/// new one is there. One file is called `model.safetensors` whatever there is: it replaces an earlier one at once.
pub(super) fn names(count: usize, taken: &BTreeSet<String>) -> Vec<String> {
    if count == 1 {
        return vec![SINGLE.to_owned()];
    }
    let of = |round: usize| -> Vec<String> {
        let round = match round {
            1 => String::new(),
            _ => format!("-{round}"),
        };
        let name = |index| format!("model{round}-{index:05}-of-{count:05}.safetensors");
        (1..=count).map(name).collect()
    };
    let is_free = |names: &Vec<String>| !names.iter().any(|name| taken.contains(name));
    let free = (1..).map(of).find(is_free);
    // There are finitely many taken names.
    free.unwrap_or_default()
}

/// Returns whether a file is one of tensors that this or Hugging Face's library has made.
pub(super) fn is_shard(name: &str) -> bool {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|c| c.is_ascii_digit());
    let inside = name.strip_prefix("model");
    let inside = inside.and_then(|rest| rest.strip_suffix(".safetensors"));
    let parts = inside.and_then(|rest| rest.rsplit_once("-of-"));
    let Some((before, count)) = parts else {
        return false;
    };
    let Some((round, index)) = before.rsplit_once('-') else {
        return false;
    };
    let is_round = round.is_empty()
        || round
            .strip_prefix('-')
            .is_some_and(|round| !round.is_empty() && round.bytes().all(|c| c.is_ascii_digit()));
    is_number(count) && is_number(index) && is_round
}

/// Returns whether a file beside the tensors may have this name.
pub(super) fn is_other_name(name: &str) -> bool {
    let is_bad = |c: char| matches!(c, '/' | '\\' | ':') || c.is_control();
    !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(is_bad)
        && name != SINGLE
        && name != INDEX
        && !is_shard(name)
        && !name.ends_with(PARTIAL)
}
